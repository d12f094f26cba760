//! Bodies are streamed: chunks of any size arrive when upstream sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bottle_protocol::session::bundle::BundleEvent;
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::server::{Server, handler};
use bottle_test_support::upstream::Site;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};

use super::client::{get, get2, http1, http2, read};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, SITE};
use crate::bounds;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_server_sent_events_one_by_one() {
    let proxy = ProxyFixture::open().await;
    let pause = Duration::from_millis(150);
    let started = Instant::now();
    let request = get2(SITE, &format!("/sse/4/{}", pause.as_millis()));
    let mut answer = http2(&proxy, SITE).await.send_request(request).await.expect("answer");
    let mut arrived = Vec::new();
    while let Some(frame) = answer.frame().await {
        // The end of a stream may arrive as an empty frame.
        if frame.expect("frame").data_ref().is_some_and(|data| !data.is_empty()) {
            arrived.push(started.elapsed());
        }
    }
    assert_eq!(arrived.len(), 4, "{arrived:?}");
    // If the proxy buffered the chunks, they would arrive together. The test checks only sums of gaps, because a single
    // gap may have any length on a busy machine.
    assert!(arrived[3] - arrived[0] > pause, "{arrived:?}");
    assert!(arrived[3] >= 3 * pause, "{arrived:?}");
}

/// Each scan also scans the text before the new text again. So the proxy must scan at most once for each release of
/// text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_a_response_in_single_bytes_in_batches() {
    const LENGTH: usize = 30_000;
    let authority = Authority::new("bytes").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Http1).expect("config");
    let answer = handler(Arc::new(()), |_, _: Request<Incoming>| async move {
        let bytes = (0..LENGTH).map(|_| Ok(Frame::data(Bytes::from_static(b"x"))));
        let body = StreamBody::new(futures_util::stream::iter(bytes)).boxed();
        Some(Response::builder().header("content-type", "text/event-stream").body(body).expect("answer"))
    });
    let site = Server::start(0, Some(tls), answer).expect("server");
    let proxy = ProxyFixture::reopened_with_log(
        ProxyFixture::open().await,
        authority.pem(),
        site.address().port(),
        AUTH,
    );
    let mut answer = http1(&proxy.await, SITE).await.send_request(get(SITE, "/")).await.expect("answer");
    let (mut length, mut pieces) = (0, 0);
    while let Some(frame) = answer.frame().await {
        length += frame.expect("frame").data_ref().map_or(0, Bytes::len);
        pieces += 1;
    }
    assert_eq!(length, LENGTH);
    assert!(pieces < LENGTH / 4, "{pieces} pieces");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_large_bodies_whole() {
    let proxy = ProxyFixture::open().await;
    let size = 24 << 20;
    let request = get(SITE, &format!("/bytes/{size}"));
    let (status, body) = read(http1(&proxy, SITE).await.send_request(request).await.expect("answer")).await;
    assert_eq!((status.as_u16(), body.len()), (200, size));
    let chunk = Bytes::from(vec![b'u'; 64 << 10]);
    let frames = (0..256).map(move |_| Ok(Frame::data(chunk.clone())));
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    let request = Request::post(format!("https://{SITE}/up")).body(body).expect("request");
    let (_, body) = read(http2(&proxy, SITE).await.send_request(request).await.expect("answer")).await;
    let echo: serde_json::Value = serde_json::from_slice(&body).expect("echo");
    assert_eq!(echo["body_bytes"], 256 * (64 << 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_upload_receives_the_response_on_a_live_connection() {
    let proxy = ProxyFixture::open().await;
    let mut sender = http1(&proxy, SITE).await;
    // The proxy denies the first request before it forwards any byte. The second request fails upstream.
    for (host, path, expected) in [("evil.example.org", "/", 403), (SITE, "/close", 502)] {
        let chunk = Bytes::from(vec![b'u'; 64 << 10]);
        let frames = (0..24).map(move |_| Ok(Frame::data(chunk.clone())));
        let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
        let request = Request::post(path).header("host", host).body(body).expect("request");
        sender.ready().await.expect("the connection lives on");
        let (status, body) = read(sender.send_request(request).await.expect("an answer")).await;
        assert_eq!(status, expected, "{body:?}");
    }
    sender.ready().await.expect("the connection lives on");
    let (status, _) = read(sender.send_request(get(SITE, "/a")).await.expect("answer")).await;
    assert_eq!(status, 200);
}

/// Some clients of HTTP/2 report a failure if the proxy resets their stream while they are sending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_http2_upload_is_read_within_bounds() {
    let proxy = ProxyFixture::open().await;
    let chunk = Bytes::from(vec![b'u'; 64 << 10]);
    for (chunks, is_read) in [(24, true), (bounds::DRAIN_BYTES / chunk.len() * 2, false)] {
        let (sent, chunk) = (Arc::new(AtomicUsize::new(0)), chunk.clone());
        let count = Arc::clone(&sent);
        let frames = futures_util::stream::unfold(0, move |number| {
            let (chunk, count) = (chunk.clone(), Arc::clone(&count));
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                count.fetch_add(1, Ordering::SeqCst);
                (number < chunks).then(|| (Ok(Frame::data(chunk)), number + 1))
            }
        });
        let body = StreamBody::new(frames).boxed_unsync();
        let request = Request::post("https://evil.example.org/up").body(body).expect("request");
        let mut sender = http2(&proxy, "evil.example.org").await;
        let (status, _) = read(sender.send_request(request).await.expect("an answer")).await;
        assert_eq!(status, 403);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(sent.load(Ordering::SeqCst) > chunks, is_read, "{sent:?} of {chunks}");
        let kept = sender.send_request(get2("evil.example.org", "/")).await.expect("the connection lives on");
        assert_eq!(kept.status(), 403);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_a_truncated_response() {
    // The site uses HTTP/1.1, because an HTTP/2 reset may overtake data that was sent before the reset.
    let site = Site { alpn: Alpn::Http1, ..Site::named(&[SITE]) };
    let proxy = ProxyFixture::with(FixtureOptions { site, ..FixtureOptions::default() }).await;
    // No part of a short response has been released yet, so an error can replace it.
    let answer = http1(&proxy, SITE).await.send_request(get(SITE, "/cut/3")).await.expect("answer");
    assert_eq!(answer.status(), 502);
    let answer = http1(&proxy, SITE).await.send_request(get(SITE, "/cut/60000")).await.expect("answer");
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_routes_apply_from_the_next_request() {
    let proxy = ProxyFixture::open().await;
    let mut sender = http1(&proxy, SITE).await;
    let under_way = sender.send_request(get(SITE, "/drip/5/60")).await.expect("answer");
    let nothing_matches = "matches: [{paths: [{type: exact, value: /nothing}]}]";
    let live = proxy.reload(2, nothing_matches, "").expect("live");
    assert_eq!(live, BundleEvent::Live { revision: 2 });
    let (status, body) = read(under_way).await;
    assert_eq!((status.as_u16(), body.ends_with(b"line 4\n")), (200, true));
    sender.ready().await.expect("the connection is not dropped");
    let (status, _) = read(sender.send_request(get(SITE, "/a")).await.expect("answer")).await;
    assert_eq!(status, 403);
    proxy.reload(3, AUTH, "").expect("live");
    sender.ready().await.expect("nor now");
    let (status, _) = read(sender.send_request(get(SITE, "/a")).await.expect("answer")).await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_invalid_stale_or_credential_moving_routes() {
    let proxy = ProxyFixture::open().await;
    for (revision, route, more, word) in [
        (2, "portz: [443]", "", "portz"),
        (2, AUTH, "- host: evil.example.org\n  auth: {scheme: Bearer, slot: key}\n", "credential"),
        (2, "auth: {scheme: header, header: x-other-key, slot: key}", "", "credential"),
        (1, "", "", "revision"),
    ] {
        let why = proxy.reload(revision, route, more).expect_err(route);
        assert!(why.contains(word), "{why}");
        assert_eq!(proxy.egress.live.revision(), 1);
    }
    let (status, _) =
        read(http1(&proxy, SITE).await.send_request(get(SITE, "/a")).await.expect("answer")).await;
    assert_eq!(status, 200);
}
