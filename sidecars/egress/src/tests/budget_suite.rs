//! Sends 500 hostile requests for each API against a budget. A fake provider counts the tokens that each request really
//! uses, parses requests leniently, and completes a response even if the client has disconnected.
//!
//! A seed determines the requests. Each hostile request is an ordinary request with up to four changes that an attacker
//! would try. No token may be missing from the usage records. The provider may never have spent more tokens than the
//! limit plus those of one request.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_policy::decide::Reason;
use bottle_protocol::session::bundle::{BundleEvent, Written};
use bottle_protocol::session::lease::{LeaseAnswer, LeaseRequest};
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body, Pace, paced, whole};
use bottle_test_support::server::{Server, handler};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use serde_json::{Map, Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::client::{TestBody, http2};
use super::fixture::ProxyFixture;
use super::usage::{gzip, keeper_of};
use crate::test_proxy::connect_to_leases;

/// The number of hostile requests for each API.
const REQUESTS: usize = 500;

/// The number of requests that are sent at once. The test raises the limit before each batch.
const BATCH: usize = 25;

/// The tokens that each batch may use.
const ALLOWANCE: u64 = 6_000_000;

/// A request that contains this word refers to content that the provider has stored or that its tools read. This
/// content fills the context window.
const STORED: &str = "STORED";

/// The names of models, their context windows and their maximum outputs, in tokens.
const MODELS: [(&str, u64, u64); 5] = [
    ("claude-haiku-4-5", 200_000, 64_000),
    ("claude-opus-4-1", 200_000, 32_000),
    ("gpt-4o", 128_000, 16_384),
    ("gpt-5.1", 400_000, 128_000),
    ("mystery", 1_000_000, 120_000),
];

/// An API of a provider.
#[derive(Clone, Copy)]
struct Target {
    host: &'static str,
    path: &'static str,
    /// The name of the request field with the conversation. `limit` is the name of the request field with the output
    /// limit.
    prompt: &'static str,
    limit: &'static str,
}

const TARGETS: [Target; 3] = [
    Target { host: "api.anthropic.com", path: "/v1/messages", prompt: "messages", limit: "max_tokens" },
    Target {
        host: "api.openai.com",
        path: "/v1/chat/completions",
        prompt: "messages",
        limit: "max_completion_tokens",
    },
    Target { host: "api.openai.com", path: "/v1/responses", prompt: "input", limit: "max_output_tokens" },
];

/// A reproducible pseudorandom number generator (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("small")
    }

    fn one<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

// ---------------------------------------------------------------- the attacker

/// The time at which the client disconnects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    Never,
    BeforeTheHead,
    AfterTheFirstBytes,
}

/// A hostile request as the client sends it.
struct Hostile {
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    leaves: Leaves,
}

fn hostile(target: Target, dice: &mut Dice) -> Hostile {
    let (model, ..) = *dice.one(&MODELS);
    let text = match dice.below(5) {
        0 => "Hello there. ".repeat(1 + dice.below(500)),
        1 => " ".repeat(5000),
        2 => "7".repeat(1 + dice.below(9000)),
        3 => "\u{10348}{\"max_tokens\":1}\u{4f60}".repeat(1 + dice.below(300)),
        _ => "qZ7xK!".repeat(1 + dice.below(3000)),
    };
    let mut body = json!({"model": model, target.prompt: [{"role": "user", "content": text}], "stream": dice.below(2) == 0});
    if dice.below(3) > 0 {
        body[target.limit] = json!(1 + dice.below(9000));
    }
    for _ in 0..dice.below(3) {
        change(&mut body, target, dice);
    }
    let mut text = body.to_string();
    for _ in 0..dice.below(2) {
        text = respell(&text, target, dice);
    }
    let mut headers = vec![("content-type", "application/json")];
    let mut body = text.into_bytes();
    match dice.below(14) {
        0 => {
            headers.push(("content-encoding", "gzip"));
            body = gzip(&body);
        }
        1 => headers.push(("content-encoding", "gzip")),
        2 => headers.push(("content-encoding", "x-unknown")),
        3 => headers[0].1 = "application/x-www-form-urlencoded",
        4 => headers[0].1 = "application/json; charset=utf-16",
        5 => body = String::from_utf8_lossy(&body).encode_utf16().flat_map(u16::to_le_bytes).collect(),
        6 => body.splice(..0, *b"\xef\xbb\xbf").for_each(drop),
        7 => headers.push(("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")),
        _ => {}
    }
    let path = match dice.below(12) {
        0 => format!("{}/", target.path),
        1 => target.path.to_uppercase(),
        2 => format!("{}%20", target.path),
        3 => format!("{};x=1", target.path),
        4 => (*dice.one(&[
            "/v1/batches",
            "/v1/messages/batches",
            "/v1/files",
            "/v1/realtime/calls",
            "/v1/fine_tuning/jobs",
            "/v1/threads/runs",
            "/v1/completions",
        ]))
        .to_owned(),
        _ => target.path.to_owned(),
    };
    let leaves =
        *dice.one(&[Leaves::Never, Leaves::Never, Leaves::BeforeTheHead, Leaves::AfterTheFirstBytes]);
    Hostile { path, headers, body, leaves }
}

/// Makes one change to the content of a request.
fn change(body: &mut Value, target: Target, dice: &mut Dice) {
    let block = match dice.below(22) {
        0 => return set(body, "metadata", json!({"max_tokens": 1, "max_output_tokens": 1, "n": 1})),
        1 => return set(body, "background", json!(true)),
        2 => return set(body, "previous_response_id", json!(STORED)),
        3 => return set(body, "conversation", json!({"id": STORED})),
        4 => return set(body, "prompt", json!({"id": STORED})),
        5 => return set(body, "n", json!(2 + dice.below(4))),
        6 => return set(body, "models", json!(["mystery"])),
        7 => return set(body, "mcp_servers", json!([{"url": STORED}])),
        8 => return set(body, "container", json!(STORED)),
        9 => return set(body, "web_search_options", json!({"x": STORED})),
        10 => return set(body, "unknown_file_ids", json!([STORED])),
        11 => return set(body, "padding", json!("x ".repeat(9000))),
        12 => return set(body, target.limit, json!("9000")),
        13 => return set(body, target.limit, json!(9000.0)),
        14 => return set(body, "tools", json!([{"type": "web_search", "name": STORED}])),
        15 => return set(body, "tools", json!([{"type": "mcp", "server_url": STORED}])),
        16 => {
            return set(
                body,
                "tools",
                json!([{"name": "t", "input_schema": {"x".repeat(5000): {"7".repeat(3000): 1}}}]),
            );
        }
        17 => json!({"type": "input_file", "file_id": STORED}),
        18 => json!({"type": "image_url", "image_url": {"url": format!("https://x/{STORED}")}}),
        19 => json!({"type": "image", "source": {"type": "url", "url": format!("https://x/{STORED}")}}),
        20 => json!({"type": "document", "source": {"type": "base64", "data": STORED}}),
        _ => {
            let item = json!({"type": "item_reference", "id": STORED});
            body[target.prompt].as_array_mut().expect("a list").push(item);
            return;
        }
    };
    body[target.prompt].as_array_mut().expect("a list").push(json!({"role": "user", "content": [block]}));
}

fn set(body: &mut Value, field: &str, value: Value) {
    body[field] = value;
}

/// Writes the same request with other escapes or field names, or writes a request that two parsers could interpret
/// differently.
fn respell(text: &str, target: Target, dice: &mut Dice) -> String {
    let (open, rest) = text.split_at(1);
    let limit = target.limit;
    match dice.below(9) {
        0 => text.replace(limit, &limit.replacen('o', "\\u006f", 1)),
        1 => text.replace("background", "backgr\\u006fund").replace(STORED, "\\u0053TORED"),
        2 => format!("{open}\"{limit}\":1,{rest}"),
        3 => format!("{},\"{limit}\":9000}}", text.trim_end_matches('}')),
        4 => text.replace(limit, &limit.to_uppercase()),
        5 => text.replace(limit, "maxTokens"),
        6 => format!("[{text}]"),
        7 => format!("{}{text}", "\n ".repeat(9000)),
        _ => format!("{open}\"x\":{}1{},{rest}", "[".repeat(200), "]".repeat(200)),
    }
}

// ---------------------------------------------------------------- the provider

#[derive(Default)]
struct Provider {
    /// The tokens that all requests really used.
    spent: AtomicU64,
    /// The tokens of the most expensive request.
    largest: AtomicU64,
    served: AtomicUsize,
}

/// The tokens that a request really uses.
struct Used {
    prompt: u64,
    output: u64,
    streams: bool,
    background: bool,
}

async fn provide(provider: Arc<Provider>, request: Request<Incoming>) -> Option<Response<Body>> {
    let path = request.uri().path().to_owned();
    let headers = request.headers().clone();
    // A request that does not arrive completely uses no tokens.
    let body = request.into_body().collect().await.ok()?.to_bytes();
    let Some(used) = really_used(&path, &headers, &body) else {
        let mut response = Response::new(whole("{\"error\":{\"message\":\"bad request\"}}"));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Some(response);
    };
    let Used { prompt, output, .. } = used;
    provider.spent.fetch_add(prompt + output, Ordering::SeqCst);
    provider.largest.fetch_max(prompt + output, Ordering::SeqCst);
    provider.served.fetch_add(1, Ordering::SeqCst);
    if headers.contains_key("x-slow") {
        sleep(Duration::from_millis(150)).await;
    }
    let path = path.to_ascii_lowercase();
    Some(if used.background {
        Response::new(whole(r#"{"id":"r","status":"queued"}"#))
    } else if path.contains("messages") {
        messages(&used)
    } else if path.contains("chat") {
        chat(&used)
    } else {
        responses(&used)
    })
}

fn events(events: &[Value], last: &str) -> Response<Body> {
    let mut chunks: Vec<Bytes> = events.iter().map(|event| format!("data: {event}\n\n").into()).collect();
    chunks.push(Bytes::from(last.to_owned()));
    let mut response =
        Response::new(paced(chunks, Pace { delay: Duration::from_millis(5), cut_after: None }));
    response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a value"));
    response
}

fn messages(used: &Used) -> Response<Body> {
    let Used { prompt, output, streams, .. } = *used;
    if !streams {
        let usage = json!({"input_tokens": prompt, "output_tokens": output});
        return Response::new(whole(json!({"type": "message", "usage": usage}).to_string()));
    }
    let start = json!({"type": "message", "usage": {"input_tokens": prompt, "output_tokens": 1}});
    events(
        &[
            json!({"type": "message_start", "message": start}),
            json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi."}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}}),
            json!({"type": "message_stop"}),
        ],
        "",
    )
}

fn chat(used: &Used) -> Response<Body> {
    let usage = json!({"prompt_tokens": used.prompt, "completion_tokens": used.output});
    if !used.streams {
        return Response::new(whole(json!({"object": "chat.completion", "usage": usage}).to_string()));
    }
    // This provider does not report the usage of a stream unless the request asks for it.
    let delta = json!({"delta": {"content": "Hi."}, "finish_reason": "stop"});
    events(&[json!({"object": "chat.completion.chunk", "choices": [delta]})], "data: [DONE]\n\n")
}

fn responses(used: &Used) -> Response<Body> {
    let usage = json!({"input_tokens": used.prompt, "output_tokens": used.output});
    let response = json!({"object": "response", "usage": usage});
    if !used.streams {
        return Response::new(whole(response.to_string()));
    }
    events(
        &[
            json!({"type": "response.created", "response": {"object": "response"}}),
            json!({"type": "response.output_text.delta", "delta": "Hi."}),
            json!({"type": "response.completed", "response": response}),
        ],
        "",
    )
}

/// Reads a request as leniently as any server could. Returns `None` if the provider rejects the request.
fn really_used(path: &str, headers: &HeaderMap, body: &[u8]) -> Option<Used> {
    let path = path.to_ascii_lowercase().replace("%20", "");
    let path = path.split(';').next()?.trim_end_matches('/');
    let is_known = ["/messages", "/chat/completions", "/responses"].iter().any(|known| path.ends_with(known));
    if !is_known {
        return Some(Used { prompt: 400_000, output: 0, streams: false, background: true });
    }
    let mut text = body.to_vec();
    if headers.get("content-encoding").is_some_and(|coding| coding == "gzip")
        && body.starts_with(&[0x1f, 0x8b])
    {
        text.clear();
        flate2::read::GzDecoder::new(body).read_to_end(&mut text).ok()?;
    }
    if text.get(1) == Some(&0) {
        let wide: Vec<u16> = text.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        text = String::from_utf16(&wide).ok()?.into_bytes();
    }
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let mut parsed: Value = serde_json::from_slice(text).ok()?;
    if let Value::Array(mut list) = parsed {
        parsed = list.pop()?;
    }
    let fields = lenient(parsed.as_object()?);
    let name = fields.get("model").and_then(Value::as_str).unwrap_or_default();
    let (_, mut window, mut most) = *MODELS.iter().find(|(known, ..)| *known == name)?;
    if fields.contains_key("models") {
        (window, most) = (1_000_000, 120_000);
    }
    let limit = |key: &str| match fields.get(key)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let limits = ["maxtokens", "maxcompletiontokens", "maxoutputtokens"].iter().filter_map(|key| limit(key));
    let output = limits.fold(None, |most: Option<f64>, one| Some(most.map_or(one, |most| most.max(one))));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let output = output.map_or(most, |limit| limit as u64);
    let completions = fields.get("n").and_then(Value::as_u64).unwrap_or(1);
    let completions = if path.ends_with("completions") { completions } else { 1 };
    let read = ["messages", "input", "system", "tools"].iter().filter_map(|key| fields.get(*key));
    let mut prompt = read.map(tokens).sum::<u64>().min(window);
    if parsed.to_string().contains(STORED) {
        prompt = window.saturating_sub(output);
    }
    let is_true = |key| fields.get(key).is_some_and(|value| *value == json!(true));
    Some(Used {
        prompt,
        output: output * completions,
        streams: is_true("stream"),
        background: is_true("background") && path.ends_with("responses"),
    })
}

/// Returns the fields with their names in lower case and without separators.
fn lenient(fields: &Map<String, Value>) -> Map<String, Value> {
    let fold = |name: &str| name.to_lowercase().replace(['_', '-'], "");
    fields.iter().map(|(name, value)| (fold(name), value.clone())).collect()
}

/// Returns the tokens of all values and names in a JSON value, with a tokenizer that produces many tokens.
fn tokens(value: &Value) -> u64 {
    let text = |text: &str| {
        let quarters = |character: char| match character {
            'a'..='z' | 'A'..='Z' | ' ' => 1,
            '0'..='9' => 2,
            other => 2 * other.len_utf8() as u64,
        };
        text.chars().map(quarters).sum::<u64>() / 4
    };
    match value {
        Value::String(string) => text(string),
        Value::Array(list) => list.iter().map(tokens).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| text(name) + tokens(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

// ---------------------------------------------------------------- the keeper

/// A keeper with one budget limit.
#[derive(Default)]
struct Keeper {
    limit: AtomicU64,
    /// The tokens that the keeper granted and that were not returned.
    out: AtomicU64,
}

impl Keeper {
    async fn serve(self: Arc<Self>, mut stream: Stream) {
        let (mut granted, mut returned) = (0, 0);
        while let Ok(LeaseRequest { key, returned: back, needed, .. }) = stream.receive().await {
            returned = back;
            let needed_now = needed.unwrap_or(0);
            let fits = granted - returned + needed_now <= self.limit.load(Ordering::SeqCst);
            if fits {
                granted += needed_now;
            }
            self.out.store(granted - returned, Ordering::SeqCst);
            let answer = match (needed, fits || needed == Some(0)) {
                (None, _) => continue,
                (_, true) => LeaseAnswer::Granted { key, granted },
                (_, false) => {
                    LeaseAnswer::Denied { key, reason: Reason::BudgetSpent, why: "spent".to_owned() }
                }
            };
            if stream.message(&answer).await.is_err() {
                return;
            }
        }
        let _ = returned;
    }
}

// ---------------------------------------------------------------- the test

struct Suite {
    proxy: ProxyFixture,
    provider: Arc<Provider>,
    keeper: Arc<Keeper>,
    usage: Stream,
    recorded: u64,
    serving: JoinHandle<()>,
    _site: Server,
    _channel: Channel,
}

impl Suite {
    async fn start(host: &'static str) -> Self {
        let authority = Authority::new("budgets").expect("authority");
        let tls = authority.server_config(&[host], Leaf::Valid, Alpn::Both).expect("config");
        let provider = Arc::new(Provider::default());
        let site = Server::start(0, Some(tls), handler(Arc::clone(&provider), provide)).expect("server");
        let port = site.address().port();
        // The suite tests only budgets, so the route scans no requests.
        let yaml = format!(
            "routes:\n- host: {host}\n  connect_to: '127.0.0.1:{port}'\n  dlp: {{outbound_detectors: false}}\n"
        );
        let proxy = ProxyFixture::with_routes(authority.pem(), yaml, |_| {}).await;
        proxy.keeper.abort();
        let (channel, stream) = connect_to_leases(Arc::clone(&proxy.egress.leases)).await;
        let keeper = Arc::new(Keeper::default());
        let serving = tokio::spawn(Arc::clone(&keeper).serve(stream));
        let usage = keeper_of(&proxy).await;
        Self { proxy, provider, keeper, usage, recorded: 0, serving, _site: site, _channel: channel }
    }

    /// Sends requests concurrently, and waits until all of them are settled. Returns the number of requests that the
    /// proxy denied because it cannot meter them.
    async fn send(&mut self, host: &'static str, requests: Vec<Hostile>) -> usize {
        let client = http2(&self.proxy, host).await;
        let mut sent = JoinSet::new();
        for request in requests {
            sent.spawn(send(client.clone(), host, request));
        }
        let mut denied = 0;
        while let Some(reason) = timeout(Duration::from_secs(60), sent.join_next()).await.expect("in time") {
            denied += usize::from(reason.expect("no panic").as_deref() == Some("not-metered"));
        }
        drop(client);
        self.settle().await;
        denied
    }

    /// Waits until the proxy has created a record for every response, and adds up the records.
    async fn settle(&mut self) {
        let outbox = Arc::clone(&self.proxy.egress.outbox);
        let idle = async {
            while outbox.in_progress() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), idle).await.expect("every request ends");
        while let Ok(event) = timeout(Duration::from_millis(100), self.usage.receive()).await {
            let BundleEvent::Used { records } = event.expect("an event") else { panic!("no records") };
            self.recorded += records.iter().map(|one| one.tokens.counts(one.api).total()).sum::<u64>();
            self.usage.message(&Written {}).await.expect("acknowledged");
        }
    }

    /// Checks that no used token is missing from the records, and that the limit was not exceeded.
    fn check(&self, what: &str) {
        let spent = self.provider.spent.load(Ordering::SeqCst);
        let largest = self.provider.largest.load(Ordering::SeqCst);
        let limit = self.keeper.limit.load(Ordering::SeqCst);
        assert!(spent <= self.recorded, "{what}: {spent} tokens spent, {} recorded", self.recorded);
        assert!(spent <= limit + largest, "{what}: {spent} tokens spent, the limit is {limit}");
        assert!(
            self.recorded <= limit + largest.max(400_000),
            "{what}: {} recorded of {limit}",
            self.recorded
        );
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Sends a request. Returns the reason if the request is denied.
async fn send(mut client: SendRequest<TestBody>, host: &str, hostile: Hostile) -> Option<String> {
    let Hostile { path, headers, body, leaves } = hostile;
    let mut request = Request::post(format!("https://{host}{path}"));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if leaves == Leaves::BeforeTheHead {
        request = request.header("x-slow", "1");
    }
    let body: TestBody = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    let response = client.send_request(request.body(body).expect("a request"));
    let response = match leaves {
        Leaves::BeforeTheHead => timeout(Duration::from_millis(100), response).await.ok()?,
        Leaves::Never | Leaves::AfterTheFirstBytes => response.await,
    };
    let mut response = response.ok()?;
    let reason =
        response.headers().get("x-bottle-reason").map(|reason| reason.to_str().expect("text").to_owned());
    if leaves == Leaves::Never {
        let _ = response.into_body().collect().await;
    } else {
        let _ = response.body_mut().frame().await;
    }
    reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hostile_request_exceeds_a_budget() {
    for (number, target) in TARGETS.into_iter().enumerate() {
        let mut suite = Suite::start(target.host).await;
        let mut dice = Dice(number as u64);
        let mut denied = 0;
        for batch in 0..REQUESTS / BATCH {
            let limit = suite.keeper.out.load(Ordering::SeqCst) + ALLOWANCE;
            suite.keeper.limit.store(limit, Ordering::SeqCst);
            let requests = (0..BATCH).map(|_| hostile(target, &mut dice)).collect();
            denied += suite.send(target.host, requests).await;
            suite.check(&format!("{}, batch {batch}", target.path));
        }
        let served = suite.provider.served.load(Ordering::SeqCst);
        assert!(served > REQUESTS / 10 && denied > REQUESTS / 10, "{}: {served} {denied}", target.path);
    }
}

/// Sends 60 equal requests concurrently. Each request hides its cost. The budget suffices for only a few of these
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_requests_at_once_exceed_a_budget_by_one_at_most() {
    for target in TARGETS {
        for (rest, leaves) in [
            (json!({"metadata": {"max_tokens": 1, "max_output_tokens": 1}}), Leaves::Never),
            (json!({"previous_response_id": STORED, "stream": true}), Leaves::AfterTheFirstBytes),
            (json!({"stream": true}), Leaves::AfterTheFirstBytes),
            (json!({"max_tokens": 3000}), Leaves::BeforeTheHead),
        ] {
            let mut suite = Suite::start(target.host).await;
            suite.keeper.limit.store(500_000, Ordering::SeqCst);
            let requests = (0..60).map(|_| {
                let mut body =
                    json!({"model": "claude-opus-4-1", target.prompt: [{"role": "user", "content": "Hi"}]});
                body.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
                let headers = vec![("content-type", "application/json")];
                Hostile { path: target.path.to_owned(), headers, body: body.to_string().into_bytes(), leaves }
            });
            suite.send(target.host, requests.collect()).await;
            suite.check(&format!("{} {rest}", target.path));
        }
    }
}
