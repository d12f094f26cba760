//! Trace logs at every level contain the span of a request, but no secret from the request.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::client::{TestBody, http1, http2, read};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, REAL, SITE};

/// The secrets in a request, one in each part of the request.
const SENT: [&str; 5] = [
    "ghp_PathTokenAAAAAAAAAAAAAAAAAAAAAAAAAAAA1",
    "ghp_QueryTokenAAAAAAAAAAAAAAAAAAAAAAAAAAA2",
    "ghp_HeaderTokenAAAAAAAAAAAAAAAAAAAAAAAAAA3",
    "ghp_BodyTokenAAAAAAAAAAAAAAAAAAAAAAAAAAAA4",
    "agents-own-credential-5f8e1c",
];

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.bytes().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn post(url: &str) -> Request<TestBody> {
    let [path, query, header, body, own] = SENT;
    Request::post(format!("{url}/v1/{path}?q={query}&k={REAL}"))
        .header("x-note", header)
        .header("authorization", format!("Bearer {own}"))
        .body(Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync())
        .expect("request")
}

#[tokio::test]
async fn no_level_logs_a_secret_of_a_request() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // The test needs a second dispatcher. With a single dispatcher, `tracing` asks only the current thread's dispatcher
    // whether a callsite is enabled, and caches the answer. Another test, on a thread without a dispatcher, would then
    // disable every callsite that it reaches first.
    let _second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish());
    // All tasks of the proxy run on this thread, so they use this subscriber.
    let _logging = tracing::subscriber::set_default(subscriber);
    for (dlp, status, outcome) in [
        ("{outbound_detectors: []}", 200, "upstream responded status=200"),
        ("{outbound_on_match: redact}", 200, "upstream responded status=200"),
        ("{outbound_on_match: block}", 403, "denied reason=\"secret-found\""),
    ] {
        let route: &'static str = format!("{AUTH}\n  dlp: {dlp}").leak();
        let proxy = ProxyFixture::with(FixtureOptions { route, ..FixtureOptions::default() }).await;
        log.bytes().clear();
        let mut request = post("");
        request.headers_mut().insert("host", SITE.parse().expect("value"));
        let response = http1(&proxy, SITE).await.send_request(request).await.expect("response");
        assert_eq!(read(response).await.0, status, "{dlp}");
        let request = post(&format!("https://{SITE}"));
        let response = http2(&proxy, SITE).await.send_request(request).await.expect("response");
        assert_eq!(read(response).await.0, status, "{dlp}");
        let text = String::from_utf8_lossy(&log.bytes()).into_owned();
        let ours: Vec<&str> = text.lines().filter(|line| line.contains(outcome)).collect();
        assert_eq!(ours.len(), 2, "{dlp}: {text}");
        for line in ours {
            for field in ["request{connection=", "method=\"POST\"", &format!("route={SITE}")] {
                assert!(line.contains(field), "{field}: {line}");
            }
        }
        for secret in SENT.into_iter().chain([REAL]) {
            let at = text.lines().find(|line| line.contains(secret));
            assert_eq!(at, None, "{dlp}: {secret}");
        }
    }
}
