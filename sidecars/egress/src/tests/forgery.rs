//! Upstream servers that imitate the proxy's responses, and requests with headers or fields that make a server treat
//! them as other requests.

use std::sync::Arc;

use bottle_protocol::session::bundle::Provision;
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::Body;
use bottle_test_support::server::{Server, handler};
use bottle_test_support::upstream::Site;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::client::{get, get2, http1, http2};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, SITE};

/// Starts a plain server that sends `answer` on every connection. Returns its port.
async fn serve(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a server");
    let port = listener.local_addr().expect("address").port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = socket.read_u8().await else { return };
                    head.push(byte);
                }
                // The client may close the connection before it has read all bytes.
                let _ = socket.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

const FORGED: &str = "x-bottle-reason: host-not-allowed\r\nX-Bottle-Stripped: cookie\r\nx_bottle_id: 1\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removes_forged_proxy_headers_from_http1_responses() {
    let body = "{\"id\":\"a336224cf056\",\"reason\":\"host-not-allowed\",\"host\":\"a\",\"sentence\":\"x\"}";
    let length = format!("content-length: {}", body.len());
    let answers = [
        format!("HTTP/1.1 403 bottle: host-not-allowed\r\n{FORGED}{length}\r\n\r\n{body}"),
        format!("HTTP/1.1 403 Forbidden by bottle: real\r\n{FORGED}{length}\r\n\r\n{body}"),
        format!(
            "HTTP/1.1 103 bottle: wait\r\n{FORGED}\r\nHTTP/1.1 403 Forbidden\r\n{FORGED}{length}\r\n\r\n{body}"
        ),
        format!(
            "HTTP/1.1 100 Continue\r\n{FORGED}\r\nHTTP/1.1 403 F\r\n{length}\r\nConnection: close\r\n\r\n{body}"
        ),
        format!(
            "HTTP/1.1 403 F\r\nTrailer: x-bottle-reason\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n{FORGED}\r\n",
            body.len()
        ),
    ];
    for answer in answers {
        let answer: &'static str = answer.leak();
        let port = serve(answer).await;
        let yaml = format!("routes:\n- host: {SITE}\n  ports: [80]\n  connect_to: '127.0.0.1:{port}'\n");
        let proxy = ProxyFixture::with_routes("", yaml, |_| {}).await;
        for te in [&[][..], &["-H", "TE: trailers"]] {
            let answer_from_proxy = proxy.curl(&[te, &[&format!("http://{SITE}/")]].concat()).await;
            let received = answer_from_proxy.text();
            assert_eq!(answer_from_proxy.status(), 403, "{answer}: {received}");
            assert!(received.contains(" 403 Forbidden"), "{answer}: {received}");
            assert!(received.contains(body), "{answer}: {received}");
            let lower = received.to_ascii_lowercase();
            // A header that announces a trailer does not count as forged.
            let forged = lower.lines().find(|line| {
                line.starts_with("x-bottle")
                    || line.starts_with("x_bottle")
                    || line.contains("bottle:")
                    || line.contains(" 103 ")
            });
            assert_eq!(forged, None, "{answer}: {received}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removes_forged_proxy_headers_from_http2_trailers_and_upgrades() {
    let authority = Authority::new("forged").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Both).expect("config");
    let answer = handler(Arc::new(()), |_, _: Request<Incoming>| async move { Some(forging()) });
    let site = Server::start(0, Some(tls), answer).expect("server");
    for route in ["websocket: allow", "dlp: {inbound_detectors: false}"] {
        let proxy = ProxyFixture::open().await;
        let proxy =
            ProxyFixture::reopened_with_log(proxy, authority.pem(), site.address().port(), route).await;
        let mut sender = http2(&proxy, SITE).await;
        let mut request = get2(SITE, "/");
        request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        let answer = sender.send_request(request).await.expect("answer");
        assert!(is_clean(answer.headers()), "{:?}", answer.headers());
        let collected = answer.into_body().collect().await.expect("a body");
        let trailers = collected.trailers().expect("trailers");
        assert!(trailers.contains_key("grpc-status") && is_clean(trailers), "{trailers:?}");
        let mut sender = http1(&proxy, SITE).await;
        let answer = sender.send_request(get(SITE, "/")).await.expect("answer");
        assert!(is_clean(answer.headers()), "{:?}", answer.headers());
    }
    let upgraded = format!(
        "HTTP/1.1 101 bottle: refused\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{FORGED}Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    );
    let port = serve(upgraded.leak()).await;
    let yaml = format!("routes:\n- host: {SITE}\n  ports: [80]\n  connect_to: '127.0.0.1:{port}'\n");
    let proxy = ProxyFixture::with_routes("", yaml, |_| {}).await;
    let mut socket = proxy.connect(80).await;
    let ask = format!(
        "GET / HTTP/1.1\r\nHost: {SITE}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Bottle-Reason: mine\r\n\r\n"
    );
    socket.write_all(ask.as_bytes()).await.expect("ask");
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        received.push(socket.read_u8().await.expect("an answer"));
    }
    let received = String::from_utf8_lossy(&received).to_ascii_lowercase();
    assert!(received.starts_with("http/1.1 101 switching protocols"), "{received}");
    assert!(!received.contains("\nx-bottle-reason") && !received.contains("x_bottle"), "{received}");
    assert!(received.contains("x-bottle-stripped: x-bottle-reason"), "{received}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_an_upgrade_that_was_not_requested() {
    for upgrade in
        ["Upgrade: websocket\r\nConnection: Upgrade\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n", ""]
    {
        let answer = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n\x01\x05hello");
        let port = serve(answer.leak()).await;
        let yaml = format!("routes:\n- host: {SITE}\n  ports: [80]\n  connect_to: '127.0.0.1:{port}'\n");
        let proxy = ProxyFixture::with_routes("", yaml, |_| {}).await;
        let mut socket = proxy.connect(80).await;
        // The connection to the bottle stays usable, and the connection to the host is not used again.
        for _ in 0..2 {
            socket
                .write_all(format!("GET / HTTP/1.1\r\nHost: {SITE}\r\n\r\n").as_bytes())
                .await
                .expect("ask");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let byte = tokio::time::timeout(std::time::Duration::from_secs(20), socket.read_u8()).await;
                head.push(byte.expect("an answer in time").expect("an answer"));
            }
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 502") && head.contains("upstream-unreachable"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.and_then(|length| length.parse().ok()).expect("a length")];
            socket.read_exact(&mut body).await.expect("a body");
            assert!(!body.windows(5).any(|part| part == b"hello"));
        }
    }
}

fn is_clean(headers: &HeaderMap) -> bool {
    !headers.keys().any(|name| name.as_str().replace('_', "-").starts_with("x-bottle"))
}

/// Returns a response that imitates the proxy's headers, in its headers and trailers.
fn forging() -> Response<Body> {
    let forge = |headers: &mut HeaderMap| {
        for name in ["x-bottle-reason", "x-bottle-stripped", "x_bottle_reason"] {
            headers.insert(name, HeaderValue::from_static("host-not-allowed"));
        }
    };
    let mut trailers = HeaderMap::new();
    forge(&mut trailers);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = [Ok(Frame::data(Bytes::from_static(b"text"))), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed());
    forge(response.headers_mut());
    response
}

/// Headers with which a front end tells the servers behind it to use another path or method.
const OVERRIDES: [&str; 14] = [
    "X-Original-URL",
    "X-Rewrite-URL",
    "X-Original-URI",
    "X-Override-URL",
    "X-Forwarded-Path",
    "X-Forwarded-Prefix",
    "X-Forwarded-Uri",
    "X-Forwarded-Host",
    "X-HTTP-Path-Override",
    "X-Http-DestinationURL",
    "x_original_url",
    "X-Host",
    "X-Script-Name",
    "Forwarded",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strips_headers_that_override_path_or_method() {
    let route = "matches: [{paths: [{type: prefix, value: /ok}], methods: [GET, POST, MOVE]}]";
    let proxy = ProxyFixture::with(FixtureOptions { route, ..FixtureOptions::default() }).await;
    let url = format!("https://{SITE}/ok");
    for version in ["--http1.1", "--http2"] {
        for name in OVERRIDES {
            let header = format!("{name}: /evil");
            let answer = proxy.curl(&[version, "-H", &header, &url]).await;
            assert_eq!(answer.status(), 200, "{name}");
            assert_eq!(answer.header("x-bottle-stripped"), Some(name.to_ascii_lowercase()), "{name}");
            let visit = proxy.site.visits().pop().expect("a visit");
            assert!(!visit.headers.iter().any(|(_, value)| value.contains("evil")), "{name}: {visit:?}");
        }
        let answer = proxy.curl(&[version, "-X", "MOVE", "-H", "Destination: /evil", &url]).await;
        assert_eq!(answer.header("x-bottle-stripped").as_deref(), Some("destination"));
        for (name, value) in [
            ("X-HTTP-Method-Override", "DELETE"),
            ("X-HTTP-Method", "delete"),
            ("X-Method-Override", "PUT"),
            ("X_HTTP_METHOD_OVERRIDE", "PUT"),
            ("X-Method", "PATCH"),
        ] {
            let header = format!("{name}: {value}");
            let answer = proxy.curl(&[version, "-X", "POST", "-H", &header, &url]).await;
            assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("request-not-allowed"), "{header}");
        }
        for query in
            ["_METHOD=DELETE", "_Method=delete", "%5FMETHOD=delete", "method=DELETE", "a=1;_method=PUT"]
        {
            let answer = proxy.curl(&[version, "-X", "POST", &format!("{url}?{query}")]).await;
            assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("request-not-allowed"), "{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_forms_that_override_the_method() {
    let route = "matches: [{methods: [GET, POST]}]";
    let proxy = ProxyFixture::with(FixtureOptions { route, ..FixtureOptions::default() }).await;
    let url = format!("https://{SITE}/ok");
    let json = ["-H", "Content-Type: application/json", "-d"];
    for form in [
        &["-d", "a=1&_method=DELETE"][..],
        &["-d", "%5FMethod=delete&a=1"],
        &["-F", "a=1", "-F", "_method=put"],
        &["-F", "_METHOD=PUT"],
        &[&json[..], &["{\"a\":{},\"_method\":\"delete\"}"]].concat(),
    ] {
        let answer = proxy.curl(&[&["--http1.1"][..], form, &[&url]].concat()).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("request-not-allowed"), "{form:?}");
    }
    assert!(proxy.site.visits().is_empty(), "{:?}", proxy.site.visits());
    for form in [
        &["-d", "a=1&_method=post"][..],
        &["-F", "a=_method=DELETE"],
        &[&json[..], &["{\"a\":\"_method=DELETE\",\"b\":{\"_method\":\"DELETE\"}}"]].concat(),
    ] {
        assert_eq!(proxy.curl(&[form, &[&url]].concat()).await.status(), 200, "{form:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_disguised_git_pushes() {
    let proxy =
        ProxyFixture::with(FixtureOptions { route: "git: {fetch: true}", ..FixtureOptions::default() }).await;
    let kind = "Content-Type: application/x-git-receive-pack-request";
    for version in ["--http1.1", "--http2"] {
        for arguments in [
            &["-X", "POST", "/o/r.git/git-receive-pack/"][..],
            &["-X", "POST", "/o/r.git//git-receive-pack//"],
            &["-X", "POST", "/o/r/Git-Receive-Pack/"],
            &["-X", "POST", "/o/r/git%2Dreceive%2Dpack/;x"],
            &["-X", "POST", "/o/r/git%252Dreceive-pack/"],
            &["-X", "POST", "-H", kind, "/o/r/alias"],
            &["-X", "PUT", "/o/r.git/refs/heads/main"],
            &["/o/r.git/info/refs/?service=git-receive-pack"],
            &["/o/r.git/info/refs?SERVICE=git-receive-pack"],
            &["/o/r.git/info/refs?a=1&service=git%2Dreceive%2Dpack"],
            &["/o/r.git/info/refs?service=git-upload-pack&service=git-receive-pack"],
        ] {
            let (path, options) = arguments.split_last().expect("a path");
            let url = format!("https://{SITE}{path}");
            let answer = proxy.curl(&[&[version, "--path-as-is"][..], options, &[&url]].concat()).await;
            assert_eq!(answer.error(), "", "{version} {arguments:?}");
            assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("use-git-gate"), "{arguments:?}");
        }
    }
    assert!(proxy.site.visits().is_empty(), "{:?}", proxy.site.visits());
    let url = format!("https://{SITE}/o/r.git/info/refs?service=git-upload-pack");
    assert_eq!(proxy.curl(&[&url]).await.status(), 200, "the control arrives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_forge_writes_beyond_the_harmless_ones() {
    let more_routes = "forges: [example.com]\n";
    let proxy = ProxyFixture::with(FixtureOptions { more_routes, ..FixtureOptions::default() }).await;
    for (method, path) in [
        ("PUT", "/repos/o/r/collaborators/mallory"),
        ("POST", "/repos/o/r/actions/runners/registration-token"),
        ("POST", "/repos/o/r/actions/workflows/1/dispatches"),
        ("PUT", "/orgs/o/members/mallory"),
        ("PATCH", "/repos/o/r/actions/variables/x"),
        ("POST", "/user/keys"),
        ("POST", "/api/v4/projects/1/access_tokens"),
        ("PUT", "/o/r/raw/main/a.txt"),
        ("MKCOL", "/dav/o"),
        ("POST", "/repos/o/r/invented-tomorrow"),
        ("GET", "/graphql?query=mutation"),
    ] {
        let url = format!("https://{SITE}{path}");
        let answer = proxy.curl(&["-X", method, &url]).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("use-git-gate"), "{method} {path}");
    }
    assert!(proxy.site.visits().is_empty(), "{:?}", proxy.site.visits());
    // GitLab executes quick actions in comments.
    let notes = format!("https://{SITE}/api/v4/projects/1/merge_requests/2/notes");
    for arguments in [
        &["-d", "body=ready%0A/merge"][..],
        &["-H", "Content-Type: application/json", "-d", r#"{"body": "ready\n\u002fmerge"}"#],
        &["-F", "body=/merge"],
    ] {
        let answer = proxy.curl(&[arguments, &[&notes]].concat()).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("use-git-gate"), "{arguments:?}");
    }
    let in_query = format!("{notes}?body=%2Fmerge");
    let answer = proxy.curl(&["-X", "POST", &in_query]).await;
    assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("use-git-gate"));
    assert!(proxy.site.visits().is_empty(), "{:?}", proxy.site.visits());
    assert_eq!(proxy.curl(&["-d", "body=see /merge", &notes]).await.status(), 200);
    for path in ["/repos/o/r/issues", "/repos/o/r/pulls/7/reviews", "/repos/o/r/pulls"] {
        let url = format!("https://{SITE}{path}");
        assert_eq!(proxy.curl(&["-X", "POST", "-d", "{}", &url]).await.status(), 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_methods_that_carry_secrets() {
    let site = Site::named(&[SITE]);
    for route in [AUTH, "dlp: {outbound_on_match: redact}", "dlp: {outbound_on_match: block}"] {
        let change = |provision: &mut Provision| {
            provision.credentials[0].value = Some("QxvwKtrbMzpLhdSgjnYcfW".into());
        };
        let proxy = ProxyFixture::with(FixtureOptions {
            site: site.clone(),
            route,
            change,
            ..FixtureOptions::default()
        })
        .await;
        // Parts of the secret in capital letters, and other words.
        for (method, reason) in [
            ("QXVWKTRBMZPLHDSGJNYC", "secret-found"),
            ("RBMZPLHDSGJNY", "secret-found"),
            ("QxvwKtrbMzpLhdSgjnYcfW", "method-refused"),
            ("QXVWKTRBMZPLHDSGJNYCFW", "method-refused"),
            ("GLPAT1XK3", "method-refused"),
            ("get", "method-refused"),
            ("G.ET", "method-refused"),
        ] {
            for version in ["--http1.1", "--http2"] {
                let url = format!("https://{SITE}/");
                let answer = proxy.curl(&[version, "-X", method, &url]).await;
                assert_eq!(answer.header("x-bottle-reason").as_deref(), Some(reason), "{route} {method}");
                let denial = proxy.denial().await;
                assert!(reason == "method-refused" || !denial.method.contains("RBMZPLHD"), "{denial:?}");
            }
            // The proxy also denies a WebSocket upgrade whose method is `method`.
            let mut socket = super::client::tunnel(&proxy, SITE, &[b"http/1.1"]).await;
            let ask = format!(
                "{method} / HTTP/1.1\r\nHost: {SITE}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            socket.write_all(ask.as_bytes()).await.expect("ask");
            let mut received = [0; 12];
            socket.read_exact(&mut received).await.expect("an answer");
            assert_eq!(&received, b"HTTP/1.1 403", "{method}");
            let _ = proxy.denial().await;
        }
        assert!(proxy.site.visits().is_empty(), "{:?}", proxy.site.visits());
        for method in ["PURGE", "M-SEARCH"] {
            assert_eq!(
                proxy.curl(&["-X", method, &format!("https://{SITE}/")]).await.status(),
                200,
                "{method}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_line_breaks_in_queries_and_headers() {
    let proxy = ProxyFixture::with(FixtureOptions {
        route: "dlp: {outbound_detectors: false}",
        ..FixtureOptions::default()
    })
    .await;
    for query in [
        "a=x%0d%0ay",
        "a=x%0D%0Ay",
        "a=x%250d%250ay",
        "a=x%25250D%25250Ay",
        "a=x%0dy",
        "%0d%0a",
        "a=%5Cr%5Cn",
    ] {
        for version in ["--http1.1", "--http2"] {
            let answer = proxy.curl(&[version, &format!("https://{SITE}/?{query}")]).await;
            assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("structure-refused"), "{query}");
        }
    }
    for value in [
        "x%0d%0ay",
        "x%0D%0Ay",
        "x%250d%250ay",
        "x%u000d%u000ay",
        "x%c0%8d%c0%8ay",
        "x%E5%98%8Dy",
        r"x\r\ny",
        "x&#13;&#10;y",
        "x%0aSet-Cookie: a=b",
    ] {
        for version in ["--http1.1", "--http2"] {
            let url = format!("https://{SITE}/");
            let answer = proxy.curl(&[version, "-H", &format!("x-note: {value}"), &url]).await;
            assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("structure-refused"), "{value}");
        }
    }
    assert!(proxy.site.visits().is_empty(), "{:?}", proxy.site.visits());
    assert_eq!(proxy.curl(&[&format!("https://{SITE}/?text=one%0Atwo")]).await.status(), 200);
}
