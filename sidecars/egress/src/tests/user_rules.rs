//! The proxy applies the user's scan rules, and forwards placeholders of credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bottle_protocol::session::bundle::{Provision, RuleFile};

use super::fixture::{FixtureOptions, ProxyFixture, SITE};
use crate::egress::Shared;
use crate::test_proxy;
use crate::upstream::chain;

const TOKEN: &str = "glpat-Xk3Vw9QzR7tYp2LmNb5c";

fn file(name: &str, text: &str) -> RuleFile {
    RuleFile { name: name.to_owned(), text: text.to_owned() }
}

fn rules(provision: &mut Provision) {
    provision.rules = vec![
        file("acme.toml", "[[rules]]\nid = 'acme'\nregex = 'acme-[0-9]{8}'\nkeywords = ['acme-']\n"),
        file("case.toml", "[[rules]]\nid = 'case'\nregex = 'CASE-[0-9]{4}'\n"),
    ];
    provision.placeholders = vec![TOKEN.to_owned(), "acme-00000000".to_owned()];
}

async fn sent(proxy: &ProxyFixture, body: &str) -> (u16, String) {
    let answer = proxy.curl(&["--data", body, &format!("https://{SITE}/v1")]).await;
    (answer.status(), answer.text())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applies_the_users_own_rules() {
    let route = "dlp: {outbound_on_match: block}";
    let proxy =
        ProxyFixture::with(FixtureOptions { route, change: rules, ..FixtureOptions::default() }).await;
    let packed = STANDARD.encode("this is for acme-12345678 and nobody else");
    for body in ["acme-12345678", "{\"a\":\"see CASE-1234\"}", &packed, "a=%61cme-12345678"] {
        let (status, text) = sent(&proxy, body).await;
        assert_eq!(status, 403, "{body}: {text}");
        assert!(text.contains("secret-found") && text.contains("your rule"), "{body}: {text}");
        assert!(!text.contains("12345678"), "{text}");
    }
    // The proxy forwards a placeholder, which the agent holds instead of a credential, even if the placeholder matches
    // a rule.
    for body in ["acme-1234", "acme-00000000", TOKEN, &STANDARD.encode(format!("somebody:{TOKEN}"))] {
        let (status, text) = sent(&proxy, body).await;
        assert_eq!(status, 200, "{body}: {text}");
    }
    let off = "dlp: {outbound_on_match: block, outbound_detectors: [known_secrets]}";
    let proxy =
        ProxyFixture::with(FixtureOptions { route: off, change: rules, ..FixtureOptions::default() }).await;
    assert_eq!(sent(&proxy, "acme-12345678").await.0, 200, "they go with the shapes of tokens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_a_token_in_base64() {
    let route = "dlp: {outbound_on_match: block}";
    let proxy = ProxyFixture::with(FixtureOptions { route, ..FixtureOptions::default() }).await;
    let text = STANDARD.encode(format!("token for somebody: {TOKEN}"));
    let form = text.replace('=', "%3D").replace('+', "%2B");
    for body in [format!("{{\"file\":\"{text}\"}}"), format!("a=1&file={form}"), text.clone()] {
        let (status, text) = sent(&proxy, &body).await;
        assert_eq!(status, 403, "{body}: {text}");
        assert!(text.contains("in base64"), "{text}");
    }
    let answer = proxy.curl(&[&format!("https://{SITE}/v1?q={form}")]).await;
    assert_eq!(answer.status(), 403);
    let answer = proxy.curl(&["--header", &format!("X-Note: {text}"), &format!("https://{SITE}/v1")]).await;
    assert_eq!(answer.status(), 403);
    // If the route requires it, the finding is redacted and the text around it is forwarded.
    let route = "dlp: {outbound_on_match: redact}";
    let proxy = ProxyFixture::with(FixtureOptions { route, ..FixtureOptions::default() }).await;
    let body = format!("{{\"before\":1,\"file\":\"{text}\",\"after\":2}}");
    let answer = proxy.curl(&["--json", &body, &format!("https://{SITE}/v1")]).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_a_rule_file_that_does_not_parse() {
    let rules = vec![file("a.toml", "[[rules]]\nid = 'a\n")];
    let provision = Provision { rules, ..test_proxy::provision("routes: []\n") };
    let directory = tempfile::tempdir().expect("directory");
    let refused =
        test_proxy::provision_egress(provision, directory.path(), Shared::new(directory.path(), None));
    let text = chain(&refused.err().expect("refused"));
    assert!(text.starts_with("rules: a.toml: line 2"), "{text}");
}
