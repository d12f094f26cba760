//! One-time grants: the proxy forwards exactly one request for each grant.

use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::BundleEvent;
use http::StatusCode;

use super::client::{self, get2};
use super::fixture::{FixtureOptions, ProxyFixture, SITE};

const READS: &str = "matches: [{methods: [GET], paths: [{type: prefix, value: /v1}]}]";
const JOBS: &str =
    "[{host: api.example.com, matches: [{methods: [POST], paths: [{type: exact, value: /jobs}]}]}]";
const URL: &str = "https://api.example.com/jobs";
const CANARY: &str = "bottle-canary-6b1f0c9d2e8a4f7350";

async fn proxy() -> ProxyFixture {
    let change = |provision: &mut bottle_protocol::session::bundle::Provision| {
        provision.canary = Some(CANARY.into());
    };
    ProxyFixture::with(FixtureOptions { route: READS, change, ..FixtureOptions::default() }).await
}

async fn post(proxy: &ProxyFixture, body: &str) -> u16 {
    proxy.curl(&["-X", "POST", "-d", body, URL]).await.status()
}

/// Returns the id of the next spent grant. Skips denials.
async fn spent(proxy: &ProxyFixture) -> Id {
    loop {
        if let BundleEvent::Spent { proposal } = proxy.backlog.next().await {
            return proposal;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_spends_the_grant_and_allowed_requests_do_not() {
    let proxy = proxy().await;
    assert_eq!(post(&proxy, "x").await, 403);
    proxy.allow_once(2, READS, &[(7, JOBS)]).expect("live");
    assert_eq!(proxy.curl(&["https://api.example.com/v1/models"]).await.status(), 200);
    assert_eq!(proxy.curl(&[URL]).await.status(), 403, "another method");
    assert_eq!(post(&proxy, "x").await, 200);
    assert_eq!(spent(&proxy).await, Id::from_random([7; 16]));
    assert_eq!(post(&proxy, "x").await, 403);
    // The spent grant stays spent if the keeper sends it again together with another grant. A request spends only one
    // grant.
    proxy.allow_once(3, READS, &[(7, JOBS), (8, JOBS)]).expect("live");
    assert_eq!(post(&proxy, "x").await, 200);
    assert_eq!(spent(&proxy).await, Id::from_random([8; 16]));
    assert_eq!(post(&proxy, "x").await, 403);
    assert_eq!(proxy.site.visits().iter().filter(|visit| visit.path == "/jobs").count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_requests_passes() {
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
async fn a_request_denied_by_a_finding_does_not_spend_the_grant() {
    let proxy = proxy().await;
    proxy.allow_once(2, READS, &[(7, JOBS)]).expect("live");
    assert_eq!(post(&proxy, CANARY).await, 403);
    assert_eq!(post(&proxy, "clean").await, 200);
    assert_eq!(post(&proxy, "clean").await, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_a_grant_on_a_route_with_a_credential() {
    let proxy = ProxyFixture::open().await;
    let error = proxy.allow_once(2, super::fixture::AUTH, &[(7, JOBS)]);
    // A route without `matches` already allows the request.
    assert!(error.is_ok(), "{error:?}");
    let auth = format!("{}\n  {READS}", super::fixture::AUTH);
    let error = proxy.allow_once(3, &auth, &[(7, JOBS)]).expect_err("a route with a credential");
    assert!(error.contains("carries a credential"), "{error}");
    assert_eq!(post(&proxy, "x").await, 200, "the routes before stay");
}
