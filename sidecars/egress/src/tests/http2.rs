//! Attacks with many streams: each stream is within its limits, but all streams together would exhaust the machine's
//! memory.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{get2, http2, read};
use super::fixture::{ProxyFixture, SITE};
use crate::bounds;
use crate::inspect::decoded_memory::MAX_DECODED;

const WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decompressed_bodies_share_one_limit() {
    // `hello` in a stored block of brotli (RFC 7932, 9.2).
    const HELLO: &[u8] = b"\x40\0\x10hello\x03";
    let proxy = ProxyFixture::open().await;
    let mut sender = http2(&proxy, SITE).await;
    let mut send = async || {
        let body = Full::from(HELLO).map_err(|never| match never {}).boxed_unsync();
        let request = Request::post(format!("https://{SITE}/up")).header("content-encoding", "br").body(body);
        let (status, text) =
            read(sender.send_request(request.expect("a request")).await.expect("sent")).await;
        (status, String::from_utf8_lossy(&text).into_owned())
    };
    let mut others = proxy.egress.decoded_memory.part();
    others.grow(MAX_DECODED).expect("it is free");
    let (status, text) = send().await;
    assert!(status == 403 && text.contains("too many bodies are being decompressed"), "{status} {text}");
    drop(others);
    assert_eq!(send().await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_the_number_of_headers() {
    let proxy = ProxyFixture::open().await;
    let mut sender = http2(&proxy, SITE).await;
    for (count, expected) in [(bounds::HEADERS - 10, 200), (bounds::HEADERS + 1, 431)] {
        let mut request = get2(SITE, "/a");
        for _ in 0..count {
            request.headers_mut().append("a", http::HeaderValue::from_static("b"));
        }
        assert_eq!(sender.send_request(request).await.expect("an answer").status(), expected, "{count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_the_requests_that_wait() {
    let proxy = ProxyFixture::open().await;
    let streams = usize::try_from(bounds::STREAMS).expect("small");
    let most = bounds::REQUESTS + bounds::WAITING_REQUESTS;
    let (connections, mut sent) = (most / streams + 1, JoinSet::new());
    for _ in 0..connections {
        let sender = http2(&proxy, SITE).await;
        for _ in 0..streams {
            let mut sender = sender.clone();
            sent.spawn(async move {
                let response = sender.send_request(get2(SITE, "/wait/3000")).await.expect("an answer");
                let reason = response.headers().get("x-bottle-reason").cloned();
                (response.status().as_u16(), reason.map(|reason| reason.to_str().expect("text").to_owned()))
            });
        }
    }
    let mut answers = BTreeMap::new();
    while let Some(answer) = timeout(WITHIN, sent.join_next()).await.expect("every request ends") {
        *answers.entry(answer.expect("no panic")).or_insert(0) += 1;
    }
    let denied = connections * streams - most;
    let expected = [((200, None), most), ((502, Some("upstream-unreachable".to_owned())), denied)];
    assert_eq!(answers, BTreeMap::from(expected));
}
