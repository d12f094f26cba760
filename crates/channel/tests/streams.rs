//! Tests streams between two correct peers.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use bottle_channel::{Channel, ChannelError, Event, Incoming, Side, Stream, splice};
use bottle_protocol::session::frame::{MAX_DATA, MAX_PAYLOAD, MAX_STREAMS, WINDOW};
use bottle_protocol::session::{Hello, PROTOCOL, Role};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);
const NOT_YET: Duration = Duration::from_millis(50);

type End = (Channel, Incoming);

async fn pair() -> (End, End) {
    let (near, far) = tokio::io::duplex(4096);
    let (near, far) = tokio::join!(
        Channel::establish(near, Side::Dialed, Hello::of(Role::Keeper)),
        Channel::establish(far, Side::Accepted, Hello::of(Role::Guest)),
    );
    let ((near, near_in, hello), (far, far_in, _)) = (near.unwrap(), far.unwrap());
    assert_eq!(hello.role, Role::Guest);
    ((near, near_in), (far, far_in))
}

async fn stream(near: &End, far: &mut End) -> (Stream, Stream) {
    let here = near.0.open(&"hello").await.unwrap();
    let request = timeout(SOON, far.1.next()).await.unwrap().unwrap();
    assert_eq!(request.parse::<String>().unwrap(), "hello");
    (here, request.accept())
}

#[tokio::test]
async fn messages_data_and_ends_arrive_in_order_both_ways() {
    let (near, mut far) = pair().await;
    let (mut here, mut there) = stream(&near, &mut far).await;
    here.message(&1u32).await.unwrap();
    here.data(0, b"ab").await.unwrap();
    here.data(0, b"").await.unwrap();
    here.end().await.unwrap();
    assert_eq!(there.receive::<u32>().await.unwrap(), 1);
    assert_eq!(there.next().await.unwrap(), Event::Data { fd: 0, bytes: "ab".into() });
    assert_eq!(there.next().await.unwrap(), Event::Data { fd: 0, bytes: "".into() });
    assert_eq!(there.next().await.unwrap(), Event::End);
    assert_eq!(there.next().await, None);
    there.message(&"bye").await.unwrap();
    there.end().await.unwrap();
    assert_eq!(here.receive::<String>().await.unwrap(), "bye");
    assert_eq!(here.next().await, Some(Event::End));
    assert_eq!(here.message(&1).await, Err(ChannelError::Ended));
}

#[tokio::test]
async fn data_waits_for_the_reader_and_nothing_is_lost() {
    let (near, mut far) = pair().await;
    let (here, mut there) = stream(&near, &mut far).await;
    let (sender, _receiver) = here.split();
    let total = 20 * WINDOW as usize + 7;
    let bytes: Vec<u8> = (0..total).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let expected = bytes.clone();
    let mut sending = tokio::spawn(async move {
        sender.data(1, &bytes).await.unwrap();
        sender.end().await.unwrap();
    });
    assert!(timeout(NOT_YET, &mut sending).await.is_err(), "the sender must wait for credit");
    let mut got = Vec::new();
    while let Some(Event::Data { fd: 1, bytes }) = timeout(SOON, there.next()).await.unwrap() {
        assert!(bytes.len() < MAX_DATA);
        got.extend_from_slice(&bytes);
    }
    assert!(got == expected);
    sending.await.unwrap();
}

#[tokio::test]
async fn an_unread_stream_does_not_block_another() {
    let (near, mut far) = pair().await;
    let (stuck, _unread) = stream(&near, &mut far).await;
    let (sender, _receiver) = stuck.split();
    let flood = tokio::spawn(async move { sender.data(1, &vec![0; 1 << 20]).await });
    for turn in 0..50u32 {
        let (here, mut there) = stream(&near, &mut far).await;
        here.message(&turn).await.unwrap();
        assert_eq!(timeout(SOON, there.receive::<u32>()).await.unwrap().unwrap(), turn);
    }
    assert!(!flood.is_finished());
    flood.abort();
}

#[tokio::test]
async fn the_longest_message_passes_and_a_longer_one_is_rejected() {
    let (near, mut far) = pair().await;
    let (here, mut there) = stream(&near, &mut far).await;
    let long = "x".repeat(MAX_PAYLOAD - 2);
    let (sender, _receiver) = here.split();
    let copy = long.clone();
    let sending = tokio::spawn(async move {
        for _ in 0..5 {
            sender.message(&copy).await.unwrap();
        }
        let over = format!("{copy}x");
        let error = sender.message(&over).await.unwrap_err();
        assert_eq!(error, ChannelError::TooLong { length: MAX_PAYLOAD + 1, bound: MAX_PAYLOAD });
        sender.end().await.unwrap();
    });
    for _ in 0..5 {
        assert_eq!(timeout(SOON, there.receive::<String>()).await.unwrap().unwrap(), long);
    }
    assert_eq!(there.next().await, Some(Event::End));
    sending.await.unwrap();
}

#[tokio::test]
async fn a_reset_reaches_both_halves_of_the_peer() {
    let (near, mut far) = pair().await;
    let (mut here, mut there) = stream(&near, &mut far).await;
    here.reset("enough").await;
    assert_eq!(there.next().await, Some(Event::Reset("enough".to_owned())));
    assert_eq!(there.next().await, None);
    assert!(there.message(&1).await.is_err());
    assert_eq!(here.next().await, Some(Event::Reset("reset by this side: enough".to_owned())));
}

#[tokio::test]
async fn a_sender_detects_a_lost_stream_after_the_peers_end() {
    for lose in [false, true] {
        let (near, mut far) = pair().await;
        let (here, mut there) = stream(&near, &mut far).await;
        here.end().await.unwrap();
        assert_eq!(there.next().await, Some(Event::End));
        let (answers, _questions) = there.split();
        let mut closed = tokio::spawn(async move { answers.closed().await });
        assert!(timeout(NOT_YET, &mut closed).await.is_err());
        if lose {
            near.0.close();
        } else {
            here.reset("not interested any more").await;
        }
        timeout(SOON, closed).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_dropped_sender_resets_the_stream() {
    let (near, mut far) = pair().await;
    let (here, mut there) = stream(&near, &mut far).await;
    here.data(0, b"half a file").await.unwrap();
    drop(here);
    let last = loop {
        match timeout(SOON, there.next()).await.unwrap() {
            Some(Event::Data { .. }) => {}
            other => break other,
        }
    };
    assert!(matches!(last, Some(Event::Reset(_))), "{last:?}");
}

#[tokio::test]
async fn a_dropped_receiver_does_not_stop_the_sender() {
    let (near, mut far) = pair().await;
    let (here, there) = stream(&near, &mut far).await;
    let (answers, unread) = there.split();
    drop(unread);
    timeout(SOON, here.data(0, &vec![0; 4 * WINDOW as usize])).await.unwrap().unwrap();
    here.end().await.unwrap();
    answers.message(&"took it").await.unwrap();
    answers.end().await.unwrap();
    let (_, mut receiver) = here.split();
    assert_eq!(receiver.message::<String>().await.unwrap(), "took it");
}

#[tokio::test]
async fn requests_that_are_not_accepted_are_rejected() {
    let (near, mut far) = pair().await;
    let mut here = near.0.open(&1).await.unwrap();
    far.1.next().await.unwrap().refuse("not now").await;
    assert_eq!(here.next().await, Some(Event::Reset("not now".to_owned())));
    let mut here = near.0.open(&1).await.unwrap();
    drop(far.1.next().await.unwrap());
    assert!(matches!(here.next().await, Some(Event::Reset(_))));
    let mut waiting = near.0.open(&1).await.unwrap();
    near.0.flush().await;
    drop(far.1);
    assert!(matches!(waiting.next().await, Some(Event::Reset(_))));
    let mut late = near.0.open(&1).await.unwrap();
    assert_eq!(late.next().await, Some(Event::Reset("this side accepts no requests".to_owned())));
}

#[tokio::test]
async fn the_number_of_streams_is_bounded_and_slots_are_reused() {
    let (near, mut far) = pair().await;
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        open.push(stream(&near, &mut far).await);
    }
    assert_eq!(near.0.open(&1).await.unwrap_err(), ChannelError::TooManyStreams(MAX_STREAMS));
    for (here, mut there) in open {
        drop(here);
        assert!(matches!(there.next().await, Some(Event::Reset(_))));
    }
    for _ in 0..3 * MAX_STREAMS {
        let (here, mut there) = stream(&near, &mut far).await;
        here.end().await.unwrap();
        assert_eq!(there.next().await, Some(Event::End));
        there.end().await.unwrap();
        let (_, mut here) = here.split();
        assert_eq!(here.next().await, Some(Event::End));
    }
}

#[tokio::test]
async fn closing_delivers_sent_messages_and_then_ends_every_stream() {
    let (near, mut far) = pair().await;
    let (here, mut there) = stream(&near, &mut far).await;
    here.message(&"last words").await.unwrap();
    near.0.close();
    assert!(matches!(here.message(&1).await, Err(ChannelError::Closed(_))));
    assert_eq!(there.receive::<String>().await.unwrap(), "last words");
    let last = timeout(SOON, there.next()).await.unwrap();
    assert!(matches!(&last, Some(Event::Reset(why)) if why.starts_with("connection lost")), "{last:?}");
    assert_eq!(there.next().await, None);
    assert_eq!(far.0.closed().await.to_string(), "the peer closed the connection");
    assert_eq!(near.0.closed().await.to_string(), "closed by this side");
    assert!(timeout(SOON, far.1.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_connection_lives_as_long_as_one_handle_or_stream() {
    let (near, mut far) = pair().await;
    let (here, mut there) = stream(&near, &mut far).await;
    drop(near);
    here.message(&"still here").await.unwrap();
    assert_eq!(there.receive::<String>().await.unwrap(), "still here");
    here.end().await.unwrap();
    drop(here);
    assert_eq!(timeout(SOON, far.0.closed()).await.unwrap().to_string(), "the peer closed the connection");
}

#[tokio::test]
async fn closing_does_not_wait_for_a_peer_that_does_not_read() {
    let (near, far) = tokio::io::duplex(256);
    let stuck = tokio::spawn(async move {
        let mut far = far;
        let hello = serde_json::to_vec(&Hello::of(Role::Guest)).unwrap();
        let header = bottle_protocol::session::frame::Header::new(
            bottle_protocol::session::frame::Kind::Hello,
            0,
            hello.len(),
        );
        let header = header.unwrap().encode();
        tokio::io::AsyncWriteExt::write_all(&mut far, &[&header[..], &hello].concat()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let (near, _incoming, _) = Channel::establish(near, Side::Dialed, Hello::of(Role::Keeper)).await.unwrap();
    let here = near.open(&1).await.unwrap();
    here.data(0, &[0; 1000]).await.unwrap();
    near.close();
    timeout(SOON, near.closed()).await.unwrap();
    stuck.abort();
}

#[tokio::test]
async fn both_sides_reject_another_protocol_version() {
    let (near, far) = tokio::io::duplex(4096);
    let newer = Hello { protocol: PROTOCOL + 1, ..Hello::of(Role::Guest) };
    let (near, far) = tokio::join!(
        Channel::establish(near, Side::Dialed, Hello::of(Role::Keeper)),
        Channel::establish(far, Side::Accepted, newer),
    );
    let (ours, theirs) = (PROTOCOL, PROTOCOL + 1);
    assert_eq!(near.unwrap_err(), ChannelError::Version { ours, theirs });
    assert_eq!(far.unwrap_err(), ChannelError::Version { ours: theirs, theirs: ours });
}

#[tokio::test]
async fn a_splice_forwards_both_directions_and_ends() {
    let (near, mut middle_far) = pair().await;
    let (middle_near, mut far) = pair().await;
    let (mut here, middle_a) = stream(&near, &mut middle_far).await;
    let (middle_b, there) = stream(&middle_near, &mut far).await;
    let spliced = tokio::spawn(splice(middle_a, middle_b));
    here.message(&"question").await.unwrap();
    let (answers, mut questions) = there.split();
    assert_eq!(questions.message::<String>().await.unwrap(), "question");
    let total = 4 * WINDOW as usize;
    let answering = tokio::spawn(async move {
        answers.data(1, &vec![7; total]).await.unwrap();
        answers.end().await.unwrap();
    });
    here.end().await.unwrap();
    assert_eq!(questions.next().await, Some(Event::End));
    let mut got = 0;
    while let Some(Event::Data { bytes, .. }) = timeout(SOON, here.next()).await.unwrap() {
        got += bytes.len();
    }
    assert_eq!(got, total);
    answering.await.unwrap();
    timeout(SOON, spliced).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_splice_forwards_resets_and_lost_connections() {
    for lose in [false, true] {
        let (near, mut middle_far) = pair().await;
        let (middle_near, mut far) = pair().await;
        let (here, middle_a) = stream(&near, &mut middle_far).await;
        let (middle_b, mut there) = stream(&middle_near, &mut far).await;
        let spliced = tokio::spawn(splice(middle_a, middle_b));
        if lose {
            near.0.close();
            near.0.closed().await;
        } else {
            here.reset("changed my mind").await;
        }
        let event = timeout(SOON, there.next()).await.unwrap();
        let Some(Event::Reset(why)) = event else { panic!("{event:?}") };
        assert_eq!(why == "changed my mind", !lose, "{why}");
        timeout(SOON, spliced).await.unwrap().unwrap();
    }
}
