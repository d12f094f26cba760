//! Pooled connections to sites that limit streams, refuse requests or close connections, and requests that are sent
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bottle_test_support::authority::Alpn;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::{sleep, timeout};

use super::client::{TestBody, get2, http2, read};
use super::fixture::{ProxyFixture, SITE};
use super::scripted_sites::{
    GOAWAY, Http2Site, REFUSED_STREAM, RST_STREAM, SiteStream, proxy_to, read_request, write,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const NO_BODY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";

fn post2(path: &str, body: Vec<u8>) -> Request<TestBody> {
    let body: TestBody = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    Request::post(format!("https://{SITE}{path}")).body(body).expect("request")
}

async fn status(proxy: &ProxyFixture, request: Request<TestBody>) -> StatusCode {
    let mut sender = http2(proxy, SITE).await;
    let answer = timeout(Duration::from_secs(20), sender.send_request(request)).await.expect("in time");
    read(answer.expect("answer")).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opens_another_connection_when_the_streams_run_out() {
    // The site answers no request until six requests have arrived, and allows two concurrent requests on each
    // connection.
    let waiting = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&waiting);
    let (proxy, connections) = proxy_to(Alpn::Http2, "", move |stream: SiteStream, _| {
        let waiting = Arc::clone(&count);
        async move {
            let Some(mut site) = Http2Site::start(stream, 2).await else { return };
            let mut held = Vec::new();
            loop {
                match timeout(Duration::from_millis(20), site.request()).await {
                    Ok(Some(stream)) if held.len() < 2 => {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        held.push(stream);
                    }
                    Ok(Some(stream)) => site.send(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes()).await,
                    Ok(None) => return,
                    Err(_) if waiting.load(Ordering::SeqCst) >= 6 => {
                        for stream in held.drain(..) {
                            site.answer(stream, b"ok").await;
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    })
    .await;
    let sender = http2(&proxy, SITE).await;
    let answers = (0..6).map(|n| {
        let mut sender = sender.clone();
        async move { sender.send_request(get2(SITE, &format!("/{n}"))).await.expect("answer").status() }
    });
    let answers = timeout(Duration::from_secs(20), futures_util::future::join_all(answers)).await;
    assert_eq!(answers.expect("six concurrent streams"), [StatusCode::OK; 6]);
    assert!((3..=6).contains(&connections.load(Ordering::SeqCst)), "{connections:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_when_all_connections_are_at_their_limit() {
    let (proxy, connections) = proxy_to(Alpn::Http2, "", |stream: SiteStream, _| async move {
        let Some(mut site) = Http2Site::start(stream, 1).await else { return };
        while let Some(stream) = site.request().await {
            sleep(Duration::from_millis(20)).await;
            site.answer(stream, b"ok").await;
        }
    })
    .await;
    let sender = http2(&proxy, SITE).await;
    let answers = (0..40).map(|n| {
        let mut sender = sender.clone();
        async move { read(sender.send_request(get2(SITE, &format!("/{n}"))).await.expect("answer")).await.0 }
    });
    let answers = timeout(Duration::from_secs(30), futures_util::future::join_all(answers)).await;
    assert_eq!(answers.expect("all in turn"), [StatusCode::OK; 40]);
    assert!(connections.load(Ordering::SeqCst) <= 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaces_a_connection_that_allows_no_streams() {
    let (proxy, connections) = proxy_to(Alpn::Http2, "", |stream: SiteStream, _| async move {
        let Some(mut site) = Http2Site::start(stream, 100).await else { return };
        while let Some(stream) = site.request().await {
            site.limit(0).await;
            site.answer(stream, b"ok").await;
        }
    })
    .await;
    for n in 1..=3 {
        assert_eq!(status(&proxy, get2(SITE, "/")).await, 200);
        assert_eq!(connections.load(Ordering::SeqCst), n);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_an_unprocessed_request_again() {
    // On each connection, the site answers one request. The site answers the second request on a connection with a
    // refusal or with a GOAWAY, in turn.
    let (proxy, connections) = proxy_to(Alpn::Http2, "", |stream: SiteStream, number| async move {
        let Some(mut site) = Http2Site::start(stream, 100).await else { return };
        let Some(first) = site.request().await else { return };
        site.answer(first, b"ok").await;
        let Some(second) = site.request().await else { return };
        if number % 2 == 0 {
            site.send(RST_STREAM, 0, second, &REFUSED_STREAM.to_be_bytes()).await;
            if let Some(again) = site.request().await {
                site.answer(again, b"ok").await;
            }
        }
        site.send(GOAWAY, 0, 0, &[first.to_be_bytes(), 0_u32.to_be_bytes()].concat()).await;
        while site.frame().await.is_some() {}
    })
    .await;
    for n in 0..6 {
        // A POST is sent again too, because the site did not process it.
        assert_eq!(status(&proxy, post2("/", vec![b'x'; 20_000])).await, 200, "{n}");
    }
    assert!(connections.load(Ordering::SeqCst) >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_a_refused_request_again_only_once() {
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refusals);
    let (proxy, _) = proxy_to(Alpn::Http2, "", move |stream: SiteStream, _| {
        let refusals = Arc::clone(&count);
        async move {
            let Some(mut site) = Http2Site::start(stream, 100).await else { return };
            while let Some(stream) = site.request().await {
                refusals.fetch_add(1, Ordering::SeqCst);
                site.send(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes()).await;
            }
        }
    })
    .await;
    assert_eq!(status(&proxy, get2(SITE, "/")).await, 502);
    assert_eq!(refusals.load(Ordering::SeqCst), 2);
}

/// Starts a site that answers one request on each connection. The site closes the connection when it has read the
/// second request.
async fn closing_site() -> (ProxyFixture, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let (proxy, connections) = proxy_to(Alpn::Http1, "", move |mut stream: SiteStream, _| {
        let requests = Arc::clone(&count);
        async move {
            let Some((head, _)) = read_request(&mut stream).await else { return };
            requests.fetch_add(1, Ordering::SeqCst);
            write(&mut stream, if head.starts_with("HEAD ") { NO_BODY } else { OK }).await;
            if read_request(&mut stream).await.is_some() {
                requests.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    (proxy, connections, requests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_an_idempotent_request_after_a_close() {
    let (proxy, _, _) = closing_site().await;
    let url = format!("https://{SITE}/a");
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "GET"] {
        let arguments = if method == "HEAD" { vec!["--head", &url] } else { vec!["--request", method, &url] };
        assert_eq!(proxy.curl(&arguments).await.status(), 200, "{method}");
    }
    let body = "x".repeat(100_000);
    for _ in 0..3 {
        assert_eq!(proxy.curl(&["--request", "PUT", "--data-raw", &body, &url]).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_repeats_a_post_and_then_avoids_idle_connections() {
    let (proxy, _, requests) = closing_site().await;
    let url = format!("https://{SITE}/a");
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let answer = proxy.curl(&["--data-raw", "body", &url]).await;
        statuses.push(answer.status());
    }
    assert_eq!(statuses, [200, 502, 200, 200, 200, 200]);
    assert_eq!(requests.load(Ordering::SeqCst), 6, "no request arrived twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn does_not_repeat_a_request_on_a_new_connection() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let (proxy, _) = proxy_to(Alpn::Http1, "", move |mut stream: SiteStream, _| {
        let requests = Arc::clone(&count);
        async move {
            let _ = read_request(&mut stream).await;
            requests.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    assert_eq!(proxy.curl(&[&format!("https://{SITE}/a")]).await.status(), 502);
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}
