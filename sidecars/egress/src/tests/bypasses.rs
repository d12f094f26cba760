//! Attempts to bypass the policy: requests that two parsers interpret differently, other methods, other names, and
//! certificates of other hosts. The tests check which requests arrive at the site.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bottle_protocol::session::bundle::Provision;
use bottle_test_support::authority::Alpn;
use bottle_test_support::server::{Server, handler};
use bottle_test_support::skip;
use bottle_test_support::upstream::{Leaf, Site};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::client::tunnel;
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, SITE};
use crate::upstream::dial::Dialer;
use crate::upstream::dns_lookup::HostResolver;
use crate::upstream::{Target, UpstreamError};

const URL: &str = "https://api.example.com/ok";

/// The key `matches` of the route, which allows only the path `/ok`.
const ONE: &str = "matches: [{paths: [{type: exact, value: /ok}]}]";

fn assert_untouched(proxy: &ProxyFixture, what: &str) {
    for visit in proxy.site.visits() {
        assert_eq!((visit.path.as_str(), visit.host.as_str()), ("/ok", SITE), "{what}: {visit:?}");
        let evil = visit.headers.iter().any(|(name, value)| name.contains("evil") || value.contains("evil"));
        assert!(!evil, "{what}: {visit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_no_smuggled_http1_request() {
    let site = Site { tls: false, ..Site::named(&[SITE]) };
    let route = "ports: [80]\n  matches: [{paths: [{type: exact, value: /ok}]}]";
    let proxy = ProxyFixture::with(FixtureOptions { site, route, ..FixtureOptions::default() }).await;
    let smuggled = "GET /evil HTTP/1.1\r\nHost: api.example.com\r\nX-Evil: 1\r\n\r\n";
    let post = "POST /ok HTTP/1.1\r\nHost: api.example.com\r\n";
    let heads = [
        format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n"),
        format!("{post}Content-Length: 0\r\nContent-Length: 61\r\n\r\n"),
        format!("{post}Content-Length: 0, 61\r\n\r\n"),
        format!("{post}Content-Length: +0\r\n\r\n"),
        format!("{post}Content-Length: 0x0\r\n\r\n"),
        format!("{post}Content-Length: -1\r\n\r\n"),
        format!("{post}Content-Length: 18446744073709551617\r\n\r\n"),
        format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{post} X-Evil: folded\r\n\r\n"),
        format!("{post}X: a\rX-Evil: 1\r\n\r\n"),
        format!("{post}X: a\nX-Evil\n: 1\r\n\r\n"),
        format!("{post}X: a\0X-Evil\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n0;\nx\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n0\nX-Evil: trailer\r\n\r\n"),
        "GET http://evil.example.org/ok HTTP/1.1\r\nHost: api.example.com\r\n\r\n".to_owned(),
        "GET http://api.example.com/ok HTTP/1.1\r\nHost: evil.example.org\r\n\r\n".to_owned(),
        "GET //evil.example.org/ok HTTP/1.1\r\nHost: api.example.com\r\n\r\n".to_owned(),
        "GET /ok HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.org\r\n\r\n".to_owned(),
        "GET /ok HTTP/1.1\r\nHost: api.example.com@evil.example.org\r\n\r\n".to_owned(),
        "GET /ok HTTP/1.1\r\nHost: api.example.com:80:80\r\n\r\n".to_owned(),
        "GET /evil\r\n".to_owned(),
        "GET /ok HTTP/1.1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n".to_owned(),
        "GET /ok\tHTTP/1.1\r\nHost: api.example.com\r\n\r\n".to_owned(),
    ];
    for port in [80, 9099] {
        for head in &heads {
            let mut socket = proxy.connect(port).await;
            // The proxy may close the connection before it has read all bytes.
            let _ = socket.write_all(format!("{head}{smuggled}").as_bytes()).await;
            let _ = socket.shutdown().await;
            let mut answer = Vec::new();
            let closed = timeout(Duration::from_secs(10), socket.read_to_end(&mut answer)).await;
            assert!(closed.is_ok(), "{port} {head:?}: {}", String::from_utf8_lossy(&answer));
            assert_untouched(&proxy, head);
        }
    }
    let before = proxy.site.visits().len();
    assert_eq!(proxy.curl(&["http://api.example.com/ok"]).await.status(), 200);
    assert_eq!(proxy.site.visits().len(), before + 1, "the control arrives");
}

/// Returns an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Encodes headers as literal HPACK header fields without indexing.
fn literal(headers: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    headers.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_no_request_smuggled_through_http2_headers() {
    // Upstream uses HTTP/1.1, where a line break would start another header or request.
    let site = Site { alpn: Alpn::Http1, ..Site::named(&[SITE]) };
    let proxy = ProxyFixture::with(FixtureOptions { site, route: ONE, ..FixtureOptions::default() }).await;
    let get: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", SITE), (":path", "/ok")];
    let with = |more: &[(&'static str, &'static str)]| [&get[..], more].concat();
    let instead = |name: &str, value: &'static str| {
        let mut changed = get.to_vec();
        changed.iter_mut().filter(|(known, _)| *known == name).for_each(|(_, old)| *old = value);
        changed
    };
    for (control, headers) in [
        (true, with(&[])),
        (false, with(&[("x", "a\r\nX-Evil: 1")])),
        (false, with(&[("x", "a\r\n\r\nGET /evil HTTP/1.1\r\nHost: api.example.com\r\n\r\n")])),
        (false, with(&[("x\r\nx-evil", "1")])),
        (false, with(&[("X-Evil", "1")])),
        (false, with(&[("x evil", "1")])),
        (false, with(&[("transfer-encoding", "chunked"), ("x-evil", "1")])),
        (false, with(&[("connection", "x-evil"), ("x-evil", "1")])),
        (false, with(&[("content-length", "50"), ("x-evil", "1")])),
        (false, with(&[("host", "evil.example.org")])),
        (false, with(&[(":path", "/evil")])),
        (false, with(&[("x", "1"), (":path", "/evil")])),
        (false, with(&[(":evil", "1")])),
        (false, instead(":authority", "evil.example.org")),
        (false, instead(":authority", "evil@api.example.com")),
        (false, instead(":path", "/ok HTTP/1.1\r\nX-Evil: 1")),
        (false, instead(":path", "//evil.example.org/ok")),
        (false, instead(":path", "https://evil.example.org/ok")),
        (false, instead(":path", "")),
        (false, instead(":method", "GET /evil HTTP/1.1\r\n\r\nGET")),
        (false, instead(":scheme", "http\r\nX-Evil: 1")),
    ] {
        let mut tls = tunnel(&proxy, SITE, &[b"h2"]).await;
        let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, b"")].concat();
        // The value 5 sets the flags END_HEADERS and END_STREAM.
        tls.write_all(&[hello, frame(1, 5, 1, &literal(&headers))].concat()).await.expect("write");
        // Reads frames until the response headers, a reset of the stream, a GOAWAY, or the end of the connection.
        let answered = async {
            loop {
                let mut head = [0; 9];
                if tls.read_exact(&mut head).await.is_err() {
                    return false;
                }
                let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                if tls.read_exact(&mut payload).await.is_err() || head[3] == 3 || head[3] == 7 {
                    return false;
                }
                if head[3] == 1 {
                    return true;
                }
            }
        };
        let answered = timeout(Duration::from_secs(10), answered).await;
        assert!(answered.is_ok(), "{headers:?} is neither answered nor refused");
        assert_eq!(control && answered == Ok(true), control, "{headers:?}");
        assert_untouched(&proxy, &format!("{headers:?}"));
    }
    assert!(!proxy.site.visits().is_empty(), "the control arrives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_bypasses_by_method_or_protocol() {
    let more = "- host: plain.example.com\n  ports: [80]\n  connect_to: '127.0.0.1:{site}'\n";
    let site = Site { tls: false, ..Site::named(&["plain.example.com"]) };
    let proxy =
        ProxyFixture::with(FixtureOptions { site, more_routes: more, ..FixtureOptions::default() }).await;
    for arguments in [
        &["-X", "TRACE", URL][..],
        &["-X", "TRACK", URL],
        &["-X", "trace", URL],
        &["-H", "X-HTTP-Method-Override: TRACE", URL],
        &["-X", "TRACE", "http://plain.example.com/ok"],
    ] {
        let answer = proxy.curl(arguments).await;
        let reason = answer.header("x-bottle-reason");
        assert_eq!((answer.status(), reason.as_deref()), (403, Some("method-refused")), "{arguments:?}");
    }
    assert!(proxy.site.visits().is_empty());
    // The proxy does not upgrade to h2c, and does not forward the upgrade headers.
    let answer = proxy.curl(&["--http2", "http://plain.example.com/ok"]).await;
    assert_eq!(answer.status(), 200);
    assert!(!answer.text().contains("101 Switching"), "{}", answer.text());
    let visit = proxy.site.visits().pop().expect("a visit");
    assert_eq!((visit.header("upgrade"), visit.header("http2-settings")), (None, None));
    // The proxy does not accept HTTP/2 with prior knowledge on port 80 either.
    let headers =
        [(":method", "GET"), (":scheme", "http"), (":authority", "plain.example.com"), (":path", "/evil")];
    let ask =
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, b""), &frame(1, 5, 1, &literal(&headers))];
    let mut socket = proxy.connect(80).await;
    // The proxy may close the connection before it has read all bytes.
    let _ = socket.write_all(&ask.concat()).await;
    let closed = timeout(Duration::from_secs(10), socket.read_to_end(&mut Vec::new())).await;
    assert!(closed.is_ok(), "it is still open");
    assert!(!proxy.site.visits().iter().any(|visit| visit.path == "/evil"));
    // The proxy strips the agent's credential on port 80 too, and no route can inject a credential there.
    assert_eq!(
        proxy.curl(&["-H", "Authorization: Bearer evil", "http://plain.example.com/ok"]).await.status(),
        200
    );
    let visit = proxy.site.visits().pop().expect("a visit");
    assert_eq!(visit.header("authorization"), None);
    let refused = proxy.reload(2, &format!("ports: [80]\n  {AUTH}"), "").expect_err("refused");
    assert!(refused.contains("80"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_literal_addresses() {
    let proxy = ProxyFixture::open().await;
    for (url, reasons) in [
        ("https://192.0.2.1/", &["host-not-allowed"][..]),
        ("https://[2001:db8::1]/", &["host-not-allowed"]),
        ("https://127.0.0.1/", &["host-not-allowed"]),
        ("https://169.254.169.254/latest/meta-data/", &["host-not-allowed"]),
        ("http://169.254.169.254/latest/meta-data/", &["host-not-allowed"]),
    ] {
        let answer = proxy.curl(&["--insecure", url]).await;
        let reason = answer.header("x-bottle-reason").unwrap_or_default();
        assert!(answer.status() == 403 && reasons.contains(&reason.as_str()), "{url}: {reason}");
    }
    // Spellings that some parsers interpret as an address.
    for host in ["3221225985", "0x7f000001", "0177.0.0.1", "127.1", "2130706433"] {
        let ask = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
        let mut socket = proxy.connect(9099).await;
        socket.write_all(ask.as_bytes()).await.expect("ask");
        let plain = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut other = proxy.connect(9099).await;
        other.write_all(plain.as_bytes()).await.expect("ask");
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(10), other.read_to_string(&mut answer)).await;
        assert!(read.is_ok() && answer.starts_with("HTTP/1.1 4"), "{host}: {answer}");
    }
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strips_credentials_of_the_agent() {
    let proxy = ProxyFixture::with(FixtureOptions::default()).await;
    for header in [
        "Authorization: Bearer evil-key",
        "authorization: Basic ZXZpbDprZXk=",
        "Proxy-Authorization: Basic ZXZpbDprZXk=",
        "Cookie: session=evil-key",
        "X-Api-Key: evil-key",
        "Api-Key: evil-key",
        "X-Auth-Token: evil-key",
        "X-Goog-Api-Key: evil-key",
        "PRIVATE-TOKEN: evil-key",
        "X-Authorization: evil-key",
        "X-Figma-Token: evil-key",
        "X_Figma_Token: evil-key",
        "X-Any-Service-Key: evil-key",
        "X-Goog-IAM-Authorization-Token: evil-key",
        "X-Sentry-Auth: evil-key",
        "X-Client-Secret: evil-key",
    ] {
        for version in ["--http1.1", "--http2"] {
            assert_eq!(proxy.curl(&[version, "-H", header, URL]).await.status(), 200, "{header}");
            assert_untouched(&proxy, header);
        }
    }
    // A parameter named `key` is stripped only if its value looks like a Google key.
    for key in ["api_key=", "access_token=", "key=AIza", "token=", "API_KEY=", "api%5Fkey="] {
        let answer = proxy.curl(&[&format!("{URL}?{key}evil-key&a=1")]).await;
        assert_eq!(answer.status(), 200, "{key}");
        let visit = proxy.site.visits().pop().expect("a visit");
        assert!(!visit.path.contains("evil"), "{key}: {}", visit.path);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_redirects_without_following_them() {
    let query_count = Arc::new(AtomicUsize::new(0));
    let answer =
        handler(Arc::clone(&query_count), |query_count: Arc<AtomicUsize>, _: Request<Incoming>| async move {
            query_count.fetch_add(1, Ordering::SeqCst);
            let to = "http://169.254.169.254/latest/meta-data/";
            let body = bottle_test_support::body::whole("elsewhere");
            Response::builder().status(302).header("location", to).body(body).ok()
        });
    let site = Server::start(0, None, answer).expect("a server");
    let proxy = ProxyFixture::open().await;
    let more = format!("- host: plain.example.com\n  ports: [80]\n  connect_to: '{}'\n", site.address());
    proxy.reload(2, AUTH, &more).expect("routes");
    let url = "http://plain.example.com/ok";
    assert_eq!(proxy.curl(&[url]).await.status(), 302);
    assert_eq!(query_count.load(Ordering::SeqCst), 1);
    // If the client follows the redirect, the proxy denies the request to the new host.
    let followed = proxy.curl(&["--location", url]).await;
    assert_eq!((followed.status(), query_count.load(Ordering::SeqCst)), (403, 2));
    assert_eq!(followed.header("x-bottle-reason").as_deref(), Some("host-not-allowed"));
}

/// `{"a":"CANARY","filler":"some words, …"}` in brotli. No byte of the text is stored uncompressed.
const BROTLI: &str = "G30AIIzTpTZUuVgjVPrUulK92XxyVKIagGeIgENOwO8nitsC4cLTi4pq5f/NxHTjtFKg7vhZfXKS+LdX0XrLuDVuFs5DqDvpv6mgowHMyGoH4rFM1WxEyULhPKdl14A/";
const CANARY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_a_secret_in_a_brotli_body() {
    let change = |provision: &mut Provision| provision.canary = Some(CANARY.into());
    let route = "dlp: {outbound_on_match: block}";
    let proxy = ProxyFixture::with(FixtureOptions { route, change, ..FixtureOptions::default() }).await;
    let file = proxy.directory.path().join("body");
    std::fs::write(&file, STANDARD.decode(BROTLI).expect("base64")).expect("file");
    let data = format!("@{}", file.display());
    let answer = proxy.curl(&["-H", "Content-Encoding: br", "--data-binary", &data, URL]).await;
    assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("secret-found"), "{}", answer.text());
    // If the body is truncated or declared with another coding, it cannot be decoded, and the request is denied.
    std::fs::write(&file, &STANDARD.decode(BROTLI).expect("base64")[..60]).expect("file");
    for coding in ["br", "gzip", "br, br"] {
        let coding = format!("Content-Encoding: {coding}");
        let answer = proxy.curl(&["-H", &coding, "--data-binary", &data, URL]).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("structure-refused"), "{coding}");
    }
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_malformed_certificate_chains_with_502() {
    for leaf in [Leaf::SelfSigned, Leaf::WrongOrder] {
        let site = Site { leaf, ..Site::named(&[SITE]) };
        let proxy = ProxyFixture::with(FixtureOptions { site, ..FixtureOptions::default() }).await;
        let answer = proxy.curl(&[URL]).await;
        let reason = answer.header("x-bottle-reason").unwrap_or_default();
        assert_eq!((answer.status(), reason.as_str()), (502, "upstream-untrusted"), "{leaf:?}");
        assert!(proxy.site.visits().is_empty());
    }
}

/// Starts a name server that answers the queries with `answers` in order. After the last answer, the name server
/// repeats this answer.
async fn name_server(answers: Vec<Vec<u8>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("address");
    let query_count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&query_count);
    tokio::spawn(async move {
        let mut question = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut question).await {
            let end = 12 + question[12..length].iter().position(|byte| *byte == 0).expect("a name") + 5;
            // The response to an AAAA query has no record.
            let records = if question[end - 3] == 28 {
                Vec::new()
            } else {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                answers[number.min(answers.len() - 1)].clone()
            };
            let count = u8::from(!records.is_empty()) * records.first().copied().unwrap_or_default();
            let head = [&question[..2], &[0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0]].concat();
            let answer = [&head, &question[12..end], records.get(1..).unwrap_or_default()].concat();
            let _ = socket.send_to(&answer, peer).await;
        }
    });
    (address, query_count)
}

/// Returns the number of records and then the records: one address for the queried name.
fn a_record(address: [u8; 4]) -> Vec<u8> {
    [&[1, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4][..], &address].concat()
}

/// Returns two records: a CNAME for the queried name, and the address of the canonical name.
fn cname_record(name: &str, address: [u8; 4]) -> Vec<u8> {
    let short = |length: usize| u8::try_from(length).expect("short");
    let label = |label: &str| [&[short(label.len())], label.as_bytes()].concat();
    let labels: Vec<u8> = name.split('.').flat_map(label).chain([0]).collect();
    let length = short(labels.len());
    let alias = [&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 0, 0, length][..], &labels].concat();
    let target = [&labels[..], &[0, 1, 0, 1, 0, 0, 0, 0, 0, 4], &address].concat();
    [vec![2], alias, target].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_names_that_resolve_to_internal_addresses() {
    let own: IpAddr = "192.0.2.77".parse().expect("address");
    let target = Target {
        host: "rebinding.example.com".into(),
        port: 9,
        tls: false,
        private: false,
        connect_to: None,
    };
    for (what, answers, expected) in [
        ("loopback", vec![a_record([127, 0, 0, 1])], "127.0.0.1"),
        ("private", vec![a_record([10, 0, 0, 1])], "10.0.0.1"),
        ("metadata", vec![a_record([169, 254, 169, 254])], "169.254.169.254"),
        ("a range for benchmarks", vec![a_record([198, 18, 0, 1])], "198.18.0.1"),
        ("a range for protocols", vec![a_record([192, 0, 0, 8])], "192.0.0.8"),
        ("the host's own", vec![a_record([192, 0, 2, 77])], "192.0.2.77"),
        ("an alias", vec![cname_record("inside.corp.example", [10, 1, 2, 3])], "10.1.2.3"),
        (
            "first outside, then inside",
            vec![a_record([203, 0, 113, 7]), a_record([127, 0, 0, 1])],
            "127.0.0.1",
        ),
    ] {
        let rebinds = answers.len() > 1;
        let (server, query_count) = name_server(answers).await;
        let resolver = HostResolver::with_server(server);
        let dialer = Dialer { resolver, host_addresses: vec![own], machine: None, proxy: None };
        if rebinds {
            // The proxy dials exactly the address that it resolved. So the test sends the first query itself, and the
            // query of `connect_tcp` receives the second answer.
            let addresses = dialer.resolver.look_up(&target.host).await.expect("addresses");
            assert_eq!(
                (addresses, query_count.load(Ordering::SeqCst)),
                (vec!["203.0.113.7".parse().expect("address")], 1)
            );
        }
        match dialer.connect_tcp(&target).await {
            Err(UpstreamError::Forbidden { address, .. }) => {
                assert_eq!(address.to_string(), expected, "{what}")
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_a_listed_name_that_resolves_to_an_internal_address() {
    const NAME: &str = "rebinding.example.com";
    for answer in [
        a_record([127, 0, 0, 1]),
        a_record([10, 0, 0, 1]),
        a_record([169, 254, 169, 254]),
        a_record([192, 0, 2, 77]),
        cname_record("inside.corp.example", [10, 1, 2, 3]),
    ] {
        let (server, query_count) = name_server(vec![answer.clone()]).await;
        let yaml = format!("routes:\n- host: {NAME}\n  ports: [80, 443]\n");
        let own: fn(&mut Provision) =
            |provision| provision.host_addresses = vec!["192.0.2.77".parse().expect("address")];
        let proxy = ProxyFixture::with_name_server(yaml, server, own).await;
        for scheme in ["http", "https"] {
            let response = proxy.curl(&[&format!("{scheme}://{NAME}/")]).await;
            let reason = response.header("x-bottle-reason").unwrap_or_default();
            assert_eq!(
                (response.status(), reason.as_str()),
                (403, "address-forbidden"),
                "{scheme} {answer:?}"
            );
        }
        assert!(query_count.load(Ordering::SeqCst) > 0, "the name server was asked");
    }
}

/// Runs OpenSSL, because the tests need certificates that the libraries of this program cannot create.
fn openssl(directory: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output().expect("openssl");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a certificate for a key of `bits` bits, signed by the directory's authority with `digest`.
fn certificate(directory: &Path, name: &str, bits: &str, digest: &str) {
    let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
    let subject = format!("/CN={SITE}");
    openssl(directory, &["genrsa", "-out", &key, bits]);
    openssl(directory, &["req", "-new", "-key", &key, "-subj", &subject, "-out", &request]);
    std::fs::write(directory.join("names"), format!("subjectAltName=DNS:{SITE}\n")).expect("names");
    let signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", "7", "-days", "2", "-extfile", "names"];
    let signed = [&["x509", "-req", "-in", &request, "-out", &certificate, digest], &signer[..]].concat();
    openssl(directory, &signed);
}

/// Starts OpenSSL's server with the certificate `name`. Returns the process and its port.
fn served_by_openssl(directory: &Path, name: &str) -> (Child, u16) {
    let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
    let mut server = Command::new("openssl")
        .args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cipher", "DEFAULT:@SECLEVEL=0"])
        .args(["-key", &key, "-cert", &certificate])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    let lines = BufReader::new(server.stdout.take().expect("output")).lines();
    let ready = lines.map_while(Result::ok).find(|line| line.starts_with("ACCEPT"));
    let port = ready.as_deref().and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    (server, port.unwrap_or_else(|| panic!("openssl s_server says no port: {ready:?}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_weak_certificates_with_502() {
    if Command::new("openssl").arg("version").output().is_err() {
        skip::aloud(
            "weak certificates",
            &"there is no openssl, which makes what this program's own libraries refuse to",
        );
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let root = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(directory.path(), &[&root[..], &["-subj", "/CN=weak", "-days", "2"]].concat());
    let roots = std::fs::read_to_string(directory.path().join("ca.pem")).expect("root");
    for (name, bits, digest, holds) in [
        // A valid certificate, to check that the proxy accepts this server.
        ("sound", "2048", "-sha256", true),
        ("short-key", "1024", "-sha256", false),
        ("sha1", "2048", "-sha1", false),
        ("md5", "2048", "-md5", false),
    ] {
        certificate(directory.path(), name, bits, digest);
        let (mut server, port) = served_by_openssl(directory.path(), name);
        let yaml = format!("routes:\n- host: {SITE}\n  connect_to: '127.0.0.1:{port}'\n");
        let proxy = ProxyFixture::with_routes(&roots, yaml, |_| {}).await;
        let answer = proxy.curl(&[URL]).await;
        let (status, reason) = (answer.status(), answer.header("x-bottle-reason"));
        server.kill().expect("killed");
        server.wait().expect("ended");
        let expected = if holds { (200, None) } else { (502, Some("upstream-untrusted".to_owned())) };
        assert_eq!((status, reason), expected, "{name}");
    }
}
