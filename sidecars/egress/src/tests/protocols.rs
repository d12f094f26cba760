//! All pairs of HTTP versions on both sides, kept-alive connections, WebSockets, and rare HTTP features.

use std::sync::Arc;

use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::server::{Server, handler};
use bottle_test_support::upstream::Site;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::client::{get, get2, http1, http2, no_body, read, tunnel};
use super::fixture::{FixtureOptions, ProxyFixture, REAL, SITE};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_uses_its_own_http_version() {
    for (alpn, upstream) in [(Alpn::Both, "HTTP/2.0"), (Alpn::Http1, "HTTP/1.1")] {
        let site = Site { alpn, ..Site::named(&[SITE]) };
        let proxy = ProxyFixture::with(FixtureOptions { site, ..FixtureOptions::default() }).await;
        let answer = http1(&proxy, SITE).await.send_request(get(SITE, "/a")).await.expect("answer");
        assert_eq!((answer.version(), answer.status()), (Version::HTTP_11, StatusCode::OK));
        let answer = http2(&proxy, SITE).await.send_request(get2(SITE, "/b")).await.expect("answer");
        assert_eq!((answer.version(), answer.status()), (Version::HTTP_2, StatusCode::OK));
        let seen: Vec<String> = proxy.site.visits().into_iter().map(|visit| visit.protocol).collect();
        assert_eq!(seen, [upstream, upstream]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decides_each_request_of_a_kept_alive_connection() {
    let matches = "matches: [{paths: [{type: prefix, value: /v1}]}]";
    let proxy = ProxyFixture::with(FixtureOptions { route: matches, ..FixtureOptions::default() }).await;
    let mut sender = http1(&proxy, SITE).await;
    for (path, expected) in [("/v1/a", 200), ("/v2/a", 403), ("/v1/b", 200), ("/v1/../x", 403)] {
        sender.ready().await.expect("kept alive");
        let (status, _) = read(sender.send_request(get(SITE, path)).await.expect(path)).await;
        assert_eq!(status, expected, "{path}");
    }
    let other = get("other.example.com", "/v1/a");
    sender.ready().await.expect("kept alive");
    let (status, body) = read(sender.send_request(other).await.expect("answer")).await;
    assert_eq!(status, 403);
    assert!(String::from_utf8_lossy(&body).contains("authority-mismatch"));
    assert_eq!(proxy.site.visits().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_share_one_http2_connection() {
    let proxy = ProxyFixture::open().await;
    let sender = http2(&proxy, SITE).await;
    let requests = (0..100).map(|n| {
        let mut sender = sender.clone();
        async move {
            let path = if n % 5 == 0 { format!("/wait/{n}") } else { format!("/echo/{n}") };
            sender.send_request(get2(SITE, &path)).await.expect("answer").status()
        }
    });
    let statuses = futures_util::future::join_all(requests).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(proxy.site.visits().len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_connect_inside_a_tunnel() {
    let proxy = ProxyFixture::open().await;
    let mut sender = http2(&proxy, SITE).await;
    let connect = Request::builder().method(Method::CONNECT).uri("evil.example.org:443");
    let answer = sender.send_request(connect.body(no_body()).expect("request")).await.expect("answer");
    assert_eq!(answer.status(), 403);
    let mut extended =
        Request::builder().method(Method::CONNECT).uri(format!("https://{SITE}/ws")).body(no_body());
    if let Ok(request) = &mut extended {
        request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
    }
    let refused = sender.send_request(extended.expect("request")).await;
    assert!(refused.is_err() || refused.is_ok_and(|answer| answer.status().is_client_error()));
    let kept = sender.send_request(get2(SITE, "/a")).await.expect("the connection lives on");
    assert_eq!(kept.status(), 200);
    assert_eq!(proxy.site.visits().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_a_websocket_with_the_real_credential() {
    let proxy = ProxyFixture::open().await;
    let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
    let (mut socket, answer) =
        tokio_tungstenite::client_async(format!("wss://{SITE}/ws"), tls).await.expect("101");
    assert_eq!(answer.status(), 101);
    for text in ["hello", "again"] {
        socket.send(Message::text(text)).await.expect("send");
        assert_eq!(socket.next().await.expect("echo").expect("message"), Message::text(text));
    }
    let seen = proxy.site.visits().pop().expect("visit");
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {REAL}").as_str()));
    socket.close(None).await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_only_after_upstream_does() {
    let proxy = ProxyFixture::open().await;
    let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
    let refused = tokio_tungstenite::client_async(format!("wss://{SITE}/status/404"), tls).await;
    assert!(matches!(refused, Err(Error::Http(answer)) if answer.status() == 404));
    let proxy =
        ProxyFixture::with(FixtureOptions { route: "websocket: refuse", ..FixtureOptions::default() }).await;
    let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
    let refused = tokio_tungstenite::client_async(format!("wss://{SITE}/ws"), tls).await;
    assert!(matches!(refused, Err(Error::Http(answer)) if answer.status() == 426));
    assert!(proxy.site.visits().is_empty());
    // The proxy does not report the denial that makes the client fall back, so the next denial is the first event.
    proxy.curl(&["https://other.example.com/"]).await;
    assert_eq!(proxy.denial().await.host, "other.example.com");
}

/// The shipped route for codex allows only POST requests. The proxy answers a WebSocket handshake, which is a GET
/// request, with status 426, because codex then falls back to plain HTTP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_an_unmatched_websocket_with_426() {
    let route =
        "websocket: refuse\n  matches: [{methods: [POST], paths: [{type: exact, value: /v1/responses}]}]";
    let proxy = ProxyFixture::with(FixtureOptions { route, ..FixtureOptions::default() }).await;
    let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
    let refused = tokio_tungstenite::client_async(format!("wss://{SITE}/v1/responses"), tls).await;
    assert!(matches!(refused, Err(Error::Http(answer)) if answer.status() == 426));
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_a_body_after_100_continue() {
    let proxy = ProxyFixture::open().await;
    let big = "x".repeat(200_000);
    let file = proxy.directory.path().join("body");
    std::fs::write(&file, &big).expect("file");
    let data = format!("@{}", file.display());
    let arguments =
        ["--http1.1", "-H", "Expect: 100-continue", "--data-binary", &data, "https://api.example.com/up"];
    let answer = proxy.curl(&arguments).await;
    assert!(answer.text().contains("HTTP/1.1 100 Continue"));
    assert_eq!(answer.json()["body_bytes"], big.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_trailers_in_both_directions() {
    let authority = Authority::new("trailers").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Http2).expect("config");
    let answer = handler(Arc::new(()), |_, request: Request<hyper::body::Incoming>| async move {
        let sent = request.into_body().collect().await.ok()?;
        let checksum = sent.trailers().and_then(|trailers| trailers.get("x-checksum")).cloned();
        let stolen = sent.trailers().is_some_and(|trailers| trailers.contains_key("authorization"));
        let status = if stolen { "stolen" } else { "0" };
        let trailers = HeaderMap::from_iter([
            (http::HeaderName::from_static("grpc-status"), HeaderValue::from_static(status)),
            (http::HeaderName::from_static("x-echo"), checksum?),
        ]);
        let frames = [Ok(Frame::data(Bytes::from_static(b"body"))), Ok(Frame::trailers(trailers))];
        Some(Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)))))
    });
    let site = Server::start(0, Some(tls), answer).expect("server");
    let pem = authority.pem().to_owned();
    let proxy = ProxyFixture::open().await;
    // The fixture's site is not used, because the roots and the route are replaced.
    let port = site.address().port();
    let proxy = ProxyFixture::reopened(proxy, &pem, port).await;
    let trailers = HeaderMap::from_iter([
        (http::HeaderName::from_static("x-checksum"), HeaderValue::from_static("abc")),
        (http::HeaderName::from_static("authorization"), HeaderValue::from_static("Bearer mine")),
    ]);
    let frames = [Ok(Frame::data(Bytes::from_static(b"sent"))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    let request = Request::post(format!("https://{SITE}/rpc")).header("te", "trailers").body(body);
    let mut sender = http2(&proxy, SITE).await;
    let answer = sender.send_request(request.expect("request")).await.expect("answer");
    let answer = answer.into_body().collect().await.expect("body");
    let trailers = answer.trailers().expect("trailers");
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-echo"]),
        (&"0".parse().expect("v"), &"abc".parse().expect("v"))
    );
}
