//! Secrets in requests, in every location and encoding. No secret may arrive upstream.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bottle_policy::decide::Reason;
use bottle_protocol::session::bundle::{Limits, LogLevel, Provision};
use bottle_test_support::upstream::Site;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1::SendRequest;

use super::client::{TestBody, get, http1, http2, read};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, REAL, SITE};

/// A decoy secret that grants no access. Every launch has a canary.
const CANARY: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4";

fn with_canary(provision: &mut Provision) {
    provision.canary = Some(CANARY.into());
}

async fn proxy(route: &'static str) -> ProxyFixture {
    ProxyFixture::with(FixtureOptions { route, change: with_canary, ..FixtureOptions::default() }).await
}

/// Returns `text` in encodings that hide it.
fn spellings(text: &str) -> Vec<(&'static str, String)> {
    let each = |write: fn(u8) -> String| text.bytes().map(write).collect::<String>();
    // The scan finds a passphrase only if the text contains the whole passphrase.
    let halves = text.split_at(text.len() * 2 / 3);
    vec![
        ("plain", text.to_owned()),
        ("base64", STANDARD.encode(text)),
        ("base64, one behind", STANDARD.encode(format!("x{text}"))),
        ("base64, two behind", STANDARD.encode(format!("xy{text}yx"))),
        ("base64url", URL_SAFE_NO_PAD.encode(format!("user:{text}"))),
        ("hex", hex(text)),
        ("hex in capitals", hex(text).to_uppercase()),
        ("base32", data_encoding::BASE32.encode(text.as_bytes())),
        ("percent", each(|byte| format!("%{byte:02x}"))),
        ("twice percent", each(|byte| format!("%25{byte:02X}"))),
        ("escapes", each(|byte| format!("\\u{:04x}", u32::from(byte)))),
        ("entities", each(|byte| format!("&#{byte};"))),
        ("reversed", text.chars().rev().collect()),
        ("separated", text.chars().map(|letter| format!("{letter}.")).collect()),
        ("in capitals", text.to_uppercase()),
        ("zero-width", text.chars().map(|letter| format!("{letter}\u{200b}")).collect()),
        (
            "full width",
            text.chars().map(|letter| char::from_u32(u32::from(letter) + 0xfee0).expect("wide")).collect(),
        ),
        ("halves", format!("{}\",\"{}", halves.0, halves.1)),
    ]
}

fn hex(text: &str) -> String {
    data_encoding::HEXLOWER.encode(text.as_bytes())
}

fn full(text: impl Into<Bytes>) -> TestBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

fn post(path: &str, kind: &str, body: TestBody) -> Request<TestBody> {
    Request::post(path).header("host", SITE).header("content-type", kind).body(body).expect("request")
}

/// Returns one request for each location in a request that can contain `text`.
fn requests(text: &str) -> Vec<(&'static str, Request<TestBody>)> {
    let percent = percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let form = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.txt\"\r\n\r\n";
    let json = format!("{{\"a\":\"{text}\"}}");
    let mut requests = vec![
        ("path", get(SITE, &format!("/v1/{percent}/x"))),
        ("query", get(SITE, &format!("/v1?q={percent}"))),
        ("json", post("/v1", "application/json", full(json.clone()))),
        ("form", post("/v1", "application/x-www-form-urlencoded", full(format!("a=1&b={percent}")))),
        (
            "multipart",
            post("/v1", "multipart/form-data; boundary=b", full(format!("{form}{text}\r\n--b--\r\n"))),
        ),
        ("text of no kind", post("/v1", "x/y", full(text.to_owned()))),
    ];
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        for name in ["x-note", "user-agent", "referer", "accept-language", "traceparent"] {
            let mut request = get(SITE, "/v1");
            request.headers_mut().insert(name, value.clone());
            requests.push(("header", request));
        }
    }
    for coding in ["gzip", "deflate", "zstd"] {
        let mut request = post("/v1", "application/json", full(packed(coding, json.as_bytes())));
        request.headers_mut().insert("content-encoding", HeaderValue::from_static(coding));
        requests.push((coding, request));
    }
    let twice = packed("gzip", &packed("gzip", json.as_bytes()));
    requests.push(("a packed file", post("/v1", "application/octet-stream", full(twice.clone()))));
    let mut request = post("/v1", "application/json", full(twice));
    request.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip, gzip"));
    requests.push(("gzip in gzip", request));
    requests.push(("single bytes", post("/v1", "application/json", bytewise(json.into_bytes()))));
    requests
}

fn packed(coding: &str, text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let level = flate2::Compression::default();
    match coding {
        "gzip" => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), level);
            writer.write_all(text).expect("write");
            writer.finish().expect("finish")
        }
        "deflate" => {
            let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), level);
            writer.write_all(text).expect("write");
            writer.finish().expect("finish")
        }
        _ => ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest),
    }
}

fn bytewise(text: Vec<u8>) -> TestBody {
    let frames = text.into_iter().map(|byte| Ok(Frame::data(Bytes::from(vec![byte]))));
    StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

async fn refused(sender: &mut SendRequest<TestBody>, request: Request<TestBody>, what: &str) {
    sender.ready().await.expect("the connection lives on");
    let answer = sender.send_request(request).await.expect("answer");
    let reason = answer.headers().get("x-bottle-reason").cloned();
    let (status, body) = read(answer).await;
    let text = String::from_utf8_lossy(&body);
    assert_eq!(reason, Some(HeaderValue::from_static("secret-found")), "{what}: {status} {text}");
    for secret in [REAL, CANARY] {
        assert!(!text.contains(secret), "{what}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_every_encoding_in_every_location() {
    let proxy = proxy("dlp: {outbound_on_match: block}").await;
    let mut sender = http1(&proxy, SITE).await;
    for secret in [CANARY, REAL] {
        for (spelling, text) in spellings(secret) {
            for (place, request) in requests(&text) {
                refused(&mut sender, request, &format!("{spelling} in {place}")).await;
            }
        }
    }
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_secrets_in_host_labels_trailers_and_split_frames() {
    let more = "- host: '*.wild.example.com'\n  connect_to: '127.0.0.1:{site}'\n  dlp: {outbound_on_match: redact}\n";
    let site = Site::named(&[SITE, "*.wild.example.com"]);
    let route = "dlp: {outbound_on_match: block}";
    let proxy = ProxyFixture::with(FixtureOptions {
        site,
        route,
        more_routes: more,
        change: with_canary,
        ..FixtureOptions::default()
    })
    .await;
    let host = format!("{}.wild.example.com", CANARY.to_lowercase());
    let mut sender = http1(&proxy, &host).await;
    refused(&mut sender, get(&host, "/"), "host label").await;
    let trailers: HeaderMap =
        [(HeaderName::from_static("x-sum"), HeaderValue::from_static(CANARY))].into_iter().collect();
    let frames = [Ok(Frame::data(Bytes::from_static(b"body"))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    let request = Request::post(format!("https://{SITE}/rpc")).header("te", "trailers").body(body);
    let mut sender = http2(&proxy, SITE).await;
    let answer = sender.send_request(request.expect("request")).await.expect("answer");
    assert_eq!(answer.headers()["x-bottle-reason"], "secret-found", "trailers");
    let text = format!("{{\"key\":\"{CANARY}\"}}").into_bytes();
    let request = Request::post(format!("https://{SITE}/v1")).body(bytewise(text)).expect("request");
    let answer = sender.send_request(request).await.expect("answer");
    assert_eq!(answer.headers()["x-bottle-reason"], "secret-found", "split frames");
    let mut sender = http1(&proxy, SITE).await;
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    refused(&mut sender, post("/v1", "text/plain", full(format!("token = {token}"))), "a token").await;
    assert!(proxy.site.visits().is_empty());
    let answer = proxy.curl(&["-H", &format!("X-Note: {token}"), "https://api.example.com/a"]).await;
    let text = answer.json();
    assert_eq!(text["reason"], "secret-found");
    let sentence = text["sentence"].as_str().expect("sentence");
    assert!(sentence.contains("GitLab") && sentence.contains("the header `x-note`"), "{sentence}");
    assert!(!sentence.contains(token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_line_breaks_in_the_head() {
    let proxy = proxy("dlp: {outbound_on_match: block, outbound_detectors: false}").await;
    let mut sender = http1(&proxy, SITE).await;
    for path in ["/a%0d%0aX-Evil:%201", "/a?b=c%0d%0aX-Evil:%201", "/%E5%98%8A%E5%98%8DX"] {
        sender.ready().await.expect("the connection lives on");
        let answer = sender.send_request(get(SITE, path)).await.expect("answer");
        assert_eq!(answer.headers()["x-bottle-reason"], "structure-refused", "{path}");
        let _ = read(answer).await;
    }
    assert!(proxy.site.visits().is_empty());
    let answer = proxy.curl(&["-d", "two\r\nlines: 1", "https://api.example.com/a?text=one%0Atwo"]).await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_redacted_requests() {
    let proxy = proxy("dlp: {outbound_on_match: redact}").await;
    let mut sender = http1(&proxy, SITE).await;
    let json = format!("{{\"a\":\"keep {CANARY} this\",\"n\":[1,2]}}");
    let mut coded = post("/v1", "application/json", full(packed("gzip", json.as_bytes())));
    coded.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    let mut noted = get(SITE, &format!("/x/{CANARY}?q={CANARY}&r=1"));
    noted.headers_mut().insert("x-note", HeaderValue::from_str(&format!("a {CANARY} b")).expect("value"));
    for (request, expected) in [
        (post("/v1", "application/json", full(json.clone())), r#"{"a":"keep [redacted] this","n":[1,2]}"#),
        (
            post("/v1", "application/json", bytewise(json.clone().into_bytes())),
            r#"{"a":"keep [redacted] this","n":[1,2]}"#,
        ),
        (coded, r#"{"a":"keep [redacted] this","n":[1,2]}"#),
        (noted, ""),
    ] {
        sender.ready().await.expect("the connection lives on");
        let (status, body) = read(sender.send_request(request).await.expect("answer")).await;
        let echo: serde_json::Value = serde_json::from_slice(&body).expect("echo");
        assert_eq!((status.as_u16(), echo["body"].as_str()), (200, Some(expected)), "{echo}");
        assert_eq!(echo["body_bytes"], expected.len());
        assert!(!echo.to_string().contains(CANARY), "{echo}");
    }
    let visit = proxy.site.visits().pop().expect("visit");
    assert_eq!(
        (visit.path.as_str(), visit.header("x-note")),
        ("/x/redacted?q=redacted&r=1", Some("a [redacted] b"))
    );
    // Findings in a packed file cannot be redacted.
    let packed = post("/v1", "application/gzip", full(packed("gzip", json.as_bytes())));
    refused(&mut sender, packed, "a packed file").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_when_no_user_can_be_asked() {
    let proxy = proxy(AUTH).await;
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    let answer = proxy.curl(&["-d", token, "https://api.example.com/v1"]).await;
    let text = answer.json();
    assert_eq!(text["reason"], "secret-found");
    assert!(text["sentence"].as_str().expect("sentence").contains("dlp.outbound_on_match"), "{text}");
    assert_eq!(proxy.denial().await.reason, Reason::SecretFound);
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_long_bodies_up_to_the_limit() {
    let change = |provision: &mut Provision| {
        provision.limits = Limits { body: 4 << 20, spool: 64 << 20 };
        with_canary(provision);
    };
    let proxy = ProxyFixture::with(FixtureOptions { change, ..FixtureOptions::default() }).await;
    let mut sender = http1(&proxy, SITE).await;
    let chunk = Bytes::from((0..64_u32 << 10).map(|n| b"abcdefghij"[n as usize % 10]).collect::<Vec<u8>>());
    let body = |chunks: usize, last: &'static [u8]| {
        let chunk = chunk.clone();
        let frames = (0..chunks).map(move |_| Ok(Frame::data(chunk.clone())));
        let frames = frames.chain([Ok(Frame::data(Bytes::from_static(last)))]);
        StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
    };
    let (status, text) =
        read(sender.send_request(post("/up", "x/y", body(60, b"end"))).await.expect("answer")).await;
    let echo: serde_json::Value = serde_json::from_slice(&text).expect("echo");
    assert_eq!((status.as_u16(), &echo["body_bytes"]), (200, &(60 * (64 << 10) + 3).into()));
    refused(&mut sender, post("/up", "x/y", body(60, CANARY.as_bytes())), "at the end").await;
    sender.ready().await.expect("the connection lives on");
    let answer = sender.send_request(post("/up", "x/y", body(65, b""))).await.expect("answer");
    assert_eq!(answer.headers()["x-bottle-reason"], "body-too-large");
    let bomb = packed("gzip", &vec![0; 64 << 20]);
    for (kind, coding) in [("application/json", Some("gzip")), ("application/gzip", None)] {
        let mut sender = http1(&proxy, SITE).await;
        let mut request = post("/up", kind, full(bomb.clone()));
        if let Some(coding) = coding {
            request.headers_mut().insert("content-encoding", HeaderValue::from_static(coding));
        }
        let answer = sender.send_request(request).await.expect("answer");
        assert_eq!(answer.headers()["x-bottle-reason"], "structure-refused", "{kind}");
    }
    assert_eq!(proxy.site.visits().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_findings_without_values() {
    let wanted = FixtureOptions {
        route: "dlp: {outbound_on_match: redact}",
        more_routes: "- host: strict.example.com\n  dlp: {outbound_on_match: block}\n",
        log: LogLevel::Blocks,
        change: with_canary,
        ..FixtureOptions::default()
    };
    let proxy = ProxyFixture::with(wanted).await;
    assert_eq!(proxy.curl(&["-d", CANARY, "https://api.example.com/a"]).await.status(), 200);
    let token = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
    let url = format!("https://strict.example.com/{token}");
    assert_eq!(proxy.curl(&[&url]).await.status(), 403);
    let refusal = proxy.denial().await;
    assert_eq!(refusal.path, "/redacted");
    assert!(refusal.sentence.contains("GitLab") && !refusal.sentence.contains(token));
    let path = proxy.directory.path().join("egress.jsonl");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let lines = loop {
        let text = std::fs::read_to_string(&path).expect("log");
        if text.lines().count() == 2 {
            break text;
        }
        assert!(std::time::Instant::now() < until, "two lines were never written: {text}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert!(!lines.contains(token) && !lines.contains(CANARY), "{lines}");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        (&lines[0]["verdict"], &lines[0]["found"]),
        (&"redacted".into(), &"a secret of this bottle in the request".into())
    );
    assert_eq!((&lines[1]["verdict"], &lines[1]["reason"]), (&"denied".into(), &"secret-found".into()));
}
