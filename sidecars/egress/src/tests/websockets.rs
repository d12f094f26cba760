//! WebSockets frame by frame: how each side receives the frames, the close codes and the disconnects of the other side.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bottle_test_support::authority::Alpn;
use bottle_test_support::skip;
use flate2::{Compress, Compression, FlushCompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::client::tunnel;
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, REAL, SITE};
use super::scripted_sites::{SiteStream, proxy_to, read_request, write};

const UNSCANNED: &str = "dlp: {outbound_detectors: false, inbound_detectors: false}";
pub(super) const WITHIN: Duration = Duration::from_secs(10);

pub(super) type Client = TlsStream<UnixStream>;
/// The first byte of a frame, and its payload.
pub(super) type Frame = (u8, Vec<u8>);

/// Sends an upgrade request and returns the head of the response.
async fn upgrade(proxy: &ProxyFixture, headers: &str) -> (Client, String) {
    upgrade_at(proxy, "/ws", headers).await
}

pub(super) async fn upgrade_at(proxy: &ProxyFixture, path: &str, headers: &str) -> (Client, String) {
    let mut client = tunnel(proxy, SITE, &[b"http/1.1"]).await;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {SITE}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    client.write_all(request.as_bytes()).await.expect("write");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.expect("head"));
    }
    (client, String::from_utf8(head).expect("ASCII"))
}

async fn open(proxy: &ProxyFixture) -> Client {
    let (client, head) = upgrade(proxy, "").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    client
}

/// Returns a frame of a client, with a mask.
pub(super) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut frame = vec![first];
    match u8::try_from(payload.len()) {
        Ok(length @ 0..126) => frame.push(0x80 | length),
        _ => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(payload.len()).expect("short").to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Returns a short frame of a server, without a mask.
fn plain(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(payload.len()).expect("short")][..], payload].concat()
}

pub(super) fn close(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

/// Reads one frame of either side. Returns `None` at the end of the connection.
pub(super) async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let first = stream.read_u8().await.ok()?;
    let second = stream.read_u8().await.ok()?;
    let length = match second & 0x7f {
        126 => u64::from(stream.read_u16().await.ok()?),
        127 => stream.read_u64().await.ok()?,
        short => u64::from(short),
    };
    let mut mask = [0; 4];
    if second & 0x80 != 0 {
        stream.read_exact(&mut mask).await.ok()?;
    }
    let mut payload = vec![0; usize::try_from(length).expect("length")];
    stream.read_exact(&mut payload).await.ok()?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Some((first, payload))
}

/// Reads all frames until the end of the connection.
pub(super) async fn frames(stream: &mut (impl AsyncRead + Unpin)) -> Vec<Frame> {
    let mut all = Vec::new();
    while let Some(frame) = timeout(WITHIN, frame(stream)).await.expect("a frame or the end") {
        all.push(frame);
    }
    all
}

pub(super) const ACCEPT: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

type Received = Arc<Mutex<Vec<Frame>>>;

/// Opens a proxy to a site. After the upgrade, the site sends `greeting` and records all received frames. The site
/// answers pings with pongs and echoes all other frames. With `silent`, the site answers no frames.
async fn recording(route: &str, headers: &str, greeting: Vec<u8>, silent: bool) -> (ProxyFixture, Received) {
    let received = Received::default();
    let (record, accept) = (Arc::clone(&received), format!("{ACCEPT}{headers}\r\n"));
    let (proxy, _) = proxy_to(Alpn::Http1, route, move |mut stream: SiteStream, _| {
        let (received, accept, greeting) = (Arc::clone(&record), accept.clone(), greeting.clone());
        async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            write(&mut stream, &[accept.as_bytes(), &greeting].concat()).await;
            while let Some((first, payload)) = frame(&mut stream).await {
                received.lock().unwrap_or_else(PoisonError::into_inner).push((first, payload.clone()));
                if !silent {
                    write(&mut stream, &plain(if first == 0x89 { 0x8a } else { first }, &payload)).await;
                }
                if first == 0x88 {
                    return;
                }
            }
        }
    })
    .await;
    (proxy, received)
}

/// Waits until the site has received `count` frames, and returns all frames that it has received.
async fn all(received: &Received, count: usize) -> Vec<Frame> {
    let until = Instant::now() + WITHIN;
    loop {
        let frames = received.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if frames.len() >= count || Instant::now() > until {
            return frames;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_frames_reach_both_sides_with_their_codes() {
    for route in [AUTH, UNSCANNED] {
        for payload in [close(1000, "bye"), close(4001, "mine"), close(1001, ""), vec![]] {
            // The client closes first.
            let (proxy, received) = recording(route, "", vec![], false).await;
            let mut client = open(&proxy).await;
            client.write_all(&masked(0x88, &payload)).await.expect("close");
            assert_eq!(frames(&mut client).await, [(0x88, payload.clone())], "{route}");
            assert_eq!(all(&received, 1).await, [(0x88, payload.clone())]);
            // The site closes first, and the client confirms.
            let (proxy, received) = recording(route, "", plain(0x88, &payload), true).await;
            let mut client = open(&proxy).await;
            assert_eq!(
                timeout(WITHIN, frame(&mut client)).await.expect("in time"),
                Some((0x88, payload.clone()))
            );
            client.write_all(&masked(0x88, &payload)).await.expect("close");
            assert_eq!(frames(&mut client).await, []);
            assert_eq!(all(&received, 1).await, [(0x88, payload)]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_before_the_other_close_frame_arrive() {
    let (proxy, received) = recording(AUTH, "", vec![], false).await;
    let mut client = open(&proxy).await;
    let sent = [masked(0x81, b"one"), masked(0x82, &[1, 2]), masked(0x88, &close(1000, ""))].concat();
    client.write_all(&sent).await.expect("write");
    let expected = [(0x81, b"one".to_vec()), (0x82, vec![1, 2]), (0x88, close(1000, ""))];
    assert_eq!(frames(&mut client).await, expected);
    assert_eq!(all(&received, 3).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_violation_closes_both_sides_with_its_code() {
    for (bytes, code) in [
        (masked(0x81, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80"), 1007),
        (masked(0x01, b"\xf4\x90"), 1007),
        ([masked(0x01, b"\xce"), masked(0x80, b"a")].concat(), 1007),
        (masked(0xc1, b"a"), 1002),
        (masked(0x83, b"a"), 1002),
        (masked(0x80, b"a"), 1002),
        (masked(0x09, b"a"), 1002),
        ([masked(0x01, b"a"), masked(0x81, b"b")].concat(), 1002),
        (plain(0x81, b"unmasked"), 1002),
        ([&[0x82, 0xff][..], &(64_u64 << 20).to_be_bytes(), &[0; 4]].concat(), 1009),
    ] {
        let (proxy, received) = recording(AUTH, "", vec![], false).await;
        let mut client = open(&proxy).await;
        client.write_all(&bytes).await.expect("write");
        let expected = [(0x88, close(code, ""))];
        assert_eq!(
            timeout(WITHIN, frame(&mut client)).await.expect("in time").as_ref(),
            expected.first(),
            "{bytes:?}"
        );
        client.write_all(&masked(0x88, &close(code, ""))).await.expect("close");
        assert_eq!(frames(&mut client).await, []);
        assert_eq!(all(&received, 1).await, expected, "{bytes:?}");
    }
    // The proxy also closes the WebSocket if the site sends text that is not UTF-8.
    let (proxy, received) = recording(AUTH, "", plain(0x81, b"\xff"), false).await;
    assert_eq!(frames(&mut open(&proxy).await).await, [(0x88, close(1007, ""))]);
    assert_eq!(all(&received, 1).await, [(0x88, close(1007, ""))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_and_fragments_pass_end_to_end() {
    for route in [AUTH, UNSCANNED] {
        let (proxy, received) = recording(route, "", plain(0x89, b"from site"), false).await;
        let mut client = open(&proxy).await;
        let sent = [
            masked(0x8a, b"from site"),
            masked(0x01, b"a \xc3"),
            masked(0x89, b"within"),
            masked(0x80, b"\xa4"),
            masked(0x89, b""),
        ];
        for bytes in sent.concat().chunks(3) {
            client.write_all(bytes).await.expect("write");
            client.flush().await.expect("flush");
        }
        client.write_all(&masked(0x88, b"")).await.expect("close");
        let mut received_by_client = frames(&mut client).await;
        let mut received_by_site = all(&received, 6).await;
        // A control frame may overtake the fragments around it.
        for list in [&mut received_by_client, &mut received_by_site] {
            list.sort();
        }
        let fragments = [(0x01, b"a \xc3".to_vec()), (0x80, b"\xa4".to_vec()), (0x88, vec![])];
        let pings = [(0x89, vec![]), (0x89, b"within".to_vec()), (0x8a, b"from site".to_vec())];
        assert_eq!(received_by_site, [&fragments[..], &pings].concat(), "{route}");
        let pongs = [
            (0x89, b"from site".to_vec()),
            (0x8a, vec![]),
            (0x8a, b"from site".to_vec()),
            (0x8a, b"within".to_vec()),
        ];
        assert_eq!(received_by_client, [&fragments[..], &pongs].concat(), "{route}");
    }
}

/// A client detects from a missing pong, or from the end of the connection, that the site is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_site_is_noticed() {
    for route in [AUTH, UNSCANNED] {
        let (proxy, received) = recording(route, "", vec![], true).await;
        let mut client = open(&proxy).await;
        client.write_all(&masked(0x89, b"alive?")).await.expect("ping");
        assert!(
            timeout(Duration::from_millis(500), frame(&mut client)).await.is_err(),
            "{route}: the proxy answered"
        );
        assert_eq!(all(&received, 1).await, [(0x89, b"alive?".to_vec())]);
        // When this site receives a close frame, the site disconnects without a close frame of its own.
        client.write_all(&masked(0x88, b"")).await.expect("close");
        assert_eq!(frames(&mut client).await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_ends_the_connection_upstream() {
    let (proxy, received) = recording(AUTH, "", vec![], true).await;
    let mut client = open(&proxy).await;
    client.write_all(&masked(0x81, b"last")).await.expect("write");
    client.shutdown().await.expect("shutdown");
    assert_eq!(frames(&mut client).await, []);
    assert_eq!(all(&received, 1).await, [(0x81, b"last".to_vec())]);
}

/// Compresses a message as a part of the deflate stream `stream`.
fn compressed(stream: &mut Compress, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 1024);
    stream.compress_vec(text, &mut out, FlushCompress::Sync).expect("compress");
    out.truncate(out.len() - 4);
    out
}

const DEFLATE: &str = "Sec-WebSocket-Extensions: permessage-deflate\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_messages_pass_unchanged_and_are_scanned() {
    let (proxy, received) = recording(AUTH, DEFLATE, vec![], false).await;
    let offer = "Sec-WebSocket-Extensions: x-other; y=1, permessage-deflate; client_max_window_bits\r\n";
    let (mut client, head) = upgrade(&proxy, offer).await;
    assert!(head.to_ascii_lowercase().contains("sec-websocket-extensions: permessage-deflate\r\n"), "{head}");
    let mut stream = Compress::new(Compression::default(), false);
    let text = "the same text again and again, the same text again and again";
    let mut expected = Vec::new();
    for _ in 0..3 {
        let payload = compressed(&mut stream, text.as_bytes());
        client.write_all(&masked(0xc1, &payload)).await.expect("write");
        assert_eq!(
            timeout(WITHIN, frame(&mut client)).await.expect("in time"),
            Some((0xc1, payload.clone()))
        );
        expected.push((0xc1, payload));
    }
    // The compressed third message consists of references to the first message.
    assert!(expected[2].1.len() < expected[0].1.len() / 2, "{expected:?}");
    assert_eq!(all(&received, 3).await, expected);
    let secret = compressed(&mut stream, format!("the key is {REAL}").as_bytes());
    client.write_all(&masked(0xc1, &secret)).await.expect("write");
    let Some((0x88, payload)) = timeout(WITHIN, frame(&mut client)).await.expect("in time") else {
        panic!("no close frame")
    };
    assert_eq!(payload, close(1008, "secret-found"));
    let site = all(&received, 4).await;
    assert_eq!((&site[..3], &site[3..]), (&expected[..], &[(0x88, close(1008, "secret-found"))][..]));
}

/// Messages that arrive together may be scanned together. The outcome is the same as with a separate scan of each
/// message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_arrive_together_pass_up_to_a_finding() {
    let (first, second) = REAL.split_at(REAL.len() / 2);
    let (within, at_end) = (format!("{{{REAL}}}"), format!("the key is {REAL}"));
    let cases: [(&[&str], usize); 5] = [
        (&["one,", "two", " three", "four"], 4),
        (&["one,", &within, ",three"], 1),
        (&["one,", "two,", first, second, ",five"], 3),
        // The first letters of the last message do not hide the key.
        (&["one,", &at_end, "letters", ", more"], 1),
        (&[&at_end, ",two"], 0),
    ];
    for (messages, passing) in cases {
        let (proxy, received) = recording(AUTH, "", vec![], false).await;
        let mut client = open(&proxy).await;
        let sent: Vec<u8> = messages.iter().flat_map(|text| masked(0x81, text.as_bytes())).collect();
        client.write_all(&sent).await.expect("write");
        let mut expected: Vec<Frame> =
            messages[..passing].iter().map(|text| (0x81, text.as_bytes().to_vec())).collect();
        if passing < messages.len() {
            expected.push((0x88, close(1008, "secret-found")));
        }
        assert_eq!(all(&received, expected.len()).await, expected, "{messages:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_was_not_offered_is_an_error() {
    for (answer, offer) in [
        (DEFLATE, ""),
        ("Sec-WebSocket-Extensions: x-other\r\n", DEFLATE),
        ("Sec-WebSocket-Extensions: permessage-deflate; x=1\r\n", DEFLATE),
    ] {
        let (proxy, _) = recording(AUTH, answer, vec![], false).await;
        let (_, head) = upgrade(&proxy, offer).await;
        assert!(head.starts_with("HTTP/1.1 502"), "{answer} {offer}: {head}");
    }
}

/// When both sides send text in many frames at once, all text arrives although neither side reads first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_directions_flow_at_once() {
    let proxy = ProxyFixture::with(FixtureOptions::default()).await;
    let (mut from, mut to) = tokio::io::split(open(&proxy).await);
    let message = masked(0x81, "x".repeat(60_000).as_bytes());
    let sent = tokio::spawn(async move {
        for _ in 0..20 {
            to.write_all(&message).await.expect("write");
        }
        // Without the flush, the TLS session might still buffer the last record.
        to.flush().await.expect("flush");
        to
    });
    let read = async {
        for _ in 0..20 {
            assert_eq!(frame(&mut from).await.map(|(_, payload)| payload.len()), Some(60_000));
        }
    };
    // The deadline is long, because scans are slow in test builds on a busy machine.
    timeout(Duration::from_secs(120), read).await.expect("no deadlock");
    sent.await.expect("sent");
}

/// Starts a TCP relay to `to` that changes the `Host` header of each connection's first request.
async fn renaming(to: SocketAddr, host: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let host = host.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = client.read_u8().await else { return };
                    head.push(byte);
                }
                let head = String::from_utf8(head).expect("ASCII");
                let lines = head.split("\r\n").map(|line| match line.split_once(": ") {
                    Some((name, _)) if name.eq_ignore_ascii_case("host") => format!("Host: {host}"),
                    _ => line.to_owned(),
                });
                let head = lines.collect::<Vec<_>>().join("\r\n");
                let Ok(mut server) = TcpStream::connect(to).await else { return };
                server.set_nodelay(true).expect("nodelay");
                client.set_nodelay(true).expect("nodelay");
                server.write_all(head.as_bytes()).await.expect("write");
                // An error is ignored, because the test checks how each side ends.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

/// The Autobahn cases that take only seconds: all cases about the protocol, and the shortest cases about long messages
/// (group 9) and about compression (groups 12 and 13). The complete group 9, 12 or 13 takes minutes.
const QUICK_CASES: [&str; 20] = [
    "1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*", "9.1.1", "9.2.1", "9.3.1", "9.4.1", "9.5.1",
    "9.6.1", "9.7.1", "9.8.1", "12.1.1", "12.2.1", "13.1.1", "13.3.1",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn autobahns_quick_cases_have_the_same_outcome_as_without_the_proxy() {
    compare_with_autobahn(&QUICK_CASES).await;
}

/// The variable `BOTTLE_WSTEST_CASES` selects cases, such as `12.*,13.*`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes more than an hour, and needs Autobahn's program: `.ci/run soak`"]
async fn all_of_autobahns_cases_have_the_same_outcome_as_without_the_proxy() {
    let cases = std::env::var("BOTTLE_WSTEST_CASES").unwrap_or_else(|_| "*".to_owned());
    compare_with_autobahn(&cases.split(',').collect::<Vec<_>>()).await;
}

/// Runs cases of Autobahn with and without the proxy: first Autobahn's fuzzing client with Autobahn's own server, then
/// Autobahn's fuzzing server with Autobahn's own client. A case with the proxy must have the same outcome as without
/// the proxy, or a better outcome. `NON-STRICT` is also accepted: after a violation, the proxy closes both sides before
/// the answer to the preceding message can arrive.
///
/// `BOTTLE_WSTEST` is the program `wstest` of Autobahn's test suite, which needs Python 2.
#[expect(clippy::print_stderr, reason = "the figures are for who runs it with --nocapture")]
async fn compare_with_autobahn(cases: &[&str]) {
    let Some(wstest) = std::env::var_os("BOTTLE_WSTEST") else {
        return skip::aloud("Autobahn's cases", &"BOTTLE_WSTEST does not name Autobahn's program `wstest`");
    };
    let mut worse = Vec::new();
    for (mode, dlp) in [("scanned", ""), ("unscanned", UNSCANNED)] {
        for fuzzer in ["client", "server"] {
            let index = autobahn(&wstest, cases, fuzzer, dlp).await;
            let (direct, proxied) = (&index["direct"], &index["proxied"]);
            let outcomes = direct.as_object().expect("cases");
            assert!(!outcomes.is_empty());
            for (case, expected) in outcomes {
                for key in ["behavior", "behaviorClose"] {
                    let (with, without) = (&proxied[case][key], &expected[key]);
                    if with != without && with != "OK" && with != "NON-STRICT" {
                        worse.push(format!("{mode}, fuzzing {fuzzer}, {case} {key}: {with}, not {without}"));
                    }
                }
            }
            let (without, with) = (tally(direct), tally(proxied));
            eprintln!("{mode}, fuzzing {fuzzer}: without the proxy {without:?}, with it {with:?}");
        }
    }
    assert!(worse.is_empty(), "{} outcomes are worse: {worse:#?}", worse.len());
}

/// Counts the outcomes of all cases.
fn tally(outcomes: &serde_json::Value) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for outcome in outcomes.as_object().into_iter().flat_map(|cases| cases.values()) {
        *counts.entry(outcome["behavior"].as_str().unwrap_or("none")).or_default() += 1;
    }
    counts
}

/// Runs Autobahn. Returns the index of its report: the outcomes of `direct` (without the proxy) and `proxied`.
async fn autobahn(wstest: &OsStr, cases: &[&str], fuzzer: &str, dlp: &str) -> serde_json::Value {
    let run = |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(wstest);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.kill_on_drop(true).spawn().expect("wstest")
    };
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("address");
    // The relay changes the `Host` header, because Autobahn's server accepts only its own port in this header.
    let port = renaming(server, server.to_string()).await.port();
    let yaml = format!("routes:\n- host: {SITE}\n  ports: [80]\n  connect_to: '127.0.0.1:{port}'\n  {dlp}\n");
    let proxy = ProxyFixture::open().await;
    let proxy = ProxyFixture::with_routes(proxy.site.ca_pem(), yaml, |_| {}).await;
    let proxied = renaming(proxy.plain, SITE.to_owned()).await;
    let (direct, proxied) = (format!("ws://{server}"), format!("ws://{proxied}"));
    let reports = proxy.directory.path().join("reports");
    let spec = serde_json::json!({
        "url": direct, "outdir": reports, "cases": cases, "exclude-cases": [], "exclude-agent-cases": {},
        "servers": [{"agent": "direct", "url": direct}, {"agent": "proxied", "url": proxied}],
    });
    let file = proxy.directory.path().join("spec.json");
    std::fs::write(&file, spec.to_string()).expect("spec");
    let spec = file.to_str().expect("path");
    let starting = Duration::from_secs(3);
    let _server = if fuzzer == "client" {
        let server = run(&["-m", "testeeserver", "-w", &direct]);
        tokio::time::sleep(starting).await;
        run(&["-m", "fuzzingclient", "-s", spec]).wait().await.expect("wstest");
        server
    } else {
        let server = run(&["-m", "fuzzingserver", "-s", spec, "-u", "0"]);
        tokio::time::sleep(starting).await;
        for (agent, url) in [("direct", &direct), ("proxied", &proxied)] {
            run(&["-m", "testeeclient", "-w", url, "-i", agent]).wait().await.expect("wstest");
        }
        server
    };
    let index = std::fs::read_to_string(reports.join("index.json")).expect("a report");
    serde_json::from_str(&index).expect("JSON")
}
