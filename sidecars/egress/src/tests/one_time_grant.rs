//! What a user allowed for one request: one passes, whoever else tries.

use bottle_contract::queue::Id;
use bottle_contract::session::bundle::BundleEvent;
use http::StatusCode;

use super::client::{self, get2};
use super::fixture::{ProxyFixture, SITE, Wanted};

const READS: &str = "matches: [{methods: [GET], paths: [{type: prefix, value: /v1}]}]";
const JOBS: &str =
    "[{host: api.example.com, matches: [{methods: [POST], paths: [{type: exact, value: /jobs}]}]}]";
const URL: &str = "https://api.example.com/jobs";
const CANARY: &str = "bottle-canary-6b1f0c9d2e8a4f7350";

async fn proxy() -> ProxyFixture {
    let change = |provision: &mut bottle_contract::session::bundle::Provision| {
        provision.canary = Some(CANARY.into());
    };
    ProxyFixture::with(Wanted { route: READS, change, ..Wanted::default() }).await
}

async fn post(proxy: &ProxyFixture, body: &str) -> u16 {
    proxy.curl(&["-X", "POST", "-d", body, URL]).await.status()
}

/// Which question's answer was used up; every refusal before is passed over.
async fn spent(proxy: &ProxyFixture) -> Id {
    loop {
        if let BundleEvent::Spent { proposal } = proxy.backlog.next().await {
            return proposal;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_passes_and_what_the_routes_allow_costs_nothing_of_it() {
    let proxy = proxy().await;
    assert_eq!(post(&proxy, "x").await, 403);
    proxy.allow_once(2, READS, &[(7, JOBS)]).expect("live");
    assert_eq!(proxy.curl(&["https://api.example.com/v1/models"]).await.status(), 200);
    assert_eq!(proxy.curl(&[URL]).await.status(), 403, "another method");
    assert_eq!(post(&proxy, "x").await, 200);
    assert_eq!(spent(&proxy).await, Id::from_random([7; 16]));
    assert_eq!(post(&proxy, "x").await, 403);
    // Sent again beside another one, it is still used up; the other one counts for itself.
    proxy.allow_once(3, READS, &[(7, JOBS), (8, JOBS)]).expect("live");
    assert_eq!(post(&proxy, "x").await, 200);
    assert_eq!(spent(&proxy).await, Id::from_random([8; 16]));
    assert_eq!(post(&proxy, "x").await, 403);
    assert_eq!(proxy.site.visits().iter().filter(|visit| visit.path == "/jobs").count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_passes() {
    let proxy = proxy().await;
    proxy
        .allow_once(
            2,
            READS,
            &[(7, "[{host: api.example.com, matches: [{paths: [{type: exact, value: /jobs}]}]}]")],
        )
        .expect("live");
    let connection = client::http2(&proxy, SITE).await;
    let requests = (0..40).map(|_| {
        let mut connection = connection.clone();
        tokio::spawn(async move {
            client::read(connection.send_request(get2(SITE, "/jobs")).await.expect("answer")).await.0
        })
    });
    let requests: Vec<_> = requests.collect();
    let mut passed = 0;
    for request in requests {
        passed += usize::from(request.await.expect("request") == StatusCode::OK);
    }
    assert_eq!((passed, proxy.site.visits().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_refused_for_what_it_holds_does_not_use_it_up() {
    let proxy = proxy().await;
    proxy.allow_once(2, READS, &[(7, JOBS)]).expect("live");
    assert_eq!(post(&proxy, CANARY).await, 403);
    assert_eq!(post(&proxy, "clean").await, 200);
    assert_eq!(post(&proxy, "clean").await, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_agents_to_ask_for_is_refused_whole() {
    let proxy = ProxyFixture::open().await;
    let error = proxy.allow_once(2, super::fixture::AUTH, &[(7, JOBS)]);
    // A route without `matches` allows it already.
    assert!(error.is_ok(), "{error:?}");
    let auth = format!("{}\n  {READS}", super::fixture::AUTH);
    let error = proxy.allow_once(3, &auth, &[(7, JOBS)]).expect_err("a route with a credential");
    assert!(error.contains("carries a credential"), "{error}");
    assert_eq!(post(&proxy, "x").await, 200, "the routes before stay");
}
