use proptest::prelude::*;

use super::*;
use crate::route::{Form, arbitrary, parse_routes};
use crate::secret::Secret;

fn table(yaml: &str) -> RouteTable {
    parse_routes(yaml, Form::Runtime).expect("routes")
}

const FIXED: &str = "
routes:
- host: api.example
  auth: {scheme: header, header: x-api-key, slot: api}
- host: '*.wild.example'
  auth: {scheme: Bearer, slot: wild}
- host: open.example
";

#[test]
fn rejects_moving_a_slot() {
    let fixed = bindings(&table(FIXED));
    assert_eq!(fixed.len(), 2);
    for good in [
        FIXED,
        "routes: []",
        "routes:\n- host: api.example\n",
        "routes:\n- host: api.example\n  matches: [{methods: [GET]}]\n  auth: {scheme: header, header: X-API-Key, slot: api}\n",
    ] {
        assert_eq!(check_moves(&fixed, &table(good)), Ok(()), "{good}");
    }
    for moved in [
        "host: evil.example\n  auth: {scheme: header, header: x-api-key, slot: api}",
        "host: '*.api.example'\n  auth: {scheme: header, header: x-api-key, slot: api}",
        "host: api.example\n  auth: {scheme: header, header: x-other, slot: api}",
        "host: api.example\n  auth: {scheme: Bearer, slot: api}",
        "host: api.example\n  auth: {scheme: header, header: x-api-key, slot: wild}",
        "host: a.wild.example\n  auth: {scheme: Bearer, slot: wild}",
    ] {
        let result = check_moves(&fixed, &table(&format!("routes:\n- {moved}\n")));
        assert!(matches!(result, Err(Moved::Elsewhere { .. })), "{moved}: {result:?}");
    }
    let unknown = table("routes:\n- host: a.example\n  auth: {scheme: Bearer, slot: other}\n");
    assert!(matches!(check_moves(&fixed, &unknown), Err(Moved::Unknown { .. })));
}

fn bound(scheme: Scheme) -> Binding {
    Binding { slot: "s".to_owned(), host: "a.example".to_owned(), scheme, header: "x".to_owned() }
}

#[test]
fn formats_headers_by_scheme() {
    for (scheme, secret, value) in [
        (Scheme::Bearer, "abc", "Bearer abc"),
        (Scheme::Token, "abc\n", "token abc"),
        (Scheme::Header, " abc ", "abc"),
        (Scheme::Basic, "user:pass", "Basic dXNlcjpwYXNz"),
    ] {
        let made = header_value(&bound(scheme), &Secret::new(secret.to_owned())).expect(secret);
        assert_eq!(made.expose(), value);
    }
    for (scheme, secret) in [
        (Scheme::Bearer, ""),
        (Scheme::Bearer, " \n"),
        (Scheme::Bearer, "hunter2\r\nx: y"),
        (Scheme::Header, "hunter2\0"),
        (Scheme::Token, "hunter2é"),
        (Scheme::Basic, "hunter2"),
    ] {
        let error = header_value(&bound(scheme), &Secret::new(secret.to_owned())).expect_err(secret);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[test]
fn recognizes_credentials_by_name() {
    for name in [
        "authorization",
        "cookie",
        "x-api-key",
        "x-goog-api-key",
        "my-api-key",
        "x-vault-token",
        "x-shopify-access-token",
        "proxy-authorization",
        "x-authorization",
        "x-goog-iam-authorization-token",
        "authorization-2",
        "x-figma-token",
        "x-gitlab-token",
        "private-token",
        "job-token",
        "circle-token",
        "token",
        "x-functions-key",
        "ocp-apim-subscription-key",
        "fastly-key",
        "x-anything-at-all-key",
        "dd-application-key",
        "x-sentry-auth",
        "x-client-secret",
        "xi-api-key",
        "x-apikey",
        "auth",
        "jwt",
        "authentication",
        "x-authentication",
        "x-client-token",
        "x-block-token",
        "homepage-token",
    ] {
        assert!(strip::is_credential_header(name), "{name}");
        let spelt = name.replace('-', "_");
        assert!(strip::is_credential_header(&spelt), "{spelt}");
    }
    for name in [
        "accept",
        "content-type",
        "x-csrf-token",
        "idempotency-key",
        "x-idempotency-key",
        "lock-token",
        "x-amz-client-token",
        "x-ms-session-token",
        "x-xsrf-token",
        "x-ms-continuation-token",
        "x-next-token",
        "page-token",
        "surrogate-key",
        "sec-websocket-key",
        "anthropic-version",
        "mcp-session-id",
        "x-request-id",
        "if-match",
        "x-goog-user-project",
    ] {
        assert!(!strip::is_credential_header(name), "{name}");
    }
    for name in
        ["x-original-url", "x-rewrite-url", "x_original_uri", "x-forwarded-prefix", "x-http-path-override"]
    {
        assert!(strip::is_rerouting_header(name), "{name}");
    }
    for name in ["x-forwarded-for", "x-original-filename", "origin", "referer", "host"] {
        assert!(!strip::is_rerouting_header(name), "{name}");
    }
    for name in ["range", "if-range", "x_range", "a-im", "want-digest", "grpc-accept-encoding"] {
        assert!(strip::is_partial_header(name), "{name}");
    }
    for name in ["accept", "accept-encoding", "if-none-match", "prefer", "content-range"] {
        assert!(!strip::is_partial_header(name), "{name}");
    }
    assert!(strip::is_own_header("x-bottle-reason") && strip::is_own_header("x_bottle_stripped"));
    assert!(!strip::is_own_header("x-bottles"));
    for header in strip::HEADERS {
        assert_eq!(*header, header.to_ascii_lowercase());
    }
    assert!(strip::is_credential_subprotocol(" OpenAI-insecure-api-key.sk-x"));
    assert!(!strip::is_credential_subprotocol("realtime"));
}

#[test]
fn strips_credentials_from_the_query_only() {
    for (raw, kept) in [
        ("", ""),
        ("a=1&b=2", "a=1&b=2"),
        ("a=1&api_key=x&b=2", "a=1&b=2"),
        ("API-Key=x", ""),
        ("a=1&access%5Ftoken=x", "a=1"),
        ("token=x;a=1", "a=1"),
        ("key=AIzaSyA&a=1", "a=1"),
        ("key=directory/file", "key=directory/file"),
        ("page_token=3&X-Amz-Signature=ab", "page_token=3&X-Amz-Signature=ab"),
        ("token", ""),
    ] {
        assert_eq!(strip::query(raw), kept, "{raw}");
    }
}

#[test]
fn reports_the_keys_stripped_from_a_query() {
    let keys: Vec<&str> = strip::query_keys("a=1&api_key=x;token=y&b=2").collect();
    assert_eq!(keys, ["api_key", "token"]);
    assert_eq!(strip::query_keys("a=1&b").count(), 0);
}

proptest! {
    #[test]
    fn stripping_never_panics_and_is_idempotent(query in any::<String>()) {
        let once = strip::query(&query).into_owned();
        prop_assert_eq!(strip::query(&once), once.clone());
    }

    #[test]
    fn a_table_keeps_to_its_own_bindings(table in arbitrary::table(Form::Runtime)) {
        prop_assert_eq!(check_moves(&bindings(&table), &table), Ok(()));
    }
}
