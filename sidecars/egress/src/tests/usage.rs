//! Token usage of responses: the proxy counts tokens in every content coding, and stores each record until a keeper
//! acknowledges it.

use std::sync::Arc;
use std::time::Duration;

use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Written};
use bottle_protocol::usage::{Api, Source, Tokens, Usage, WAITING_FILE};
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Pace, paced, whole};
use bottle_test_support::server::{Server, handler};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::fixture::{AUTH, ProxyFixture, SITE};
use crate::test_proxy::keeper_stream;

const START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"type\":\"message\",\"model\":\"m-1\",\
                     \"usage\":{\"input_tokens\":11,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n";
const DELTA: &str =
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":22}}\n\n";
const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
const COMPLETION: &str =
    r#"{"object":"chat.completion","model":"m-2","usage":{"prompt_tokens":3,"completion_tokens":4}}"#;

/// A stream of events without token counts.
const SILENT: &str = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"content\":\
                      \"a text of 24 bytes here.\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

async fn answer(request: Request<Incoming>) -> Response<bottle_test_support::body::Body> {
    let path = request.uri().path().to_owned();
    // Reads the request before responding, as servers do.
    let _ = request.into_body().collect().await;
    let events = [START, DELTA, STOP].map(|text| Bytes::from_static(text.as_bytes()));
    let slow = |cut_after| Pace { delay: Duration::from_millis(30), cut_after };
    let stream = "text/event-stream";
    let (kind, coding, body) = match path.as_str() {
        "/v1/messages" => (stream, None, paced(events.to_vec(), slow(None))),
        "/cut/v1/messages" => (stream, None, paced(events.to_vec(), slow(Some(1)))),
        "/gzip/v1/messages" => {
            let coded = gzip(events.concat().as_slice());
            let pieces: Vec<Bytes> = coded.chunks(7).map(Bytes::copy_from_slice).collect();
            (stream, Some("gzip"), paced(pieces, Pace::default()))
        }
        "/zstd/v1/chat/completions" => {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            let coded = ruzstd::encoding::compress_to_vec(COMPLETION.as_bytes(), level);
            ("application/json", Some("zstd"), whole(coded))
        }
        "/forever/v1/messages" => {
            let rest = (0..10_000).map(|_| Bytes::from_static(b": still there\n\n"));
            let events = [Bytes::from_static(START.as_bytes())].into_iter().chain(rest);
            (stream, None, paced(events.collect::<Vec<Bytes>>(), slow(None)))
        }
        "/silent/v1/chat/completions" => (stream, None, whole(SILENT)),
        "/refused/v1/messages" => {
            let mut response = Response::new(whole("{\"type\":\"message\",\"usage\":{\"input_tokens\":1}}"));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        }
        "/mail/v1/messages" => ("application/json", None, whole("{\"id\":\"1\",\"message\":\"Queued.\"}")),
        _ => ("application/json", None, whole(COMPLETION)),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
    if let Some(coding) = coding {
        response.headers_mut().insert("content-encoding", HeaderValue::from_static(coding));
    }
    response
}

pub(super) fn gzip(text: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(text).expect("write");
    writer.finish().expect("finish")
}

struct Setup {
    proxy: ProxyFixture,
    _site: Server,
}

async fn setup(route: &str) -> Setup {
    let authority = Authority::new("usage").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Both).expect("config");
    let site = handler(Arc::new(()), |_, request| async move { Some(answer(request).await) });
    let site = Server::start(0, Some(tls), site).expect("server");
    let port = site.address().port();
    let proxy = ProxyFixture::open().await;
    Setup { proxy: ProxyFixture::reopened_with_log(proxy, authority.pem(), port, route).await, _site: site }
}

/// Returns the keeper's end of a usage stream to the proxy.
pub(super) async fn keeper_of(proxy: &ProxyFixture) -> bottle_channel::Stream {
    let outbox = Arc::clone(&proxy.egress.outbox);
    let serve = move |stream| {
        let outbox = Arc::clone(&outbox);
        async move { outbox.serve(stream).await }
    };
    keeper_stream(&BundleRequest::Usage, serve).await.1
}

impl Setup {
    async fn post(&self, path: &str) -> String {
        let url = format!("https://{SITE}{path}");
        let answer = self.proxy.curl(&["--compressed", "--data", "{}", &url]).await;
        answer.text()
    }

    /// Opens a stream as a keeper does.
    async fn keeper(&self) -> bottle_channel::Stream {
        keeper_of(&self.proxy).await
    }

    /// Receives and acknowledges `count` pending records.
    async fn receive_all(&self, count: usize) -> Vec<Usage> {
        let mut stream = self.keeper().await;
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(next_records(&mut stream).await);
            stream.message(&Written {}).await.expect("sent");
        }
        // Waits until the proxy has processed the acknowledgements. If the test dropped the stream earlier, the records
        // would be pending again.
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while self.pending_lines() > 0 {
            assert!(std::time::Instant::now() < until, "the file is emptied");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        all
    }

    /// Returns the number of lines in the file of pending records.
    fn pending_lines(&self) -> usize {
        let path = self.proxy.directory.path().join(WAITING_FILE);
        std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
    }
}

pub(super) async fn next_records(stream: &mut bottle_channel::Stream) -> Vec<Usage> {
    let event = tokio::time::timeout(Duration::from_secs(10), stream.receive()).await.expect("in time");
    match event.expect("an event") {
        BundleEvent::Used { records } => records,
        other => panic!("{other:?}"),
    }
}

fn tokens(input: u64, output: u64, cached: Option<u64>) -> Tokens {
    Tokens { input: Some(input), output: Some(output), cached, cache_written: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_each_model_response_once_and_forwards_it_unchanged() {
    // Tests a route with the default detectors, and a route without detectors for responses.
    for route in [AUTH, "dlp: {inbound_detectors: []}"] {
        let setup = setup(route).await;
        let streamed = [START, DELTA, STOP].concat();
        for (path, text, interrupted, expected) in [
            ("/v1/messages", streamed.as_str(), false, tokens(11, 22, Some(5))),
            ("/gzip/v1/messages", &streamed, false, tokens(11, 22, Some(5))),
            ("/v1/chat/completions", COMPLETION, false, tokens(3, 4, None)),
            ("/zstd/v1/chat/completions", COMPLETION, false, tokens(3, 4, None)),
        ] {
            if path.starts_with("/zstd") {
                // Some builds of curl cannot decode this coding.
                let url = format!("https://{SITE}{path}");
                setup.proxy.curl(&["--data", "{}", "--output", "/dev/null", &url]).await;
            } else {
                assert!(setup.post(path).await.ends_with(text), "{path}");
            }
            let records = setup.receive_all(1).await;
            assert_eq!(records.len(), 1, "{path}");
            let record = &records[0];
            assert_eq!((record.tokens, record.interrupted), (expected, interrupted), "{path}");
            assert_eq!((record.estimated, record.provider_route, record.source), (false, false, None));
            assert_eq!((record.host.as_str(), record.provider.as_str()), (SITE, SITE));
            let api = if path.ends_with("messages") { Api::Messages } else { Api::ChatCompletions };
            assert_eq!(record.api, api);
            assert!(record.model.as_deref().is_some_and(|model| model.starts_with("m-")));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_truncated_responses_as_interrupted() {
    let setup = setup(AUTH).await;
    let url = format!("https://{SITE}/cut/v1/messages");
    let answer = setup.proxy.curl(&["--data", "{}", &url]).await;
    assert!(!answer.error().is_empty(), "the client sees the truncation");
    // The client disconnects before the response ends.
    let url = format!("https://{SITE}/forever/v1/messages");
    let answer = setup.proxy.curl(&["--max-time", "0.5", "--data", "{}", &url]).await;
    assert!(answer.error().contains("timed out"), "{}", answer.error());
    let records = setup.receive_all(2).await;
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!((record.tokens, record.interrupted), (tokens(11, 1, Some(5)), true));
        assert!(record.estimated);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimates_the_tokens_of_an_unreported_response_from_both_bodies() {
    let setup = setup(AUTH).await;
    let url = format!("https://{SITE}/silent/v1/chat/completions");
    let header = "x-claude-code-agent-id: a1";
    let request = "x".repeat(3000);
    let answer = setup.proxy.curl(&["--header", header, "--data", &request, &url]).await;
    assert!(answer.text().contains("a text of 24 bytes here."), "{}", answer.text());
    let records = setup.receive_all(1).await;
    let record = &records[0];
    assert_eq!((record.tokens, record.interrupted), (tokens(1000, 8, None), false));
    assert_eq!((record.estimated, record.source), (true, Some(Source::Subagent)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_only_model_responses() {
    let setup = setup(AUTH).await;
    for path in ["/refused/v1/messages", "/mail/v1/messages", "/v1/messages/count_tokens", "/v1/models"] {
        setup.post(path).await;
    }
    let url = format!("https://{SITE}/v1/messages");
    setup.proxy.curl(&[&url]).await;
    assert_eq!(setup.pending_lines(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_records_on_disk_until_they_are_acknowledged() {
    let setup = setup(AUTH).await;
    for _ in 0..3 {
        setup.post("/v1/chat/completions").await;
    }
    assert_eq!(setup.pending_lines(), 3);
    let mut first = setup.keeper().await;
    let first_ids: Vec<String> = next_records(&mut first).await.into_iter().map(|usage| usage.id).collect();
    assert_eq!(first_ids.len(), 3);
    // The keeper disconnects before it acknowledges the records.
    drop(first);
    assert_eq!(setup.pending_lines(), 3);
    let again: Vec<String> = setup.receive_all(3).await.into_iter().map(|usage| usage.id).collect();
    assert_eq!(again, first_ids);
    setup.post("/v1/chat/completions").await;
    assert_eq!(setup.pending_lines(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_responses_in_flight_at_shutdown() {
    let setup = setup(AUTH).await;
    let mut keeper = setup.keeper().await;
    let url = format!("https://{SITE}/forever/v1/messages");
    let seen = setup.proxy.directory.path().join("seen");
    let arguments = ["--data", "{}", "--no-buffer", "--output", seen.to_str().expect("text"), url.as_str()];
    let request = setup.proxy.curl(&arguments);
    let shutdown = async {
        while !std::fs::read_to_string(&seen).unwrap_or_default().contains("still there") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(setup.proxy.egress.outbox.in_progress(), 1);
        let settled = tokio::spawn({
            let outbox = Arc::clone(&setup.proxy.egress.outbox);
            async move { outbox.settle().await }
        });
        let records = next_records(&mut keeper).await;
        keeper.message(&Written {}).await.expect("sent");
        settled.await.expect("settled");
        records
    };
    tokio::select! {
        _ = request => panic!("the response never ends"),
        records = shutdown => {
            assert_eq!(records.len(), 1);
            assert_eq!((records[0].tokens, records[0].interrupted), (tokens(11, 1, Some(5)), true));
        }
    }
    assert_eq!(setup.pending_lines(), 0);
}
