//! Responses with unusual or contradictory framing, and clients that close their side of the connection first.

use std::time::Duration;

use bottle_policy::names::HTTP_PORT;
use bottle_test_support::authority::Alpn;
use bottle_test_support::upstream::Site;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::client::tunnel;
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, REAL, SITE};
use super::scripted_sites::{HEADERS, Http2Site, SiteStream, proxy_to, read_request, write};
use crate::bounds;

const WITHIN: Duration = Duration::from_secs(30);

/// Returns curl's output for a site that answers with `response`, then closes the connection without a `close_notify`.
async fn curl(route: &str, version: &str, response: Vec<u8>) -> (bool, String) {
    let (proxy, _) = proxy_to(Alpn::Http1, route, move |mut stream: SiteStream, _| {
        let response = response.clone();
        async move {
            if read_request(&mut stream).await.is_some() {
                write(&mut stream, &response).await;
            }
            let (mut socket, _) = stream.into_inner();
            let _ = socket.shutdown().await;
        }
    })
    .await;
    let answer = proxy.curl(&[version, &format!("https://{SITE}/a")]).await;
    let complete = answer.error().is_empty();
    (complete, answer.partial())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_may_end_with_the_connection() {
    let long = "y".repeat(300_000);
    for route in [AUTH, "dlp: {inbound_detectors: false}"] {
        for version in ["--http1.1", "--http2"] {
            for body in ["body", &long] {
                for head in ["HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"] {
                    let (complete, text) = curl(route, version, format!("{head}{body}").into()).await;
                    assert!(
                        complete && text.ends_with(&format!("\r\n\r\n{body}")),
                        "{version} {head}: {}",
                        text.len()
                    );
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_response_is_an_error() {
    let long = "y".repeat(300_000);
    for route in [AUTH, "dlp: {inbound_detectors: false}"] {
        for version in ["--http1.1", "--http2"] {
            for response in [
                format!("HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n{long}"),
                format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n61a80\r\n{long}"),
                format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n{long}\r\n"),
                "HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\nshort".to_owned(),
            ] {
                let (complete, text) = curl(route, version, response.into()).await;
                let denied = text.contains("upstream-unreachable");
                assert!(denied || !complete, "{version}: {}", &text[..text.len().min(300)]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_coding_overrides_a_content_length() {
    for route in [AUTH, "dlp: {inbound_detectors: false}"] {
        for version in ["--http1.1", "--http2"] {
            for length in [2, 13, 400] {
                let response = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\nd\r\nhello, world!\r\n0\r\n\r\n"
                );
                let (complete, text) = curl(route, version, response.into()).await;
                assert!(complete && text.ends_with("hello, world!"), "{version} {length}: {text}");
            }
        }
    }
}

/// An encoded response arrives completely, or the agent gets a denial. The agent never receives a truncated response
/// that appears complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_content_codings_arrive_whole_or_are_denied() {
    use std::io::Write;
    let gzip = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).expect("write");
        encoder.finish().expect("gzip")
    };
    let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    bare.write_all(b"hello, world").expect("write");
    let bare = bare.finish().expect("deflate");
    let whole = gzip(b"hello, world");
    let members = [gzip(b"hello, "), gzip(b"world")].concat();
    let cut = whole[..whole.len() - 6].to_vec();
    for (coding, body, arrives) in [
        ("gzip", &whole, true),
        ("x-gzip", &whole, true),
        ("GZIP", &whole, true),
        ("gzip, identity", &whole, true),
        ("gzip", &members, true),
        ("deflate", &bare, true),
        ("gzip", &cut, false),
        ("br", &whole, false),
        ("compress", &whole, false),
        ("utf-8", &whole, false),
    ] {
        for head in [format!("Content-Length: {}\r\n", body.len()), "Connection: close\r\n".to_owned()] {
            for version in ["--http1.1", "--http2"] {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n{head}\r\n");
                let (complete, received) = curl(AUTH, version, [head.as_bytes(), body].concat()).await;
                let denied = received.contains("structure-refused");
                assert!(complete && denied != arrives, "{coding} {version}: {received}");
                if arrives {
                    let expected = String::from_utf8_lossy(body).into_owned();
                    assert!(received.ends_with(&expected), "{coding} {version}: {received}");
                }
            }
        }
    }
}

/// A client of HTTP/1.1 receives the `Link` headers of early hints. The proxy redacts the injected credential in these
/// headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_the_links_of_early_hints() {
    let early = format!(
        "HTTP/1.1 103 bottle: wait\r\nLink: </a.css>; rel=preload\r\nLink: </{REAL}.js>\r\nx-bottle-reason: a\r\nSet-Cookie: b=c\r\n\r\n"
    );
    let last = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for (version, forwarded) in [("--http1.1", true), ("--http2", false), ("--http1.0", false)] {
        let (complete, text) = curl(AUTH, version, format!("{early}{early}{last}").into()).await;
        assert!(complete && text.ends_with("\r\n\r\nok"), "{version}: {text}");
        let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nLink: ";
        assert_eq!(text.matches(hint).count(), if forwarded { 2 } else { 0 }, "{version}: {text}");
        for absent in [REAL, "bottle: wait", "x-bottle", "b=c"] {
            assert!(!text.contains(absent), "{version}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_the_number_of_interim_responses() {
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    for version in ["--http1.1", "--http2"] {
        let flood = early.repeat(2000);
        let started = std::time::Instant::now();
        let (_, text) = curl(AUTH, version, format!("{flood}HTTP/1.1 200 OK\r\n\r\n").into()).await;
        assert!(text.contains("upstream-unreachable"), "{text}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

/// Tests many interim responses of an HTTP/2 site, because hyper does not count them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skips_interim_responses_of_http2_and_bounds_their_number() {
    /// The encoded header `:status: 103`. Index 8 of HPACK's static table is `:status`.
    const EARLY_HINTS: [u8; 5] = [8, 3, b'1', b'0', b'3'];
    const END_HEADERS: u8 = 4;
    for (count, reason) in
        [(2, None), (bounds::INTERIM_RESPONSES, None), (2000, Some("upstream-unreachable"))]
    {
        let (proxy, _) = proxy_to(Alpn::Http2, AUTH, move |stream, _| async move {
            let Some(mut site) = Http2Site::start(stream, 100).await else { return };
            while let Some(request) = site.request().await {
                for _ in 0..count {
                    site.send(HEADERS, END_HEADERS, request, &EARLY_HINTS).await;
                }
                if reason.is_none() {
                    site.answer(request, b"ok").await;
                }
            }
        })
        .await;
        // Without the limit, the proxy would wait for the response longer than curl does.
        let answer = proxy.curl(&[&format!("https://{SITE}/a")]).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), reason, "{count}: {}", answer.error());
        assert_eq!(answer.text().ends_with("\r\n\r\nok"), reason.is_none(), "{count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_a_client_that_closed_its_side() {
    let site = Site { tls: false, ..Site::named(&[SITE]) };
    let proxy =
        ProxyFixture::with(FixtureOptions { site, route: "ports: [80]", ..FixtureOptions::default() }).await;
    let mut client = proxy.connect(HTTP_PORT).await;
    let request = format!("GET /wait/300 HTTP/1.1\r\nHost: {SITE}\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("write");
    client.shutdown().await.expect("half-close");
    let mut answer = String::new();
    timeout(WITHIN, client.read_to_string(&mut answer)).await.expect("an end").expect("read");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_cancels_its_request() {
    for notifies in [true, false] {
        let (report, mut reports) = tokio::sync::mpsc::channel(2);
        let (proxy, _) = proxy_to(Alpn::Http1, AUTH, move |mut stream: SiteStream, _| {
            let report = report.clone();
            async move {
                if read_request(&mut stream).await.is_some() {
                    let _ = report.send("received").await;
                    // The site sends no response, so only the end of the connection ends this read.
                    let _ = stream.read(&mut [0]).await;
                    let _ = report.send("cancelled").await;
                }
            }
        })
        .await;
        let mut tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
        let request = format!("POST /a HTTP/1.1\r\nHost: {SITE}\r\nContent-Length: 2\r\n\r\nok");
        tls.write_all(request.as_bytes()).await.expect("write");
        assert_eq!(timeout(WITHIN, reports.recv()).await.expect("in time"), Some("received"));
        if notifies {
            tls.shutdown().await.expect("close_notify");
        } else {
            drop(tls);
        }
        assert_eq!(timeout(WITHIN, reports.recv()).await.expect("in time"), Some("cancelled"), "{notifies}");
    }
}
