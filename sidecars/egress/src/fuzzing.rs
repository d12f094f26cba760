//! Entry points of the fuzzers in `fuzz/`, which test parsers of bytes from a bottle or a server. Each function panics
//! if the property in its documentation does not hold. The tests of this crate also run the fuzzers' corpora.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bottle_daemon::Socket;
use bottle_policy::names::{EGRESS_PORT, HTTP_PORT, HTTPS_PORT};
use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecrets, Scanner};
use bytes::BytesMut;
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::inspect::decoded_memory::DecodedMemory;
use crate::inspect::{BodyScan, Coding, Decoding};
use crate::listener::io::ClientIo;
use crate::request::websocket_frames::FrameReader;
use crate::test_proxy::{self, TestProxy};
use crate::tls::hello::{self, Protocol};

/// How long the proxy may take to finish its response and close the connection, after the fuzzer has sent the last
/// byte.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Parses the first bytes of a connection. TLS passthrough must forward every byte unchanged.
///
/// # Panics
/// If a forwarded byte is missing or changed.
pub fn client_hello(bytes: &[u8]) {
    block_on(async {
        let (mut bottle, proxy) = UnixStream::pair().expect("a pair");
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a permit");
        let send = async {
            // The proxy may close the connection before it has read all bytes.
            let _ = bottle.write_all(bytes).await;
            let _ = bottle.shutdown().await;
        };
        let ((), protocol) = tokio::join!(send, hello::read(ClientIo::new(Socket::Left(proxy), permit)));
        let mut io = match protocol {
            Ok(Protocol::Tls(hello)) => hello.into_passthrough(),
            Ok(Protocol::Http(io)) => io,
            Err(_) => return,
        };
        let mut passed = Vec::new();
        io.read_to_end(&mut passed).await.expect("the rest");
        assert_eq!(passed, bytes);
    });
}

/// Decodes content codings. The first byte selects up to two codings, the second byte sets the chunk length.
///
/// # Panics
/// If the decoded text depends on the chunk length. Only the detection of errors may depend on the chunk length: a bare
/// deflate stream has no checksum, and flate2 notices a back-reference before the start of the stream only in large
/// chunks.
pub fn decoders(bytes: &[u8]) {
    let [which, cut, coded @ ..] = bytes else { return };
    let coding = |bits: u8| match bits & 7 {
        0 => Some(Coding::Gzip),
        1 => Some(Coding::Deflate),
        2 => Some(Coding::Brotli),
        3 => Some(Coding::Zstd),
        _ => None,
    };
    let codings: Vec<Coding> = [*which, which >> 4].into_iter().filter_map(coding).collect();
    let decoded = |size: usize| {
        let (mut decoding, mut text) = (Decoding::new(&codings, &DecodedMemory::default()), Vec::new());
        for chunk in coded.chunks(size) {
            let fed = decoding.feed(chunk, &mut |more| {
                text.extend_from_slice(more);
                true
            });
            fed.ok()?;
        }
        // If no decoder withholds text, the proxy forwards the encoded bytes, so the decoded text must be complete.
        (decoding.withheld() == 0).then_some(text)
    };
    if let (Some(cut), Some(whole)) = (decoded(usize::from(*cut) + 1), decoded(coded.len().max(1))) {
        assert_eq!(cut, whole);
    }
}

/// Parses WebSocket frames from a bottle, decompresses and scans their messages. The first byte sets the chunk length.
///
/// # Panics
/// If the messages depend on the chunk length. Only the detection of errors in compressed messages may depend on the
/// chunk length, see [`decoders`].
pub fn messages(bytes: &[u8]) {
    static SCANNER: LazyLock<Arc<Scanner>> = LazyLock::new(|| {
        let known = KnownSecrets::new([&Secret::new("Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc".to_owned())]);
        Arc::new(Scanner::outbound(Arc::new(known.expect("a secret"))))
    });
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let parts = |size: usize| {
        let mut reader = FrameReader::new(true, true, &DecodedMemory::default());
        let (mut input, mut parts) = (BytesMut::new(), Vec::new());
        for chunk in bytes.chunks(size) {
            input.extend_from_slice(chunk);
            loop {
                match reader.next(&mut input) {
                    Ok(Some(part)) => parts.push((part.frames, part.payload)),
                    Ok(None) => break,
                    Err(_) => return (parts, false),
                }
            }
        }
        (parts, true)
    };
    let (whole, cut) = (parts(bytes.len().max(1)), parts(usize::from(*cut) + 1));
    if whole.1 && cut.1 {
        assert_eq!(whole, cut);
    }
    let forwarded: usize = whole.0.iter().map(|(frames, _)| frames.len()).sum();
    assert!(forwarded <= bytes.len());
    for (_, payload) in whole.0 {
        let mut scan = BodyScan::new(&SCANNER, &[], &HeaderMap::new(), &DecodedMemory::default());
        let _ = scan.feed(&payload).and_then(|()| scan.finish());
    }
}

/// Connects to the proxy port that the first byte selects. The proxy has one route, and no server listens at its
/// destination.
///
/// # Panics
/// If the proxy does not close the connection soon after the last byte.
pub fn connection(bytes: &[u8]) {
    /// One proxy for all connections, because its setup takes longer than most connections.
    static PROXY: LazyLock<(Runtime, TestProxy)> = LazyLock::new(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        // No server listens on port 1.
        let yaml = "routes:\n- host: api.example.com\n  ports: [80, 443]\n  connect_to: '127.0.0.1:1'\n";
        let proxy = runtime.block_on(TestProxy::with(test_proxy::provision(yaml)));
        (runtime, proxy)
    });
    let Some((which, bytes)) = bytes.split_first() else { return };
    let port = [EGRESS_PORT, HTTP_PORT, HTTPS_PORT][usize::from(which % 3)];
    let (runtime, proxy) = &*PROXY;
    runtime.block_on(async {
        let mut socket =
            UnixStream::connect(proxy.directory.path().join(port.to_string())).await.expect("the proxy");
        let _ = socket.write_all(bytes).await;
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let answered = timeout(ANSWERED_WITHIN, socket.read_to_end(&mut answer)).await;
        assert!(answered.is_ok(), "no end after {}", String::from_utf8_lossy(&answer));
    });
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn corpora_satisfy_the_fuzzed_properties() {
        for (target, run) in [
            ("client_hello", client_hello as fn(&[u8])),
            ("connection", connection),
            ("decoders", decoders),
            ("messages", messages),
        ] {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
            let files: Vec<_> = std::fs::read_dir(&corpus).expect("a corpus").collect();
            assert!(!files.is_empty(), "{target}");
            for file in files {
                run(&std::fs::read(file.expect("a file").path()).expect("bytes"));
            }
        }
    }
}
