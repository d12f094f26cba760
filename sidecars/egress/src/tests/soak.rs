//! Soak test: the requests of several bottles during a day, in a few minutes. The test sends 200,000 requests of all
//! kinds, and replaces the routes every second. At any time, fifty requests wait for a user. No verdict may be wrong,
//! and no secret may leak. Every model response must be counted exactly once. Neither memory use nor the number of
//! descriptors may grow.
//!
//! `.ci/run soak` runs the complete test. `.ci/run` runs a shorter test, with fewer requests in `BOTTLE_SOAK_REQUESTS`.
//! The test needs a separate process, because it measures the memory of its process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bottle_channel::Stream;
use bottle_protocol::queue::Status;
use bottle_protocol::session::bundle::{BundleEvent, Written};
use bottle_protocol::usage::Usage;
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body as SiteBody, whole};
use bottle_test_support::server::{Server, handler};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use rand::{RngExt, SeedableRng};
use tokio::sync::{Mutex, watch};

use super::approval::user_after;
use super::client::{self, TestBody, get2, read};
use super::fixture::{ProxyFixture, SITE};
use super::usage::keeper_of;

const BOTTLES: usize = 3;
/// Number of concurrent agents in each bottle.
const AGENTS: usize = 4;
/// The default of `BOTTLE_SOAK_REQUESTS`.
const REQUESTS: usize = 200_000;
/// Number of requests that wait for a user, in all bottles together.
const WAITING: usize = 50;
/// How much the memory of the process may grow between the end of the warm-up and the end of the test, in bytes.
const GROWTH: u64 = 48 << 20;

const BLOCKING: &str = "block.example.com";
const REDACTING: &str = "redact.example.com";
const ASKING: &str = "ask.example.com";

/// A known secret of the launch.
const KNOWN: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

/// Whether the site received a secret.
static LEAKED: AtomicBool = AtomicBool::new(false);

struct Bottle {
    proxy: ProxyFixture,
    answered: AtomicU64,
    used: Mutex<HashMap<String, Usage>>,
    twice: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes and measures the memory of its process: `.ci/run soak`, and a short day in `.ci/run`"]
async fn a_day_of_several_bottles() {
    let requests = request_count();
    let authority = Authority::new("soak").expect("authority");
    let names = [SITE, BLOCKING, REDACTING, ASKING];
    let tls = authority.server_config(&names, Leaf::Valid, Alpn::Both).expect("config");
    let site = handler(Arc::new(()), |_, request| async move { Some(answer(request).await) });
    let site = Server::start(0, Some(tls), site).expect("server");
    let mut bottles = Vec::new();
    for _ in 0..BOTTLES {
        bottles.push(Arc::new(bottle(&authority, site.address().port()).await));
    }
    let (decide, decided) = watch::channel(false);
    let mut waiting = Vec::new();
    for (at, bottle) in (0..WAITING).zip(bottles.iter().cycle()) {
        waiting.push(tokio::spawn(waiting_request(Arc::clone(bottle), at)));
    }
    for bottle in &bottles {
        user_after(&bottle.proxy, Status::Approved, decided.clone()).await;
        tokio::spawn(keep(Arc::clone(bottle)));
        tokio::spawn(reload(Arc::clone(bottle), site.address().port()));
    }
    let begun = Instant::now();
    let done = Arc::new(AtomicUsize::new(0));
    let mut agents = Vec::new();
    for (number, bottle) in bottles.iter().cycle().take(BOTTLES * AGENTS).enumerate() {
        let share = requests / (BOTTLES * AGENTS);
        agents.push(tokio::spawn(agent(Arc::clone(bottle), number as u64, share, Arc::clone(&done))));
    }
    while done.load(Ordering::Relaxed) < requests / 10 {
        assert!(!agents.iter().any(tokio::task::JoinHandle::is_finished), "an agent ended early");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (warm, files) = (resident(), descriptors());
    for agent in agents {
        agent.await.expect("an agent's work");
    }
    let (end, files_at_end) = (resident(), descriptors());
    let took = begun.elapsed();
    assert!(waiting.iter().all(|request| !request.is_finished()), "a request did not wait for its user");
    decide.send_replace(true);
    for request in waiting {
        assert_eq!(request.await.expect("a waiting request"), StatusCode::OK);
    }
    for bottle in &bottles {
        bottle.counted_once().await;
    }
    assert!(!LEAKED.load(Ordering::SeqCst), "a secret arrived");
    let grown = end.saturating_sub(warm);
    assert!(grown < GROWTH, "{} MiB more in memory than when it was warm", grown >> 20);
    assert!(files_at_end <= files + 64, "{files} descriptors were open, now {files_at_end}");
    let model_responses: u64 = bottles.iter().map(|bottle| bottle.answered.load(Ordering::SeqCst)).sum();
    print(&format!(
        "{requests} requests in {:.0} s, {WAITING} waiting meanwhile, {model_responses} model responses counted once; memory {} MiB \
         when warm, {} at the end",
        took.as_secs_f64(),
        warm >> 20,
        end >> 20
    ));
}

fn request_count() -> usize {
    let value = std::env::var("BOTTLE_SOAK_REQUESTS").ok();
    value.map_or(REQUESTS, |value| value.parse().expect("BOTTLE_SOAK_REQUESTS: a number"))
}

/// Prints directly to standard error, so that the output also appears if the test passes.
#[allow(clippy::print_stderr, reason = "a test that measures prints its results")]
fn print(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

async fn bottle(authority: &Authority, port: u16) -> Bottle {
    let proxy = ProxyFixture::with_routes(authority.pem(), routes(port, true), |provision| {
        provision.ask_seconds = Some(3600);
        provision.known_secrets = vec![KNOWN.into()];
    })
    .await;
    Bottle { proxy, answered: AtomicU64::new(0), used: Mutex::default(), twice: AtomicUsize::new(0) }
}

/// Returns the routes, with or without `/sometimes`.
fn routes(port: u16, sometimes: bool) -> String {
    let paths = if sometimes { "[/get, /post, /v1, /sometimes]" } else { "[/get, /post, /v1]" };
    let paths = paths
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|path| format!("{{type: prefix, value: {path}}}"))
        .collect::<Vec<_>>()
        .join(", ");
    let more = |host: &str, on_match: &str| {
        format!(
            "- host: {host}\n  connect_to: '127.0.0.1:{port}'\n  dlp: {{outbound_on_match: {on_match}}}\n"
        )
    };
    format!(
        "routes:\n- host: {SITE}\n  connect_to: '127.0.0.1:{port}'\n  matches: [{{paths: [{paths}]}}]\n{}{}{}",
        more(BLOCKING, "block"),
        more(REDACTING, "redact"),
        more(ASKING, "supervise"),
    )
}

async fn answer(request: Request<Incoming>) -> Response<SiteBody> {
    let path = request.uri().path().to_owned();
    let asks = request.headers().get("host").is_some_and(|host| host == ASKING)
        || request.uri().host().is_some_and(|host| host == ASKING);
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if !asks && memchr::memmem::find(&body, KNOWN.as_bytes()).is_some() {
        LEAKED.store(true, Ordering::SeqCst);
    }
    let usage = format!("{{\"input_tokens\":{},\"output_tokens\":7}}", body.len());
    let (kind, text) = match path.as_str() {
        "/v1/messages" => {
            ("application/json", format!("{{\"type\":\"message\",\"model\":\"m-1\",\"usage\":{usage}}}"))
        }
        "/v1/stream/messages" => (
            "text/event-stream",
            format!(
                "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"type\":\"message\",\
                 \"model\":\"m-1\",\"usage\":{usage}}}}}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
            ),
        ),
        _ => ("text/plain", "well\n".to_owned()),
    };
    let mut response = Response::new(whole(text));
    response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
    response
}

/// Sends one of the fifty requests that wait for a user. Each of these requests has a different token.
async fn waiting_request(bottle: Arc<Bottle>, at: usize) -> StatusCode {
    let mut client = client::http1(&bottle.proxy, ASKING).await;
    let token = format!("glpat-Xk3Vw9QzR7tYp2LmN{at:03}");
    let request = post1(ASKING, "/post", format!("token = {token}"));
    read(client.send_request(request).await.expect("answered")).await.0
}

/// Replaces the routes every second until the test ends.
async fn reload(bottle: Arc<Bottle>, port: u16) {
    for revision in 2.. {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let yaml = routes(port, revision % 2 == 1);
        bottle.proxy.replace(revision, yaml).expect("routes");
    }
}

/// Acts as the keeper: receives usage records and acknowledges them.
async fn keep(bottle: Arc<Bottle>) {
    let mut stream: Stream = keeper_of(&bottle.proxy).await;
    while let Ok(BundleEvent::Used { records }) = stream.receive().await {
        let mut used = bottle.used.lock().await;
        for record in records {
            if used.insert(record.id.clone(), record).is_some() {
                bottle.twice.fetch_add(1, Ordering::SeqCst);
            }
        }
        drop(used);
        if stream.message(&Written {}).await.is_err() {
            return;
        }
    }
}

impl Bottle {
    /// Checks that every model response has one complete record, and that there are no other records.
    async fn counted_once(&self) {
        let answered = self.answered.load(Ordering::SeqCst);
        let until = Instant::now() + Duration::from_secs(60);
        while (self.used.lock().await.len() as u64) < answered && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let used = self.used.lock().await;
        assert_eq!(used.len() as u64, answered, "records and answers");
        assert_eq!(self.twice.load(Ordering::SeqCst), 0, "duplicate records");
        assert!(used.values().all(|usage| !usage.interrupted && usage.tokens.output == Some(7)));
    }
}

/// The kept-alive connections of an agent.
struct Agent {
    site: http2::SendRequest<TestBody>,
    blocking: http2::SendRequest<TestBody>,
    redacting: http1::SendRequest<TestBody>,
}

async fn agent(bottle: Arc<Bottle>, seed: u64, requests: usize, done: Arc<AtomicUsize>) {
    let mut dice = rand::rngs::StdRng::seed_from_u64(seed);
    let mut agent = Agent {
        site: client::http2(&bottle.proxy, SITE).await,
        blocking: client::http2(&bottle.proxy, BLOCKING).await,
        redacting: client::http1(&bottle.proxy, REDACTING).await,
    };
    let text = "a line of prose that an agent sends to a model, and nothing else in it\n".repeat(14);
    for _ in 0..requests {
        agent.ask(&bottle, &mut dice, &text).await;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Agent {
    async fn ask(&mut self, bottle: &Bottle, dice: &mut rand::rngs::StdRng, text: &str) {
        let json = format!("{{\"n\":{},\"text\":{}}}", dice.random::<u32>(), serde_json::json!(text));
        match dice.random_range(0..1000) {
            0..350 => self.site(get2(SITE, "/get"), StatusCode::OK, None).await,
            350..600 => self.site(post2(SITE, "/post", json), StatusCode::OK, None).await,
            600..680 => {
                self.site(post2(SITE, "/v1/messages", json), StatusCode::OK, None).await;
                bottle.answered.fetch_add(1, Ordering::SeqCst);
            }
            680..760 => {
                self.site(post2(SITE, "/v1/stream/messages", json), StatusCode::OK, None).await;
                bottle.answered.fetch_add(1, Ordering::SeqCst);
            }
            760..800 => {
                self.site(get2(SITE, "/never"), StatusCode::FORBIDDEN, Some("request-not-allowed")).await
            }
            800..850 => {
                let answer = self.site.send_request(get2(SITE, "/sometimes")).await.expect("answered");
                let reason = reason(&answer);
                let status = read(answer).await.0;
                let right = match reason.as_deref() {
                    None => status == StatusCode::OK,
                    Some(reason) => status == StatusCode::FORBIDDEN && reason == "request-not-allowed",
                };
                assert!(right, "{status} {reason:?}");
            }
            850..920 => {
                let request = post2(BLOCKING, "/post", format!("{{\"x\":\"{KNOWN}\"}}"));
                let answer = self.blocking.send_request(request).await.expect("answered");
                assert_eq!(reason(&answer).as_deref(), Some("secret-found"));
                assert_eq!(read(answer).await.0, StatusCode::FORBIDDEN);
            }
            920..998 => {
                self.redacting.ready().await.expect("ready");
                let request = post1(REDACTING, "/post", format!("{{\"x\":\"{KNOWN}\"}}"));
                let answer = self.redacting.send_request(request).await.expect("answered");
                assert_eq!(read(answer).await.0, StatusCode::OK);
            }
            _ => self.site(post2(SITE, "/post", text.repeat(2048)), StatusCode::OK, None).await,
        }
    }

    async fn site(&mut self, request: Request<TestBody>, status: StatusCode, why: Option<&str>) {
        let uri = request.uri().clone();
        let answer = self.site.send_request(request).await.expect("answered");
        let value = reason(&answer);
        assert_eq!((read(answer).await.0, value.as_deref()), (status, why), "{uri}");
    }
}

fn reason<B>(answer: &Response<B>) -> Option<String> {
    answer.headers().get("x-bottle-reason").and_then(|reason| reason.to_str().ok()).map(str::to_owned)
}

fn post1(host: &str, path: &str, text: String) -> Request<TestBody> {
    Request::post(path).header("host", host).body(full(text)).expect("request")
}

fn post2(host: &str, path: &str, text: String) -> Request<TestBody> {
    Request::post(format!("https://{host}{path}")).body(full(text)).expect("request")
}

fn full(text: String) -> TestBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// Returns the resident memory of this process in bytes (proc(5)). The process includes the clients and the site.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * rustix::param::page_size() as u64
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}
