//! Budgets: the proxy sends no byte of a request to a model before the request's tokens are reserved. The response
//! settles the reserved tokens.

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_meter::MeteredRequest;
use bottle_policy::decide::Reason;
use bottle_protocol::session::bundle::{ModelRules, Written};
use bottle_protocol::session::lease::{BudgetKey, LeaseAnswer, LeaseRequest};
use bottle_protocol::usage::{Api, WAITING_FILE, WaitingLine};
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::whole;
use bottle_test_support::server::{Server, handler};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::fixture::{Curl, ProxyFixture, SITE};
use crate::test_proxy::connect_to_leases;

/// A response of 3 + 4 tokens.
const COMPLETION: &str =
    r#"{"object":"chat.completion","model":"m-2","usage":{"prompt_tokens":3,"completion_tokens":4}}"#;

/// A response of 3 + 4 tokens in the format of the Messages API.
const MESSAGE: &str = r#"{"type":"message","model":"m-1","usage":{"input_tokens":3,"output_tokens":4}}"#;

/// A proxy, a model behind it, and a keeper whose answers come from the test.
struct Setup {
    proxy: ProxyFixture,
    _site: Server,
    /// The paths of the requests that reached the model. For a request to count tokens, the text is the path followed
    /// by the body.
    served: mpsc::Receiver<String>,
    keeper: Stream,
    _channel: Channel,
}

async fn setup() -> Setup {
    setup_with(ModelRules::default()).await
}

/// Starts a proxy with the keys `route` of the route, and starts a model that responds to every request.
async fn setup_with_route(route: &str) -> (ProxyFixture, Stream, Server, Channel) {
    let authority = Authority::new("lease").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Both).expect("config");
    let site = handler(Arc::new(()), |_, request: Request<Incoming>| async move {
        let _ = request.into_body().collect().await;
        Some(Response::new(whole(COMPLETION)))
    });
    let site = Server::start(0, Some(tls), site).expect("server");
    let proxy = ProxyFixture::open().await;
    let port = site.address().port();
    let proxy = ProxyFixture::reopened_with_log(proxy, authority.pem(), port, route).await;
    proxy.keeper.abort();
    let (channel, keeper) = connect_to_leases(Arc::clone(&proxy.egress.leases)).await;
    (proxy, keeper, site, channel)
}

async fn setup_with(rules: ModelRules) -> Setup {
    let authority = Authority::new("lease").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Both).expect("config");
    let (sender, served) = mpsc::channel(16);
    let site = handler(
        Arc::new(sender),
        |sender: Arc<mpsc::Sender<String>>, request: Request<Incoming>| async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            if path.ends_with("/count_tokens") {
                let counted = format!("{path} {}", String::from_utf8_lossy(&body));
                sender.send(counted).await.expect("the test runs");
                return Some(Response::new(whole(r#"{"input_tokens":7777}"#)));
            }
            sender.send(path.clone()).await.expect("the test runs");
            if path.starts_with("/refused") {
                let mut refused = Response::new(whole("{}"));
                *refused.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                return Some(refused);
            }
            if path.starts_with("/slow") {
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            Some(Response::new(whole(if path.ends_with("/messages") { MESSAGE } else { COMPLETION })))
        },
    );
    let site = Server::start(0, Some(tls), site).expect("server");
    let proxy = ProxyFixture::open().await;
    let port = site.address().port();
    let proxy = ProxyFixture::reopened_with_rules(proxy, authority.pem(), port, rules).await;
    proxy.keeper.abort();
    let (channel, keeper) = connect_to_leases(Arc::clone(&proxy.egress.leases)).await;
    Setup { proxy, _site: site, served, keeper, _channel: channel }
}

pub(super) fn key() -> BudgetKey {
    BudgetKey::Host(SITE.to_owned())
}

/// The body of a request with an output limit of 100 tokens.
const BODY: &str = r#"{"max_tokens":100,"messages":[{"role":"user","content":"12345"}]}"#;

/// The tokens that are reserved for [`BODY`].
fn cost() -> u64 {
    prompt_of(Api::ChatCompletions, BODY) + 100
}

/// The header without which the proxy does not treat a body as JSON.
pub(super) const JSON: [&str; 2] = ["--header", "content-type: application/json"];

/// The estimated tokens of the prompt in a body.
pub(super) fn prompt_of(api: Api, body: &str) -> u64 {
    let request = MeteredRequest::read(api, body.as_bytes(), &std::hash::RandomState::new(), false);
    request.expect("a request").prompt()
}

async fn post(proxy: &ProxyFixture, path: &str) -> Curl {
    post_body(proxy, path, BODY).await
}

async fn post_body(proxy: &ProxyFixture, path: &str, body: &str) -> Curl {
    let url = format!("https://{SITE}{path}");
    proxy.curl(&[&JSON[..], &["--data-binary", body, &url]].concat()).await
}

pub(super) async fn asked(keeper: &mut Stream) -> LeaseRequest {
    let request = tokio::time::timeout(Duration::from_secs(10), keeper.receive()).await.expect("in time");
    request.expect("a request")
}

pub(super) async fn answer(keeper: &Stream, answer: LeaseAnswer) {
    keeper.message(&answer).await.expect("sent");
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_leaves_before_the_tokens_are_reserved() {
    let Setup { proxy, mut served, mut keeper, _site, _channel } = setup().await;
    let client = post(&proxy, CHAT);
    let grant = async {
        let request = asked(&mut keeper).await;
        assert_eq!((request.key, request.granted, request.needed), (key(), 0, Some(cost())));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(served.try_recv().is_err(), "the request reached the model");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: cost() + 40 }).await;
    };
    let (response, ()) = tokio::join!(client, grant);
    assert_eq!(response.status(), 200);
    // The response used 7 tokens, so the lease has enough tokens for the next request.
    assert_eq!(post(&proxy, CHAT).await.status(), 200);
    answer(&keeper, LeaseAnswer::Revoked).await;
    let returned = asked(&mut keeper).await;
    assert_eq!((returned.granted, returned.returned, returned.needed), (cost() + 40, cost() + 26, None));
    let third = post(&proxy, CHAT);
    let deny = async {
        let needed = asked(&mut keeper).await;
        assert_eq!(
            (needed.granted, needed.returned, needed.needed),
            (cost() + 40, cost() + 26, Some(cost()))
        );
        let why = "the budget of host for claude has 5 of 10 tokens left".to_owned();
        answer(&keeper, LeaseAnswer::Denied { key: key(), reason: Reason::BudgetSpent, why }).await;
    };
    let (denied, ()) = tokio::join!(third, deny);
    assert_eq!(denied.status(), 400);
    assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("budget-spent"));
    let sentence = denied.json()["sentence"].as_str().unwrap_or_default().to_owned();
    assert!(
        sentence.ends_with("denied: the budget of host for claude has 5 of 10 tokens left."),
        "{sentence}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_keeper_gets_the_requests_that_wait() {
    let Setup { proxy, served: _served, mut keeper, _channel, _site } = setup().await;
    let client = post(&proxy, CHAT);
    let keepers = async {
        let first = asked(&mut keeper).await;
        drop((keeper, _channel));
        let (_channel, mut keeper) = connect_to_leases(Arc::clone(&proxy.egress.leases)).await;
        assert_eq!(asked(&mut keeper).await, first);
        answer(&keeper, LeaseAnswer::Unlimited { key: key() }).await;
        // Further requests need no answer of the keeper.
        assert_eq!(post(&proxy, CHAT).await.status(), 200);
    };
    let (response, ()) = tokio::join!(client, keepers);
    assert_eq!(response.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_pays_what_was_reserved() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup().await;
    let mut usage = super::usage::keeper_of(&proxy).await;
    let url = format!("https://{SITE}/slow{CHAT}");
    let arguments = [&JSON[..], &["--max-time", "2", "--data", BODY, url.as_str()]].concat();
    let client = proxy.curl(&arguments);
    let grant = async {
        asked(&mut keeper).await;
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: cost() }).await;
        served.recv().await.expect("the request reached the model");
    };
    let (response, ()) = tokio::join!(client, grant);
    assert!(response.error().contains("timed out"), "{}", response.error());
    // The model may complete the response, so all tokens reserved for the request count as used.
    let next = post(&proxy, CHAT);
    let missing = async {
        let request = asked(&mut keeper).await;
        assert_eq!(request.needed, Some(cost()));
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 2 * cost() }).await;
    };
    let (response, ()) = tokio::join!(next, missing);
    assert_eq!(response.status(), 200);
    let records = super::usage::next_records(&mut usage).await;
    let counts = records[0].tokens.counts(Api::ChatCompletions);
    assert_eq!((counts.total(), counts.output, records[0].interrupted), (cost(), 100, true));
}

/// While a request is in progress, a file contains the request's maximum cost, in case the proxy is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_for_a_request_is_on_disk_before_it_is_sent() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup().await;
    let path = proxy.directory.path().join(WAITING_FILE);
    let lines = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect::<Vec<WaitingLine>>()
    };
    let url = format!("https://{SITE}/slow{CHAT}");
    let arguments = [&JSON[..], &["--max-time", "3", "--data", BODY, url.as_str()]].concat();
    let client = proxy.curl(&arguments);
    let look = async {
        asked(&mut keeper).await;
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: cost() }).await;
        served.recv().await.expect("the request reached the model");
        lines()
    };
    let (_, sent) = tokio::join!(client, look);
    let [WaitingLine::Usage(usage)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((usage.tokens.counts(Api::ChatCompletions).total(), usage.interrupted), (cost(), true));
    // After the client has disconnected, the usage record replaces the maximum cost.
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while lines().len() < 2 {
        assert!(std::time::Instant::now() < until, "{:?}", lines());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(lines()[1].id(), usage.id);
}

/// A request that the model refuses uses no tokens, even if the proxy is killed afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_leaves_nothing_on_disk() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup().await;
    let refused = format!("/refused{CHAT}");
    let (response, ()) = tokio::join!(post(&proxy, &refused), limit(&mut keeper));
    assert_eq!(response.status(), 429);
    served.recv().await.expect("the request reached the model");
    let path = proxy.directory.path().join(WAITING_FILE);
    assert_eq!(std::fs::read_to_string(path).expect("the file exists"), "");
}

/// Answers one lease request with a grant of 1,000,000 tokens. Answers no further requests.
async fn limit(keeper: &mut Stream) {
    asked(keeper).await;
    answer(keeper, LeaseAnswer::Granted { key: key(), granted: 1_000_000 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_what_it_cannot_count_where_a_budget_holds() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup().await;
    let background = r#"{"input":"x","backgr\u006fund":true}"#;
    let (denied, ()) = tokio::join!(post_body(&proxy, "/v1/responses", background), limit(&mut keeper));
    assert_eq!(denied.status(), 403);
    for (path, body) in [
        ("/v1/responses", background),
        ("/v1/responses", "[]"),
        ("/v1/responses", r#"{"input":"x","input":"y"}"#),
        ("/v1/responses/", r#"{"input":"x"}"#),
        ("/v1/Responses", r#"{"input":"x"}"#),
        ("/v1/chat/completions%20", BODY),
        ("/v1/responses;x", r#"{"input":"x"}"#),
    ] {
        let denied = post_body(&proxy, path, body).await;
        assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("not-metered"), "{path} {body}");
        assert!(served.try_recv().is_err(), "{path} {body} reached the model");
    }
    // The denial of a request to an unknown endpoint names the setting that allows the endpoint.
    let sentence = post_body(&proxy, "/v1/responses/", "{}").await.json()["sentence"].to_string();
    assert!(sentence.contains("add `api.example.com/v1/responses/` to `metering.unmetered`"), "{sentence}");
    // The proxy denies a form, because a server could interpret the form differently.
    let url = format!("https://{SITE}{CHAT}");
    let denied = proxy.curl(&["--data", BODY, &url]).await;
    assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("not-metered"));
    // A request that uses no tokens needs no budget.
    assert_eq!(post_body(&proxy, "/v1/messages/count_tokens", "{}").await.status(), 200);
}

/// The proxy parses bodies up to their size limit and in every encoding, even if the route scans no bodies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_every_body_where_a_budget_holds() {
    let (proxy, mut keeper, _site, _channel) = setup_with_route("dlp: {outbound_detectors: false}").await;
    let background = r#"{"input":"x","background":true}"#;
    let (denied, ()) = tokio::join!(post_body(&proxy, "/v1/responses", background), limit(&mut keeper));
    assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("not-metered"));
    let url = format!("https://{SITE}/v1/responses");
    let file = proxy.directory.path().join("body");
    let from_file = format!("@{}", file.display());
    let image = format!(
        r#"{{"input":[{{"role":"user","content":[{{"type":"input_image","image_url":"data:image/png;base64,{}"}}]}}],"max_output_tokens":5}}"#,
        "A".repeat(30 << 20)
    );
    let long = format!(r#"{{"input":"{}"}}"#, "x".repeat(33 << 20));
    for (coding, body, reason) in [
        ("identity", background.as_bytes().to_vec(), Some("not-metered")),
        ("gzip", super::usage::gzip(background.as_bytes()), Some("not-metered")),
        ("gzip", super::usage::gzip(br#"{"input":"x","max_output_tokens":5}"#), None),
        ("compress", b"{}".to_vec(), Some("not-metered")),
        ("gzip", b"{}".to_vec(), Some("not-metered")),
        ("identity", image.into_bytes(), None),
        ("identity", long.clone().into_bytes(), Some("not-metered")),
        ("gzip", super::usage::gzip(long.as_bytes()), Some("not-metered")),
    ] {
        std::fs::write(&file, &body).expect("write");
        let header = format!("content-encoding: {coding}");
        let arguments = ["--header", &header, "--data-binary", &from_file, "--output", "/dev/null", &url];
        let response = proxy.curl(&[&JSON[..], &arguments].concat()).await;
        assert_eq!(response.header("x-bottle-reason").as_deref(), reason, "{coding}, {} bytes", body.len());
    }
}

/// Azure and llama.cpp ignore the model name in the body, so the proxy uses it only for known providers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn believes_the_model_name_at_known_providers_only() {
    let Setup { proxy, mut keeper, _channel, _site, served: _served } = setup().await;
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"1"}]}"#;
    let prompt = prompt_of(Api::ChatCompletions, body);
    let needed = async {
        assert_eq!(asked(&mut keeper).await.needed, Some(prompt + 131_072));
        answer(&keeper, LeaseAnswer::Unlimited { key: key() }).await;
    };
    let (response, ()) = tokio::join!(post_body(&proxy, CHAT, body), needed);
    assert_eq!(response.status(), 200);
    let leases = &proxy.egress.leases;
    let request = leases.read(Api::ChatCompletions, body.as_bytes(), false).expect("a request");
    for (host, output) in [
        ("api.openai.com", 16_384),
        ("openrouter.ai", 16_384),
        ("x.openai.azure.com", 131_072),
        ("api.openai.com.example", 131_072),
    ] {
        assert_eq!(leases.cost(host, &request, None).tokens(), prompt + output, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_lets_an_endpoint_pass_uncounted() {
    let unmetered = vec![format!("{SITE}/v1/responses/").parse().expect("an endpoint")];
    let rules = ModelRules { unmetered, ..ModelRules::default() };
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_with(rules).await;
    let body = r#"{"input":"x"}"#;
    let (response, ()) = tokio::join!(post_body(&proxy, "/v1/responses/", body), limit(&mut keeper));
    assert_eq!((response.status(), served.recv().await.as_deref()), (200, Some("/v1/responses/")));
    assert_eq!(post_body(&proxy, "/v1/Responses", body).await.status(), 403);
}

/// The body of a request to the Messages API with an output limit of 100 tokens.
const PROMPT: &str = r#"{"model":"m-1","max_tokens":100,"stream":false,"messages":[{"role":"user"}]}"#;

/// The path and body with which the proxy asks for the tokens of [`PROMPT`].
const COUNTED: &str = r#"/v1/messages/count_tokens {"messages":[{"role":"user"}],"model":"m-1"}"#;

const MESSAGES: &str = "/v1/messages";

async fn setup_exact() -> Setup {
    setup_with(ModelRules { exact: true, ..ModelRules::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_provider_counts_the_prompt_of_the_first_request_too() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_exact().await;
    let mut usage = super::usage::keeper_of(&proxy).await;
    let first = async {
        // The proxy asks whether the tokens of the output are left, before the provider counts the prompt.
        let request = asked(&mut keeper).await;
        assert_eq!((request.in_progress, request.needed), (0, Some(100)));
        assert!(served.try_recv().is_err(), "the prompt reached the provider");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 150 }).await;
        // The request needs 7777 tokens for the prompt and 100 for the output.
        let request = asked(&mut keeper).await;
        assert_eq!((request.granted, request.in_progress, request.needed), (150, 0, Some(7877 - 150)));
        assert_eq!(served.recv().await.as_deref(), Some(COUNTED));
        assert!(served.try_recv().is_err(), "the request reached the model");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 7877 }).await;
    };
    let (response, ()) = tokio::join!(post_body(&proxy, MESSAGES, PROMPT), first);
    assert_eq!((response.status(), served.recv().await.as_deref()), (200, Some(MESSAGES)));
    // The response used 7 tokens. The lease has enough tokens for the output of the next request, so the proxy asks the
    // keeper once.
    let second = async {
        assert_eq!(asked(&mut keeper).await.needed, Some(7));
        assert_eq!(served.recv().await.as_deref(), Some(COUNTED));
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 7884 }).await;
    };
    let (response, ()) = tokio::join!(post_body(&proxy, MESSAGES, PROMPT), second);
    assert_eq!((response.status(), served.recv().await.as_deref()), (200, Some(MESSAGES)));
    // The provider has no endpoint that counts the tokens of a chat, so the proxy uses its estimate.
    assert_eq!(self::post(&proxy, CHAT).await.status(), 200);
    assert_eq!(served.recv().await.as_deref(), Some(CHAT));
    // The proxy records the three responses, and no usage of the two counts.
    let mut used = Vec::new();
    while used.len() < 3 {
        used.extend(super::usage::next_records(&mut usage).await);
        usage.message(&Written {}).await.expect("sent");
    }
    let totals: Vec<u64> = used.iter().map(|record| record.tokens.counts(record.api).total()).collect();
    assert_eq!(totals, [7, 7, 7]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_counted_at_a_host_without_a_budget() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_exact().await;
    let unlimited = async {
        assert_eq!(asked(&mut keeper).await.needed, Some(100));
        answer(&keeper, LeaseAnswer::Unlimited { key: key() }).await;
    };
    let (response, ()) = tokio::join!(post_body(&proxy, MESSAGES, PROMPT), unlimited);
    assert_eq!((response.status(), served.recv().await.as_deref()), (200, Some(MESSAGES)));
    assert_eq!(post_body(&proxy, MESSAGES, PROMPT).await.status(), 200);
    assert_eq!(served.recv().await.as_deref(), Some(MESSAGES));
    assert!(served.try_recv().is_err(), "only the requests reached the host");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_counted_if_the_budget_is_spent() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_exact().await;
    for _ in 0..2 {
        let spent = async {
            assert_eq!(asked(&mut keeper).await.needed, Some(100));
            let why = "the budget of host for claude has 0 of 10 tokens left".to_owned();
            answer(&keeper, LeaseAnswer::Denied { key: key(), reason: Reason::BudgetSpent, why }).await;
        };
        let (denied, ()) = tokio::join!(post_body(&proxy, MESSAGES, PROMPT), spent);
        assert_eq!(denied.status(), 400);
        assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("budget-spent"));
    }
    assert!(served.try_recv().is_err(), "neither a count nor a request reached the host");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_a_request_that_is_sent_too_often_in_a_row() {
    let rules = ModelRules { repeats: Some(2), default_output: Some(50), ..ModelRules::default() };
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_with(rules).await;
    let post = |body: &'static str| post_body(&proxy, CHAT, body);
    let same = [r#"{"messages":[]}"#, r#"{ "messages" : [] }"#, r#"{"metadata":{"x":1},"messag\u0065s":[]}"#];
    let unlimited = async {
        let needed = prompt_of(Api::ChatCompletions, same[0]) + 50;
        assert_eq!(asked(&mut keeper).await.needed, Some(needed), "with the default output");
        answer(&keeper, LeaseAnswer::Unlimited { key: key() }).await;
    };
    let (response, ()) = tokio::join!(post(same[0]), unlimited);
    assert_eq!(response.status(), 200);
    assert_eq!(post(same[1]).await.status(), 200);
    // The same prompt in another spelling.
    let denied = post(same[2]).await;
    assert_eq!(denied.status(), 400);
    assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("request-repeated"));
    assert_eq!(post(r#"{"messages":["x"]}"#).await.status(), 200, "another request");
    assert_eq!(post(same[0]).await.status(), 200, "no longer in a row");
    let paths: Vec<String> = std::iter::from_fn(|| served.try_recv().ok()).collect();
    assert_eq!(paths.len(), 4, "{paths:?}");
}
