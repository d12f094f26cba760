//! Tests consecutive connections on one stream. After a connection was cut off at any byte, the next connection works.
//! No content of a stream can imitate an opening.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bottle_channel::rejoin::RUN;
use bottle_channel::{Channel, ChannelError, Event, Incoming, Rejoinable, Side, rejoin};
use bottle_protocol::session::{Hello, Role};
use proptest::prelude::*;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, join,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

/// The capacity of a container engine's pipe, in bytes.
const PIPE: usize = 64 * 1024;

/// The host's ends of a stream. The other end behaves like a container.
struct Stream {
    to_inside: WriteHalf<DuplexStream>,
    from_inside: ReadHalf<DuplexStream>,
    /// Receives each connection that completed the handshake in the container.
    met: mpsc::Receiver<Channel>,
    inside: tokio::task::JoinHandle<io::Result<()>>,
}

fn stream() -> Stream {
    let (host, inside) = duplex(PIPE);
    let (from_inside, to_inside) = tokio::io::split(host);
    let (reader, writer) = tokio::io::split(inside);
    let (meets, met) = mpsc::channel(16);
    let inside = tokio::spawn(async move {
        let mut streams = Rejoinable::new(reader, writer);
        while let Some(connection) = streams.accept().await? {
            let hello = Hello::of(Role::Guest);
            if let Ok((channel, incoming, _)) = Channel::establish(connection, Side::Accepted, hello).await {
                let _ = meets.try_send(channel);
                tokio::spawn(echo(incoming));
            }
        }
        Ok(())
    });
    Stream { to_inside, from_inside, met, inside }
}

/// Echoes the data of every stream.
async fn echo(mut incoming: Incoming) {
    while let Some(request) = incoming.next().await {
        tokio::spawn(async move {
            let mut stream = request.accept();
            while let Some(event) = stream.next().await {
                let sent = match event {
                    Event::Data { fd, bytes } => stream.data(fd, &bytes).await,
                    Event::End => stream.end().await,
                    _ => return,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
    }
}

async fn connect<IO>(io: IO) -> Result<Channel, ChannelError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let hello = Hello::of(Role::Keeper);
    let (channel, _, theirs) = Channel::establish(rejoin(io).await?, Side::Dialed, hello).await?;
    assert_eq!(theirs.role, Role::Guest);
    Ok(channel)
}

/// The pipes of a container engine between a container and one attached client. The test itself copies the bytes.
struct Engine {
    to_inside: WriteHalf<DuplexStream>,
    from_inside: ReadHalf<DuplexStream>,
    from_client: ReadHalf<DuplexStream>,
    to_client: WriteHalf<DuplexStream>,
}

impl Engine {
    /// Connects a client, and copies the bytes of both directions until the client is connected.
    async fn connected() -> (Self, Channel) {
        let Stream { mut to_inside, mut from_inside, .. } = stream();
        let (near, far) = duplex(4 * PIPE);
        let (mut from_client, mut to_client) = tokio::io::split(far);
        let connected = async {
            let channel = connect(near).await.unwrap();
            echoes(&channel, b"first").await;
            channel
        };
        let copied = async {
            tokio::join!(
                tokio::io::copy(&mut from_client, &mut to_inside),
                tokio::io::copy(&mut from_inside, &mut to_client)
            )
        };
        let channel = tokio::select! {
            channel = connected => channel,
            _ = copied => panic!("the stream ended"),
        };
        (Self { to_inside, from_inside, from_client, to_client }, channel)
    }
}

/// Checks that the peer echoes `bytes`.
async fn echoes(channel: &Channel, bytes: &[u8]) {
    let (sender, mut receiver) = channel.open(&"echo").await.unwrap().split();
    let sending = async {
        sender.data(0, bytes).await.unwrap();
        sender.end().await.unwrap();
    };
    let receiving = async {
        let mut back = Vec::new();
        while let Some(Event::Data { bytes, .. }) = receiver.next().await {
            back.extend_from_slice(&bytes);
        }
        back
    };
    let ((), back) =
        timeout(SOON, async { tokio::join!(sending, receiving) }).await.expect("an echo in time");
    assert!(back == bytes, "{} bytes came back of {}", back.len(), bytes.len());
}

/// Returns the bytes of both directions of a complete connection.
async fn recorded() -> (Vec<u8>, Vec<u8>) {
    let Stream { mut to_inside, mut from_inside, .. } = stream();
    let (near, far) = duplex(PIPE);
    let (mut reads, mut writes) = tokio::io::split(far);
    let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let (to, from) = (seen.clone(), seen.clone());
    let relay = tokio::spawn(async move {
        let towards = async {
            let mut piece = vec![0; PIPE];
            while let Ok(read @ 1..) = reads.read(&mut piece).await {
                to.lock().unwrap().0.extend_from_slice(&piece[..read]);
                to_inside.write_all(&piece[..read]).await.unwrap();
            }
        };
        let back = async {
            let mut piece = vec![0; PIPE];
            while let Ok(read @ 1..) = from_inside.read(&mut piece).await {
                from.lock().unwrap().1.extend_from_slice(&piece[..read]);
                writes.write_all(&piece[..read]).await.unwrap();
            }
        };
        tokio::join!(towards, back);
    });
    let channel = connect(near).await.unwrap();
    echoes(&channel, b"earlier content").await;
    relay.abort();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.0[..RUN], [0; RUN]);
    seen
}

#[tokio::test]
async fn reconnects_after_a_cut_towards_the_container() {
    let (before, _) = recorded().await;
    // Cuts at every byte except inside the zeros, where all positions are equivalent.
    for cut in (0..40).chain(RUN - 40..before.len()) {
        let mut stream = stream();
        stream.to_inside.write_all(&before[..cut]).await.unwrap();
        let channel = connect(join(stream.from_inside, stream.to_inside)).await;
        let channel = channel.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        echoes(&channel, b"again").await;
        // If there was a previous connection, it has ended.
        let mut met = Vec::new();
        while let Ok(channel) = stream.met.try_recv() {
            met.push(channel);
        }
        for old in &met[..met.len() - 1] {
            timeout(SOON, old.closed()).await.expect("the old connection ends");
        }
    }
}

#[tokio::test]
async fn reconnects_after_a_cut_from_the_container() {
    let (_, before) = recorded().await;
    for cut in 0..=before.len() {
        let stream = stream();
        let left = io::Cursor::new(before[cut..].to_vec());
        let channel = connect(join(left.chain(stream.from_inside), stream.to_inside)).await;
        let channel = channel.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        echoes(&channel, b"again").await;
    }
}

#[tokio::test]
async fn zeros_and_openings_inside_frames_have_no_effect() {
    let (before, _) = recorded().await;
    let stream = stream();
    let channel = connect(join(stream.from_inside, stream.to_inside)).await.unwrap();
    echoes(&channel, &vec![0; 1 << 20]).await;
    echoes(&channel, &before).await;
    echoes(&channel, b"still the same connection").await;
}

/// Returns a function that attaches a new client to the stream, like consecutive keepers do.
fn attached(stream: Stream) -> (Arc<tokio::sync::Mutex<Stream>>, impl Fn() -> DuplexStream) {
    let shared = Arc::new(tokio::sync::Mutex::new(stream));
    let engine = shared.clone();
    let attach = move || {
        let (near, far) = duplex(PIPE);
        let engine = engine.clone();
        tokio::spawn(async move {
            let (mut reads, mut writes) = tokio::io::split(far);
            // The previous attachment released the lock when its keeper exited.
            let mut engine = engine.lock().await;
            let Stream { to_inside, from_inside, .. } = &mut *engine;
            tokio::select! {
                _ = tokio::io::copy(&mut reads, to_inside) => {}
                _ = tokio::io::copy(from_inside, &mut writes) => {}
            }
        });
        near
    };
    (shared, attach)
}

#[tokio::test]
async fn closing_ends_the_container_side_and_the_next_keeper_connects() {
    let (engine, attach) = attached(stream());
    let first = connect(attach()).await.unwrap();
    echoes(&first, b"first").await;
    first.close();
    timeout(SOON, first.closed()).await.unwrap();
    drop(first);
    let mut engine = engine.lock().await;
    let inside = engine.met.recv().await.unwrap();
    let why = timeout(SOON, inside.closed()).await.expect("closed inside").to_string();
    assert_eq!(why, "the peer closed the connection");
    drop(engine);
    echoes(&connect(attach()).await.unwrap(), b"second").await;
}

/// An engine may deliver the last bytes of one client after the first bytes of the next one. A client must therefore
/// not report the end of its connection before the container has read all its bytes.
#[tokio::test]
async fn closing_waits_until_the_container_has_read_everything() {
    let (mut engine, channel) = Engine::connected().await;
    channel.close();
    let mut held = vec![0; RUN];
    engine.from_client.read_exact(&mut held).await.unwrap();
    let mut back = pin!(tokio::io::copy(&mut engine.from_inside, &mut engine.to_client));
    // The engine delivers the bytes in two parts.
    for part in [&[][..], &held[..RUN - 1]] {
        engine.to_inside.write_all(part).await.unwrap();
        tokio::select! {
            closed = timeout(Duration::from_millis(100), channel.closed()) => assert!(closed.is_err(), "{}", part.len()),
            _ = &mut back => panic!("the container ended"),
        }
    }
    engine.to_inside.write_all(&held[RUN - 1..]).await.unwrap();
    tokio::select! {
        closed = timeout(SOON, channel.closed()) => assert_eq!(closed.unwrap().to_string(), "closed by this side"),
        _ = &mut back => panic!("the container ended"),
    }
}

/// When a new client replaces an old client, the container's run of zeros ends the old client. The old client must then
/// write nothing more.
#[tokio::test]
async fn a_replaced_client_writes_nothing() {
    let (engine, first) = Engine::connected().await;
    let Engine { mut to_inside, mut from_inside, mut from_client, mut to_client } = engine;
    let (second_near, second_far) = duplex(4 * PIPE);
    let (mut second_reads, mut second_writes) = tokio::io::split(second_far);
    // Both attached clients receive the container's output.
    let back = async {
        let mut piece = vec![0; PIPE];
        while let Ok(read @ 1..) = from_inside.read(&mut piece).await {
            let _ = to_client.write_all(&piece[..read]).await;
            second_writes.write_all(&piece[..read]).await.unwrap();
        }
    };
    let towards = tokio::io::copy(&mut second_reads, &mut to_inside);
    let replaced = async {
        let second = connect(second_near).await.unwrap();
        timeout(SOON, first.closed()).await.expect("the first client's end");
        let mut written = Vec::new();
        drop(first);
        timeout(SOON, from_client.read_to_end(&mut written)).await.expect("the end").unwrap();
        assert!(written.is_empty(), "{} bytes", written.len());
        echoes(&second, b"second").await;
    };
    tokio::select! {
        () = replaced => {}
        _ = async { tokio::join!(back, towards) } => panic!("the container ended"),
    }
}

#[tokio::test]
async fn the_host_is_notified_when_the_container_closes() {
    let mut stream = stream();
    let channel = connect(join(stream.from_inside, stream.to_inside)).await.unwrap();
    echoes(&channel, b"first").await;
    stream.met.recv().await.unwrap().close();
    let why = timeout(SOON, channel.closed()).await.expect("closed on the host").to_string();
    assert_eq!(why, "the peer closed the connection");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_both_sides() {
    let stream = stream();
    let channel = connect(join(stream.from_inside, stream.to_inside)).await.unwrap();
    stream.inside.abort();
    timeout(SOON, channel.closed()).await.expect("closed on the host");

    let (host, inside) = duplex(PIPE);
    let (reader, writer) = tokio::io::split(inside);
    drop(host);
    assert!(Rejoinable::new(reader, writer).accept().await.unwrap().is_none());

    let (near, far) = duplex(PIPE);
    drop(far);
    let error = rejoin(near).await.unwrap_err();
    assert!(matches!(error, ChannelError::Closed(_)), "{error:?}");
}

/// A container engine that was stopped reads nothing. The container must still detect the end of the stream.
#[tokio::test(start_paused = true)]
async fn detects_the_end_without_a_reader() {
    let (mut host, reader) = duplex(4 * PIPE);
    let (writer, _unread) = duplex(16);
    let mut streams = Rejoinable::new(reader, writer);
    let (before, _) = recorded().await;
    host.write_all(&before).await.unwrap();
    drop(host);
    assert!(timeout(SOON, streams.accept()).await.expect("an end in time").unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn times_out_without_an_answer() {
    let (near, mut far) = duplex(PIPE);
    let mute = tokio::spawn(async move {
        // The container in this test sends bytes constantly, but never the answer to an opening.
        let mut received = vec![0; PIPE];
        while far.read(&mut received).await.is_ok_and(|read| read > 0) {
            let _ = far.write_all(b"\x7fbottle-rejoin\n\xfe0123456789abcdef").await;
        }
    });
    let error = rejoin(near).await.unwrap_err();
    assert_eq!(error, ChannelError::Silent(bottle_channel::HELLO_DEADLINE));
    mute.await.unwrap();

    let (near, mut far) = duplex(PIPE);
    let flood = tokio::spawn(async move { while far.write_all(&[0x7f; PIPE]).await.is_ok() {} });
    let error = rejoin(near).await.unwrap_err();
    assert!(matches!(error, ChannelError::BadHello(_)), "{error:?}");
    flood.await.unwrap();
}

/// Bytes of a killed keeper may arrive inside the new keeper's opening.
#[tokio::test(start_paused = true)]
async fn leftover_bytes_within_the_opening_cost_one_retry() {
    let (before, _) = recorded().await;
    for at in [1, RUN / 2, RUN, RUN + 3, RUN + 17, RUN + 31] {
        let Stream { mut to_inside, from_inside, .. } = stream();
        let (near, mut far) = duplex(PIPE);
        let late = before[RUN..].to_vec();
        tokio::spawn(async move {
            let mut first = vec![0; at];
            far.read_exact(&mut first).await.unwrap();
            to_inside.write_all(&first).await.unwrap();
            to_inside.write_all(&late).await.unwrap();
            let _ = tokio::io::copy(&mut far, &mut to_inside).await;
        });
        let channel = connect(join(from_inside, near)).await;
        echoes(&channel.unwrap_or_else(|error| panic!("at {at}: {error}")), b"again").await;
    }
}

/// Bytes of a killed keeper may also arrive after the answer, where no nonce distinguishes them from the new keeper's
/// bytes. Such late bytes break the new connection quickly on both sides, and the connection after it works.
#[tokio::test(start_paused = true)]
async fn leftover_bytes_after_the_answer_cost_one_connection() {
    let (before, _) = recorded().await;
    let earlier = &before[RUN + 32..];
    for late in
        [earlier.to_vec(), earlier[..earlier.len() / 2].to_vec(), earlier[5..].to_vec(), vec![0xff; 100]]
    {
        let (engine, attach) = attached(stream());
        let mut attachment = engine.lock().await;
        let Stream { to_inside, from_inside, .. } = &mut *attachment;
        let (near, far) = duplex(PIPE);
        let (mut reads, mut writes) = tokio::io::split(far);
        let first = tokio::spawn(async move {
            match connect(near).await {
                Ok(channel) => channel.closed().await.to_string(),
                Err(error) => error.to_string(),
            }
        });
        let mut opening = vec![0; RUN + 32];
        reads.read_exact(&mut opening).await.unwrap();
        to_inside.write_all(&opening).await.unwrap();
        to_inside.write_all(&late).await.unwrap();
        tokio::select! {
            ended = timeout(SOON, first) => { ended.expect("its end in time").unwrap(); }
            _ = async { tokio::join!(tokio::io::copy(&mut reads, to_inside), tokio::io::copy(from_inside, &mut writes)) } => {}
        }
        drop(attachment);
        echoes(&connect(attach()).await.unwrap(), b"again").await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Arbitrary earlier bytes in the stream, in either direction and in pieces of any size, do not prevent a
    /// connection.
    #[test]
    fn earlier_bytes_do_not_prevent_a_connection(
        to in prop::collection::vec(prop_oneof![4 => any::<u8>().boxed(), 1 => Just(0).boxed()], 0..2000),
        zeros in prop_oneof![Just(0), 1..2 * RUN],
        more in prop::collection::vec(any::<u8>(), 0..100),
        from in prop::collection::vec(any::<u8>(), 0..2000),
        pipe in 1usize..PIPE,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut stream = stream();
            let junk = [&to[..], &vec![0; zeros], &more].concat();
            timeout(SOON, stream.to_inside.write_all(&junk)).await.unwrap().unwrap();
            // A relay with a small buffer splits all data into small pieces.
            let (near, mut far) = duplex(pipe);
            tokio::spawn(async move {
                let mut inside = join(io::Cursor::new(from).chain(stream.from_inside), stream.to_inside);
                let _ = tokio::io::copy_bidirectional(&mut far, &mut inside).await;
            });
            echoes(&connect(near).await.unwrap(), &junk).await;
        });
    }
}
