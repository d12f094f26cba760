//! Credentials whose values the user replaces while the agent runs.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bottle_protocol::session::bundle::LogLevel;
use bottle_protocol::session::guest::SecretText;

use super::client::{get, http1, read};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, REAL, SITE};

const NEW: &str = "w8Fj5sNq1Hd6Xv0Gt4Ubz";

fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, SecretText> {
    pairs.iter().map(|(slot, value)| ((*slot).to_owned(), (*value).into())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_on_an_open_connection_has_the_new_value() {
    let route = "auth: {scheme: Bearer, slot: key}\n  dlp: {outbound_on_match: block}";
    let options = FixtureOptions { route, log: LogLevel::Full, ..FixtureOptions::default() };
    let proxy = ProxyFixture::with(options).await;
    let mut sender = http1(&proxy, SITE).await;
    let mut sent = async |path: &str| {
        sender.ready().await.expect("the connection lives on");
        let answer = sender.send_request(get(SITE, path)).await.expect("answer");
        let reason = answer.headers().get("x-bottle-reason").map(|reason| format!("{reason:?}"));
        let (_, body) = read(answer).await;
        let text = String::from_utf8_lossy(&body).into_owned();
        assert!(!text.contains(REAL), "{text}");
        (
            reason,
            proxy.site.visits().last().and_then(|visit| visit.header("authorization").map(str::to_owned)),
        )
    };
    let bearer = |value: &str| Some(format!("Bearer {value}"));
    assert_eq!(sent("/one").await, (None, bearer(REAL)));
    // The value is not known yet, so it passes.
    assert_eq!(sent(&format!("/guess/{NEW}")).await, (None, bearer(REAL)));
    for (wrong, why) in [
        (&[("key", NEW), ("nowhere", "x")][..], "the bottle has no credential `nowhere`; it has key"),
        (&[("key", "line\nbreak")], "line break"),
        (&[("key", "")], "empty"),
    ] {
        let error = proxy.egress.replace_credentials(&values(wrong)).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(sent("/same").await, (None, bearer(REAL)), "nothing was changed");
    }
    proxy.egress.replace_credentials(&values(&[("key", NEW)])).expect("replaced");
    assert_eq!(sent("/two").await, (None, bearer(NEW)));
    let found = || Some("\"secret-found\"".to_owned());
    for value in [REAL, NEW] {
        assert_eq!(sent(&format!("/x/{value}")).await.0, found(), "{value}");
        assert_eq!(sent(&format!("/x?q={}", STANDARD.encode(value))).await.0, found(), "{value}");
    }
    let log: Vec<String> = proxy.logged(10).await.iter().map(ToString::to_string).collect();
    let after = log.iter().position(|line| line.contains("/two")).expect("a line");
    assert!(log[after..].iter().all(|line| !line.contains(REAL) && !line.contains(NEW)), "{log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_that_was_missing_can_be_set() {
    let change = |provision: &mut bottle_protocol::session::bundle::Provision| {
        provision.credentials[0].value = None;
    };
    let proxy = ProxyFixture::with(FixtureOptions { route: AUTH, change, ..FixtureOptions::default() }).await;
    let status = async || {
        let mut sender = http1(&proxy, SITE).await;
        read(sender.send_request(get(SITE, "/v1")).await.expect("answer")).await.0
    };
    assert_ne!(status().await, 200);
    proxy.egress.replace_credentials(&values(&[("key", NEW)])).expect("set");
    assert_eq!(status().await, 200);
}
