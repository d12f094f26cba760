//! Budgets: no byte of a request to a model leaves before its tokens are reserved, and responses settle them.

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_contract::decide::Reason;
use bottle_contract::session::bundle::ModelRules;
use bottle_contract::session::lease::{BudgetKey, LeaseAnswer, LeaseRequest};
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::whole;
use bottle_test_support::server::{Server, handler};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::fixture::{Curl, ProxyFixture, SITE};
use crate::test_proxy::connect_to_gate;

/// A response of 3 + 4 tokens.
const COMPLETION: &str =
    r#"{"object":"chat.completion","model":"m-2","usage":{"prompt_tokens":3,"completion_tokens":4}}"#;

/// Another response of 3 + 4 tokens.
const MESSAGE: &str = r#"{"type":"message","model":"m-1","usage":{"input_tokens":3,"output_tokens":4}}"#;

/// A proxy, a model behind it, and a keeper whose answers the test gives.
struct Setup {
    proxy: ProxyFixture,
    _site: Server,
    /// The paths of the requests that reached the model. Those to its counter are followed by the body.
    served: mpsc::Receiver<String>,
    keeper: Stream,
    _channel: Channel,
}

async fn setup() -> Setup {
    setup_with(ModelRules::default()).await
}

async fn setup_with(rules: ModelRules) -> Setup {
    let authority = Authority::new("gate").expect("authority");
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
                return Some(Response::new(whole(r#"{"input_tokens":77}"#)));
            }
            sender.send(path.clone()).await.expect("the test runs");
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
    let (channel, keeper) = connect_to_gate(Arc::clone(&proxy.egress.gate)).await;
    Setup { proxy, _site: site, served, keeper, _channel: channel }
}

pub(super) fn key() -> BudgetKey {
    BudgetKey::Host(SITE.to_owned())
}

/// Posts a request for 100 tokens of output, whose body has 30 bytes.
async fn post(proxy: &ProxyFixture, path: &str) -> Curl {
    let body = r#"{"max_tokens":100,"x":"12345"}"#;
    assert_eq!(body.len(), 30);
    let url = format!("https://{SITE}{path}");
    proxy.curl(&["--data", body, &url]).await
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
        assert_eq!((request.key, request.granted, request.needed), (key(), 0, Some(110)));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(served.try_recv().is_err(), "the request reached the model");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 150 }).await;
    };
    let (response, ()) = tokio::join!(client, grant);
    assert_eq!(response.status(), 200);
    // The response used 7 tokens, so the lease has 143 left for the next request.
    assert_eq!(post(&proxy, CHAT).await.status(), 200);
    answer(&keeper, LeaseAnswer::Revoked).await;
    let returned = asked(&mut keeper).await;
    assert_eq!((returned.granted, returned.returned, returned.needed), (150, 136, None));
    let third = post(&proxy, CHAT);
    let deny = async {
        let needed = asked(&mut keeper).await;
        assert_eq!((needed.granted, needed.returned, needed.needed), (150, 136, Some(110)));
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
        let (_channel, mut keeper) = connect_to_gate(Arc::clone(&proxy.egress.gate)).await;
        assert_eq!(asked(&mut keeper).await, first);
        answer(&keeper, LeaseAnswer::Unlimited { key: key() }).await;
        // Other requests need no further answer.
        assert_eq!(post(&proxy, CHAT).await.status(), 200);
    };
    let (response, ()) = tokio::join!(client, keepers);
    assert_eq!(response.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_disconnects_pays_for_its_prompt() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup().await;
    let url = format!("https://{SITE}/slow{CHAT}");
    let arguments = ["--max-time", "2", "--data", r#"{"max_tokens":100,"x":"12345"}"#, url.as_str()];
    let client = proxy.curl(&arguments);
    let grant = async {
        asked(&mut keeper).await;
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 110 }).await;
        served.recv().await.expect("the request reached the model");
    };
    let (response, ()) = tokio::join!(client, grant);
    assert!(response.error().contains("timed out"), "{}", response.error());
    // 10 tokens of the prompt are spent, so 10 are missing for the next request.
    let next = post(&proxy, CHAT);
    let missing = async {
        let request = asked(&mut keeper).await;
        assert_eq!(request.needed, Some(10));
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 120 }).await;
    };
    let (response, ()) = tokio::join!(next, missing);
    assert_eq!(response.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_what_it_cannot_count_where_a_budget_holds() {
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup().await;
    let limited = async {
        let request = asked(&mut keeper).await;
        assert_eq!(request.needed, Some(0));
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 0 }).await;
    };
    let url = format!("https://{SITE}/v1/responses");
    let background = ["--data", r#"{"background":true}"#, url.as_str()];
    let (denied, ()) = tokio::join!(proxy.curl(&background), limited);
    assert_eq!(denied.status(), 403);
    assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("not-metered"));
    assert!(served.try_recv().is_err(), "it reached the model");
    // A request that uses no tokens needs no budget.
    let url = format!("https://{SITE}/v1/messages/count_tokens");
    assert_eq!(proxy.curl(&["--data", "{}", &url]).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asks_the_provider_for_the_tokens_of_a_prompt() {
    let rules = ModelRules { exact: true, ..ModelRules::default() };
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_with(rules).await;
    let body = r#"{"model":"m-1","max_tokens":100,"stream":false,"messages":[{"role":"user"}]}"#;
    let url = format!("https://{SITE}/v1/messages");
    let arguments = ["--data", body, url.as_str()];
    let post = || proxy.curl(&arguments);
    // Before it is known whether a budget limits the host, the estimate holds.
    let estimate = 100 + (body.len() as u64).div_ceil(3);
    let first = async {
        assert_eq!(asked(&mut keeper).await.needed, Some(estimate));
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: estimate }).await;
    };
    let (response, ()) = tokio::join!(post(), first);
    assert_eq!((response.status(), served.recv().await.as_deref()), (200, Some("/v1/messages")));
    let second = async {
        // 77 tokens of prompt and 100 of output; 7 of the lease are spent.
        assert_eq!(asked(&mut keeper).await.needed, Some(177 - (estimate - 7)));
        let counted = served.recv().await.expect("a count");
        let expected = r#"/v1/messages/count_tokens {"messages":[{"role":"user"}],"model":"m-1"}"#;
        assert_eq!(counted, expected);
        assert!(served.try_recv().is_err(), "the request reached the model");
        answer(&keeper, LeaseAnswer::Granted { key: key(), granted: 1000 }).await;
    };
    let (response, ()) = tokio::join!(post(), second);
    assert_eq!((response.status(), served.recv().await.as_deref()), (200, Some("/v1/messages")));
    // No endpoint counts a chat, so the estimate holds.
    assert_eq!(self::post(&proxy, CHAT).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_a_request_that_is_sent_too_often_in_a_row() {
    let rules = ModelRules { repeats: Some(2), default_output: 50, ..ModelRules::default() };
    let Setup { proxy, mut served, mut keeper, _channel, _site } = setup_with(rules).await;
    let url = format!("https://{SITE}{CHAT}");
    let post = |body: &'static str| {
        let (proxy, url) = (&proxy, &url);
        async move { proxy.curl(&["--data", body, url]).await }
    };
    let unlimited = async {
        assert_eq!(asked(&mut keeper).await.needed, Some(51), "with the default output");
        answer(&keeper, LeaseAnswer::Unlimited { key: key() }).await;
    };
    let (response, ()) = tokio::join!(post("{}"), unlimited);
    assert_eq!(response.status(), 200);
    assert_eq!(post("{}").await.status(), 200);
    let denied = post("{}").await;
    assert_eq!(denied.status(), 400);
    assert_eq!(denied.header("x-bottle-reason").as_deref(), Some("request-repeated"));
    assert_eq!(post("{ }").await.status(), 200, "another request");
    assert_eq!(post("{}").await.status(), 200, "no longer in a row");
    let paths: Vec<String> = std::iter::from_fn(|| served.try_recv().ok()).collect();
    assert_eq!(paths.len(), 4, "{paths:?}");
}
