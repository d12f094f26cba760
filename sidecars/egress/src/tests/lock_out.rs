//! The lock-out: after a few hits, the proxy locks the bottle, on every kind of route. A hit is a part of a credential
//! that the agent does not hold.

use std::time::Duration;

use bottle_policy::decide::Reason;
use bottle_policy::lock_out::{HITS, LockOut, SENTENCE};
use bottle_protocol::session::bundle::Provision;
use bottle_test_support::upstream::Site;
use futures_util::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio_tungstenite::tungstenite::Message;

use super::client::{TestBody, get, http1, http2, no_body, read, tunnel};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, SITE};

/// The credential that the proxy injects. The agent does not hold this credential, so requests with parts of it count
/// as hits.
const KEY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4Po6As8Dg1Hj3Kl5";

/// A secret in the bottle's environment. The agent holds this secret, so requests with parts of it do not count as
/// hits.
const AGENT_SECRET: &str = "Mn9Bv7Cx5Zl3Kj1Hg8Fd6Sa4Po2Iu0Yt9Re7Wq5Lk3";

/// A decoy secret that grants no access. Requests with parts of it do not count as hits.
const CANARY: &str = "Vb6Nm4Qw2Er8Ty0Ui7Op5As3Df1Gh9Jk6Lz4Xc2Vb0";

/// Routes with different values of `outbound_on_match`.
const BLOCK: &str = "auth: {scheme: Bearer, slot: key}\n  dlp: {outbound_on_match: block}";
const REDACT: &str = "auth: {scheme: Bearer, slot: key}\n  dlp: {outbound_on_match: redact}";

const OTHER: &str = "other.example.com";

fn secrets(provision: &mut Provision) {
    provision.credentials[0].value = Some(KEY.into());
    provision.known_secrets = vec![AGENT_SECRET.into()];
    provision.canary = Some(CANARY.into());
}

async fn proxy(route: &'static str, lock_after: Option<usize>) -> ProxyFixture {
    let (site, more_routes) = (
        Site::named(&[SITE, OTHER]),
        "- host: other.example.com\n  connect_to: '127.0.0.1:{site}'\n  dlp: {outbound_on_match: block}\n",
    );
    ProxyFixture::with(FixtureOptions {
        site,
        route,
        more_routes,
        change: secrets,
        lock_after,
        ..FixtureOptions::default()
    })
    .await
}

/// Returns a part of `secret` as a correct guess. Each `number` selects another part.
fn part(secret: &str, number: usize) -> &str {
    &secret[number..number + 16]
}

fn post(host: &str, body: String) -> Request<TestBody> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    Request::post(format!("https://{host}/v1")).header("host", host).body(body).expect("request")
}

/// Sends a request on a new connection. Returns the status of the response and the reason of a denial.
async fn sent(proxy: &ProxyFixture, host: &str, request: Request<TestBody>) -> (StatusCode, Option<String>) {
    let answer = http1(proxy, host).await.send_request(request).await.expect("answer");
    let reason =
        answer.headers().get("x-bottle-reason").map(|value| value.to_str().expect("text").to_owned());
    (answer.status(), reason)
}

async fn assert_locked(proxy: &ProxyFixture) {
    let before = proxy.site.visits().len();
    for host in [SITE, OTHER, "nowhere.example.org"] {
        let (status, reason) = sent(proxy, host, get(host, "/hello")).await;
        assert_eq!((status.as_u16(), reason.as_deref()), (403, Some("locked-out")), "{host}");
    }
    let mut sender = http2(proxy, SITE).await;
    let (status, body) =
        read(sender.send_request(post(SITE, "hello".to_owned())).await.expect("answer")).await;
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        (status.as_u16(), &body["reason"], &body["sentence"]),
        (403, &"locked-out".into(), &SENTENCE.into())
    );
    assert_eq!(proxy.curl(&[&format!("https://{SITE}/")]).await.json()["reason"], "locked-out");
    let transparent = proxy.curl_transparent(&[&format!("https://{SITE}/")]).await;
    assert_eq!(transparent.header("x-bottle-reason").as_deref(), Some("locked-out"));
    assert_eq!(proxy.site.visits().len(), before, "something got upstream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_after_the_bound_on_every_kind_of_route() {
    for route in [AUTH, BLOCK, REDACT] {
        for in_head in [true, false] {
            let proxy = proxy(route, Some(HITS)).await;
            for number in 0..HITS {
                assert!(!proxy.egress.lockout.is_locked(), "{route} {number}");
                // The guesses alternate between hosts and between the head and the body, and each guess uses a new
                // connection. One counter counts all guesses.
                let host = if number % 2 == 0 { SITE } else { OTHER };
                let guess = part(KEY, number);
                // No letter directly precedes the guess, because the letter and the guess would be another piece.
                let request = if in_head {
                    get(host, &format!("/v1?a={guess}"))
                } else {
                    post(host, format!("{{\"guess\":\"{guess}\"}}"))
                };
                let (status, reason) = sent(&proxy, host, request).await;
                let expected = match (number + 1 == HITS, route == REDACT && host == SITE) {
                    (true, _) => (403, Some("locked-out")),
                    (false, true) => (200, None),
                    (false, false) => (403, Some("secret-found")),
                };
                assert_eq!((status.as_u16(), reason.as_deref()), expected, "{route} {number}");
            }
            let why = proxy.egress.lockout.locked().await;
            assert_eq!((why.daemon.as_str(), why.hits), ("egress", HITS));
            assert_eq!(why.places, [SITE, OTHER]);
            assert_locked(&proxy).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_all_hits_in_one_body_and_in_packed_files() {
    let packed = |text: &str| {
        use std::io::Write;
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text.as_bytes()).expect("write");
        writer.finish().expect("finish")
    };
    let parts: Vec<&str> = (0..HITS).map(|number| part(KEY, number * 8)).collect();
    let all = parts.join("\n--\n");
    let base64 = |bytes: Vec<u8>| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    for body in [all.clone().into_bytes(), packed(&all), base64(packed(&all)).into_bytes()] {
        let one = proxy(REDACT, Some(HITS)).await;
        let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
        let request = Request::post("/v1").header("host", SITE).body(body).expect("request");
        let (_, reason) = sent(&one, SITE, request).await;
        assert_eq!(reason.as_deref(), Some("locked-out"));
        assert!(one.site.visits().is_empty());
    }
    let proxy = proxy(BLOCK, Some(HITS)).await;
    for part in parts {
        assert!(!proxy.egress.lockout.is_locked());
        let body = Full::new(packed(part).into()).map_err(|never| match never {}).boxed_unsync();
        let request = Request::post("/v1").header("host", SITE).body(body).expect("request");
        assert_eq!(sent(&proxy, SITE, request).await.0, 403);
    }
    assert_locked(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_hits_behind_many_other_findings() {
    let proxy = proxy(REDACT, Some(HITS)).await;
    let junk: String = (0..1100).map(|number| format!("ghp_{number:036}\n")).collect();
    let parts: Vec<&str> = (0..HITS).map(|number| part(KEY, number * 8)).collect();
    let (_, reason) = sent(&proxy, SITE, post(SITE, format!("{junk}{}", parts.join("\n--\n")))).await;
    assert_eq!(reason.as_deref(), Some("locked-out"));
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_is_the_same_for_any_number_and_location_of_hits() {
    let proxy = proxy(BLOCK, None).await;
    let mut bodies = Vec::new();
    for request in [
        get(SITE, &format!("/v1?q={}", part(KEY, 0))),
        get(SITE, &format!("/v1/{KEY}")),
        Request::get("/v1")
            .header("host", SITE)
            .header("x-a", part(KEY, 3))
            .body(no_body())
            .expect("request"),
        post(SITE, format!("{} glpat-Xk3Vw9QzR7tYp2LmNb5c", part(KEY, 1))),
        post(SITE, format!("{}\n--\n{}\n--\n{KEY}", part(KEY, 0), part(KEY, 20))),
    ] {
        let (status, body) =
            read(http1(&proxy, SITE).await.send_request(request).await.expect("answer")).await;
        let mut body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        body["id"].take();
        bodies.push((status, body));
    }
    assert!(bodies.iter().all(|other| *other == bodies[0]), "{bodies:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_hits_and_secrets_of_the_agent_do_not_lock() {
    let proxy = proxy(REDACT, Some(HITS)).await;
    // Each request of this conversation repeats the same pasted part of the key.
    let mut bodies = format!("{{\"content\":\"why does {} not work?\"}}", part(KEY, 3));
    for turn in 0..4 * HITS {
        bodies.push_str(&format!(",{{\"turn\":{turn}}}"));
        assert_eq!(sent(&proxy, SITE, post(SITE, bodies.clone())).await.0, 200);
    }
    for secret in [AGENT_SECRET, CANARY] {
        for number in 0..2 * HITS {
            sent(&proxy, OTHER, post(OTHER, part(secret, number).to_owned())).await;
        }
    }
    assert!(!proxy.egress.lockout.is_locked());
    assert_eq!(sent(&proxy, SITE, get(SITE, "/hello")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn does_not_lock_when_the_lockout_is_off() {
    let proxy = proxy(BLOCK, None).await;
    for number in 0..4 * HITS {
        let (_, reason) = sent(&proxy, SITE, post(SITE, part(KEY, number).to_owned())).await;
        assert_eq!(reason.as_deref(), Some("secret-found"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_websocket_hits_and_closes_open_sockets() {
    let proxy = proxy(REDACT, Some(HITS)).await;
    let open = async || {
        let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
        tokio_tungstenite::client_async(format!("wss://{SITE}/ws"), tls).await
    };
    let (mut other, _) = open().await.expect("101");
    other.send(Message::text("hello")).await.expect("send");
    assert_eq!(other.next().await.expect("echo").expect("message"), Message::text("hello"));
    for number in 0..HITS {
        assert!(!proxy.egress.lockout.is_locked());
        let (mut socket, _) = open().await.expect("101");
        socket.send(Message::text(part(KEY, number))).await.expect("send");
        let Some(Ok(Message::Close(Some(close)))) = socket.next().await else { panic!("no close") };
        assert_eq!(u16::from(close.code), 1008);
    }
    let closed = tokio::time::timeout(Duration::from_secs(20), other.next()).await.expect("closed");
    let Some(Ok(Message::Close(Some(close)))) = closed else { panic!("{closed:?} is no close") };
    assert_eq!((u16::from(close.code), close.reason.as_str()), (1008, "locked-out"));
    assert!(
        matches!(open().await, Err(tokio_tungstenite::tungstenite::Error::Http(answer)) if answer.status() == 403)
    );
    assert_locked(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_from_another_daemon_ends_unscanned_tunnels() {
    let unscanned = "dlp: {outbound_detectors: false, inbound_detectors: false}";
    let proxy = ProxyFixture::with(FixtureOptions { route: unscanned, ..FixtureOptions::default() }).await;
    let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
    let (mut socket, _) =
        tokio_tungstenite::client_async(format!("wss://{SITE}/ws"), tls).await.expect("101");
    let passthrough =
        ProxyFixture::with(FixtureOptions { route: "inspect: false", ..FixtureOptions::default() }).await;
    let ca = passthrough.directory.path().join("site.pem");
    passthrough.site.write_ca(&ca).expect("ca");
    let (ca, url) = (ca.to_str().expect("path"), format!("https://{SITE}/"));
    assert_eq!(passthrough.curl(&["--cacert", ca, &url]).await.status(), 200);
    for proxy in [&proxy, &passthrough] {
        proxy.egress.lockout.lock(LockOut {
            daemon: "git-gate".into(),
            hits: HITS,
            places: vec!["tool".into()],
            parent: None,
        });
    }
    let ended = tokio::time::timeout(Duration::from_secs(20), socket.next()).await.expect("it ends");
    assert!(!matches!(ended, Some(Ok(Message::Text(_)))), "{ended:?}");
    let visits = passthrough.site.visits().len();
    assert!(!passthrough.curl(&["--cacert", ca, &url]).await.error().is_empty());
    assert_eq!(passthrough.denial().await.reason, Reason::LockedOut);
    assert_eq!(passthrough.site.visits().len(), visits);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_guesses_stay_within_the_bound() {
    let proxy = proxy(BLOCK, Some(HITS)).await;
    let sends = (0..40).map(|number| {
        let proxy = &proxy;
        async move { sent(proxy, SITE, post(SITE, part(KEY, number).to_owned())).await.1 }
    });
    let reasons = futures_util::future::join_all(sends).await;
    let found = reasons.iter().filter(|reason| reason.as_deref() == Some("secret-found")).count();
    assert!(found < HITS, "{reasons:?}");
    assert_eq!(reasons.iter().filter(|reason| reason.as_deref() == Some("locked-out")).count(), 40 - found);
}
