//! Tests with peers that violate the protocol. The tested side must close the connection and report the reason, without
//! a panic or unbounded memory use.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use bottle_channel::{Channel, ChannelError, Incoming, Side};
use bottle_protocol::session::frame::{Header, Kind, MAX_STREAMS, WINDOW};
use bottle_protocol::session::{Hello, PROTOCOL, Role};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);

fn frame(kind: Kind, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Header::new(kind, stream, payload.len()).unwrap().encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn hello() -> Vec<u8> {
    frame(Kind::Hello, 0, &serde_json::to_vec(&Hello::of(Role::Guest)).unwrap())
}

/// Creates a connection that the tested side dialled. The test plays the peer.
async fn against() -> (Channel, Incoming, DuplexStream) {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    far.write_all(&hello()).await.unwrap();
    let (channel, incoming, _) =
        Channel::establish(near, Side::Dialed, Hello::of(Role::Keeper)).await.unwrap();
    (channel, incoming, far)
}

async fn reason_after(bytes: &[u8]) -> String {
    let (channel, _incoming, mut far) = against().await;
    // The tested side has opened stream 1, which is still open.
    let _stream = channel.open(&"request").await.unwrap();
    channel.flush().await;
    // The connection may close during the last writes.
    let _ = far.write_all(bytes).await;
    timeout(SOON, channel.closed()).await.unwrap().to_string()
}

#[tokio::test]
async fn every_violation_closes_the_connection_with_its_reason() {
    let full = frame(Kind::Data, 1, &vec![0; 32 * 1024]);
    let mut huge = Header::new(Kind::Data, 1, 1).unwrap().encode();
    huge[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut odd_kind = Header::new(Kind::End, 1, 0).unwrap().encode();
    odd_kind[8] = 99;
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (huge.to_vec(), "is not within its bounds"),
        (odd_kind.to_vec(), "unknown frame kind 99"),
        (hello(), "a `hello` frame after the handshake"),
        (frame(Kind::Data, 3, b"\0x"), "stream 3, which was never opened"),
        (frame(Kind::Message, 2, b"1"), "stream 2, which was never opened"),
        (frame(Kind::Open, 3, b"1"), "opened stream 3"),
        ([frame(Kind::Open, 4, b"1"), frame(Kind::Open, 2, b"1")].concat(), "opened stream 2"),
        ([frame(Kind::End, 1, b""), frame(Kind::Data, 1, b"\0x")].concat(), "after ending stream 1"),
        (full.repeat(9), "more on stream 1 than it had credit for"),
        (frame(Kind::Message, 1, b"1").repeat(5000), "more on stream 1 than it had credit for"),
        (frame(Kind::Credit, 1, &1u32.to_be_bytes()), "more credit on stream 1 than was used"),
        (frame(Kind::Credit, 1, &u32::MAX.to_be_bytes()), "more credit on stream 1 than was used"),
    ];
    for (bytes, reason) in cases {
        let seen = reason_after(&bytes).await;
        assert!(seen.contains(reason), "{seen:?} does not say {reason:?}");
    }
}

#[tokio::test]
async fn a_peer_that_opens_without_reading_is_disconnected() {
    let (near, mut far) = tokio::io::duplex(8 * 1024);
    far.write_all(&hello()).await.unwrap();
    let (channel, _incoming, _) =
        Channel::establish(near, Side::Dialed, Hello::of(Role::Keeper)).await.unwrap();
    for stream in 1..=u32::try_from(8 * MAX_STREAMS).unwrap() {
        if far.write_all(&frame(Kind::Open, stream * 2, b"1")).await.is_err() {
            break;
        }
    }
    let reason = timeout(SOON, channel.closed()).await.unwrap().to_string();
    assert_eq!(reason, "the peer opens streams faster than it reads their resets");
}

#[tokio::test]
async fn opening_and_resetting_streams_stays_within_the_limit() {
    let (channel, mut incoming, mut far) = against().await;
    let mut drain = vec![0; 1 << 16];
    for stream in 1..=u32::try_from(20 * MAX_STREAMS).unwrap() {
        let bytes = [frame(Kind::Open, stream * 2, b"1"), frame(Kind::Reset, stream * 2, b"no")].concat();
        far.write_all(&bytes).await.unwrap();
        if stream % 100 == 0 {
            // Reads the resets that the tested side sends, because a peer that does not read resets violates the
            // protocol.
            let _ = timeout(Duration::from_millis(1), far.read(&mut drain)).await;
        }
    }
    // Waits until the tested side has rejected the last stream. All streams of the peer have then been opened or
    // rejected, so that none of them can use a slot that becomes free later.
    let last = 20 * u32::try_from(MAX_STREAMS).unwrap() * 2;
    let marker = [&last.to_be_bytes()[..], &[Kind::Reset as u8]].concat();
    let mut seen = Vec::new();
    while !seen.windows(marker.len()).any(|w| w == marker) {
        let read = timeout(SOON, far.read(&mut drain)).await.unwrap().unwrap();
        seen.extend_from_slice(&drain[..read]);
    }
    let mut taken = 0;
    while let Ok(Some(request)) = timeout(Duration::from_millis(100), incoming.next()).await {
        taken += 1;
        drop(request);
    }
    assert!((1..=MAX_STREAMS).contains(&taken), "{taken}");
    drop(channel);
}

#[tokio::test]
async fn too_much_unread_data_closes_the_connection() {
    let (channel, mut incoming, mut far) = against().await;
    let body = vec![b'1'; 1 << 20];
    let writing = tokio::spawn(async move {
        for stream in 1..=u32::try_from(MAX_STREAMS).unwrap() {
            if far.write_all(&frame(Kind::Open, stream * 2, &body)).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    let reason = timeout(SOON, channel.closed()).await.unwrap().to_string();
    assert_eq!(reason, "the peer sent more unread data than a connection may buffer");
    writing.abort();
    while timeout(SOON, incoming.next()).await.unwrap().is_some() {}
}

#[tokio::test]
async fn rejects_first_bytes_that_are_not_a_hello() {
    let king = format!(r#"{{"protocol":{PROTOCOL},"role":"king","program":"x"}}"#);
    for (bytes, word) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "unknown frame kind"),
        (frame(Kind::Open, 2, b"{}"), "a `open` frame arrived first"),
        (frame(Kind::Hello, 0, b"{}"), "missing field"),
        (frame(Kind::Hello, 0, king.as_bytes()), "unknown variant"),
        (Vec::new(), "eof"),
    ] {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        far.write_all(&bytes).await.unwrap();
        drop(far);
        let error = Channel::establish(near, Side::Dialed, Hello::of(Role::Keeper)).await.unwrap_err();
        let ChannelError::BadHello(why) = &error else { panic!("{error:?}") };
        assert!(why.contains(word), "{why:?} does not say {word:?}");
    }
}

/// Generates frames with mostly valid headers, so that the checks after the header check are tested too.
fn some_frame() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![
        Kind::Open,
        Kind::Message,
        Kind::Data,
        Kind::End,
        Kind::Reset,
        Kind::Credit,
    ]);
    let valid =
        (kinds, 0u32..12, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(kind, stream, body)| {
            let body = match kind {
                Kind::End => Vec::new(),
                Kind::Credit => (u32::try_from(body.len()).unwrap() * WINDOW / 64).to_be_bytes().to_vec(),
                Kind::Data if body.is_empty() => vec![1],
                _ => body,
            };
            frame(kind, stream.max(1), &body)
        });
    prop_oneof![9 => valid, 1 => prop::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// When a peer sends arbitrary frames, the tested side never panics, closes the connection after the peer has
    /// disconnected, and ends every stream.
    #[test]
    fn arbitrary_frames_never_break_a_connection(frames in prop::collection::vec(some_frame(), 0..60), take in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (channel, mut incoming, mut far) = against().await;
            let mut own = vec![channel.open(&"a").await.unwrap(), channel.open(&"b").await.unwrap()];
            let reading = channel.clone();
            let serving = tokio::spawn(async move {
                let mut turn = 0u32;
                while let Some(request) = incoming.next().await {
                    turn += 1;
                    if take >> (turn % 64) & 1 == 0 {
                        continue;
                    }
                    let mut stream = request.accept();
                    let _ = stream.data(1, b"answer").await;
                    // Replies to data, and drops the stream at any other event.
                    while let Some(bottle_channel::Event::Data { .. }) = stream.next().await {
                        let _ = stream.data(1, b"more").await;
                    }
                }
                drop(reading);
            });
            for bytes in frames {
                if far.write_all(&bytes).await.is_err() {
                    break;
                }
                let _ = own[0].data(0, b"x").await;
            }
            drop(far);
            timeout(SOON, channel.closed()).await.expect("the connection ends");
            for stream in &mut own {
                while timeout(SOON, stream.next()).await.expect("every stream ends").is_some() {}
            }
            timeout(SOON, serving).await.expect("requests end").expect("no panic");
        });
    }
}
