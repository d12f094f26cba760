//! Ordinary traffic that resembles a leak: pre-signed links, signed uploads, and credentials that the user allowed.

use std::sync::{Arc, Mutex, PoisonError};

use bottle_protocol::session::bundle::{LogLevel, Provision};
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body, whole};
use bottle_test_support::server::{Server, handler};
use bottle_test_support::skip;
use bottle_test_support::upstream::Site;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::fixture::{FixtureOptions, ProxyFixture, REAL, SITE};

const ASSETS: &str = "assets.example.com";
const HEX64: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const BLOCK: &str = "dlp: {outbound_on_match: block}";

/// A secret that the agent holds, because it is a value of `env`.
const OWN: &str = "Wm4Tx8Qz2Lk6Vp9Rb3Yd7Hs5";

fn access_key() -> String {
    ["AKIA", "Q7ZXW3RTYPLMNB5C"].concat()
}

fn github_token() -> String {
    // The checksum at the end of the token is correct.
    ["ghp_", "Q7zXw3RtYpLmNb5cVk9Hs2Jd8Fg4As"].concat() + &checksum("Q7zXw3RtYpLmNb5cVk9Hs2Jd8Fg4As")
}

/// Returns the checksum at the end of a GitHub token: CRC-32 in base 62.
fn checksum(body: &str) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(body.as_bytes());
    let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut left = crc.sum();
    let mut text: Vec<u8> = (0..6)
        .map(|_| {
            let digit = digits[(left % 62) as usize];
            left /= 62;
            digit
        })
        .collect();
    text.reverse();
    String::from_utf8(text).expect("ASCII")
}

fn jwt() -> String {
    let payload = "eyJpc3MiOiJnaXRodWIuY29tIiwiYXVkIjoiYXNzZXRzLmV4YW1wbGUuY29tIiwia2V5Ijoia2V5MSJ9";
    ["eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", payload, "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zC0fR"].join(".")
}

fn sas() -> String {
    "sp=r&sv=2018-11-09&sr=b&spr=https&se=2026-11-24T02%3A00%3A00Z&rscd=attachment%3B+filename%3Dx.tgz\
     &sig=Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZmdoaWo%3D"
        .to_owned()
}

fn sigv4(signature: &str) -> String {
    format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}%2F20261124%2Fus-east-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20261124T010000Z&X-Amz-Expires=300&X-Amz-SignedHeaders=host&X-Amz-Signature={signature}",
        access_key()
    )
}

/// The requests that a site received: path and query, `Authorization`, and the body.
type Received = Arc<Mutex<Vec<(String, String, Vec<u8>)>>>;

/// A site that redirects to signed links and also serves these links, and a proxy with routes to this site.
struct Links {
    proxy: ProxyFixture,
    received: Received,
    _site: Server,
}

async fn links(route: &str, change: fn(&mut Provision)) -> Links {
    let authority = Authority::new("links").expect("authority");
    let tls = authority.server_config(&[SITE, ASSETS], Leaf::Valid, Alpn::Both).expect("config");
    let received = Received::default();
    let site = Server::start(0, Some(tls), handler(Arc::clone(&received), answer)).expect("server");
    let to = format!("connect_to: '127.0.0.1:{}'", site.address().port());
    let yaml = format!("routes:\n- host: {SITE}\n  {to}\n  {route}\n- host: {ASSETS}\n  {to}\n  {BLOCK}\n");
    let proxy = ProxyFixture::with_routes(authority.pem(), yaml, change).await;
    Links { proxy, received, _site: site }
}

async fn answer(received: Received, request: Request<Incoming>) -> Option<Response<Body>> {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let credential =
        parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = body.collect().await.ok()?.to_bytes().to_vec();
    received.lock().unwrap_or_else(PoisonError::into_inner).push((target, credential.to_owned(), body));
    let location = match parts.uri.path() {
        "/release" => format!("https://{ASSETS}/x.tgz?{}&jwt={}", sas(), jwt()),
        "/leak" => format!("https://{ASSETS}/x.tgz?a={REAL}&b={OWN}"),
        // boto3 expects no content after an upload.
        _ if parts.method == "PUT" => return Some(Response::new(whole(""))),
        _ => return Some(Response::new(whole("content\n"))),
    };
    let mut response = Response::new(whole("moved\n"));
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert("location", HeaderValue::try_from(location).ok()?);
    Some(response)
}

fn with_own_secret(provision: &mut Provision) {
    provision.known_secrets = vec![OWN.into()];
    provision.canary = Some("Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4".into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pre_signed_links_are_no_findings() {
    let Links { proxy, _site, .. } = links(BLOCK, with_own_secret).await;
    let get = async |query: &str| proxy.curl(&[&format!("https://{ASSETS}/x.tgz?{query}")]).await.status();
    let v2 = format!(
        "AWSAccessKeyId={}&Expires=1795000000&Signature=vjbyPxybdZaNmGa%2ByT272YEAiv4%3D",
        access_key()
    );
    let gcs = format!(
        "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential=x%40y.iam.gserviceaccount.com%2F20261124%2Fauto%2Fstorage\
         %2Fgoog4_request&X-Goog-Date=20261124T010000Z&X-Goog-Expires=300&X-Goog-SignedHeaders=host&X-Goog-Signature={}",
        HEX64.repeat(8)
    );
    for query in [sigv4(HEX64), sas(), v2, gcs] {
        assert_eq!(get(&query).await, 200, "{query}");
    }
    // The same values in other parameters, and other secrets in these parameters, are findings.
    let token = github_token();
    for query in [
        format!("a={}", access_key()),
        sigv4(&token),
        format!("{}&a={token}", sigv4(HEX64)),
        sigv4(HEX64).replace("s3%2Faws4_request", &token),
        sigv4(OWN),
        sas().replace("Zm9vYmFy", OWN),
        format!("sig={}", "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZmdoaWo%3D"),
        format!("{}&jwt={}", sas(), jwt()),
    ] {
        assert_eq!(get(&query).await, 403, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_from_an_allowed_host_is_no_finding() {
    let Links { proxy, received, _site } = links(BLOCK, with_own_secret).await;
    let link = format!("https://{ASSETS}/x.tgz?{}&jwt={}", sas(), jwt());
    assert_eq!(proxy.curl(&[&link]).await.status(), 403, "no host has sent this link");
    for version in ["--http1.1", "--http2"] {
        let answer = proxy.curl(&["--location", version, &format!("https://{SITE}/release")]).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    assert_eq!(proxy.curl(&[&link]).await.status(), 200);
    let wanted = format!("/x.tgz?{}&jwt={}", sas(), jwt());
    assert!(received.lock().expect("received").iter().any(|(target, ..)| *target == wanted));
    // A link with another host, another path or more parameters is a different link.
    for other in [link.replace(ASSETS, SITE), link.replace("x.tgz", "y.tgz"), format!("{link}&a=1")] {
        assert_eq!(proxy.curl(&[&other]).await.status(), 403, "{other}");
    }
    // A host cannot make the proxy forward a known secret.
    let answer = proxy.curl(&["--location", &format!("https://{SITE}/leak")]).await;
    assert_eq!(answer.status(), 403, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_the_credential_that_the_user_allowed_and_only_there() {
    let route = "pass_credentials: true\n  dlp: {outbound_on_match: block}";
    let Links { proxy, received, _site } = links(route, with_own_secret).await;
    let (key, token) = (access_key(), github_token());
    let own = format!("https://{SITE}/v1");
    let sigv4 = format!(
        "authorization: AWS4-HMAC-SHA256 Credential={key}/20261124/us-east-1/s3/aws4_request, \
         SignedHeaders=host;x-amz-date, Signature={HEX64}"
    );
    let login = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("me:{token}"));
    for header in [
        format!("authorization: Bearer {token}"),
        format!("authorization: Bearer {OWN}"),
        format!("authorization: Basic {login}"),
        format!("x-api-key: {OWN}"),
        format!("cookie: session={}", jwt()),
        sigv4,
    ] {
        let answer = proxy.curl(&["-H", &header, &own]).await;
        assert_eq!(answer.status(), 200, "{header}: {}", answer.text());
    }
    let seen: Vec<String> =
        received.lock().expect("received").iter().map(|(_, value, _)| value.clone()).collect();
    assert!(seen.contains(&format!("Bearer {OWN}")) && seen.contains(&format!("Bearer {token}")), "{seen:?}");
    assert_eq!(proxy.curl(&[&format!("{own}?access_token={token}&a=1")]).await.status(), 200);
    let canary = "authorization: Bearer Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4";
    let elsewhere = format!("https://{ASSETS}/v1");
    let (note, bearer, data) =
        (format!("x-note: {OWN}"), format!("authorization: Bearer {token}"), format!("a={token}"));
    for arguments in [
        &["-H", canary, &own][..],
        &["-H", &format!("authorization: Bearer {REAL}"), &own],
        &["-H", &note, &own],
        &["-d", &data, &own],
        &[&format!("{own}?a={token}")],
        &["-H", &bearer, "-H", &note, &elsewhere],
    ] {
        assert_eq!(proxy.curl(arguments).await.status(), 403, "{arguments:?}");
    }
    // For a request to the other host, the proxy removes the header.
    assert_eq!(proxy.curl(&["-H", &bearer, &elsewhere]).await.status(), 200);
    assert_eq!(
        received.lock().expect("received").last().map(|(_, value, _)| value.clone()),
        Some(String::new())
    );
}

/// A program that uses boto3 to upload an object without a secret, and then objects with a secret. boto3 sends the
/// objects in `aws-chunked`.
const UPLOAD: &str = r#"
import boto3, io, sys
from botocore.config import Config
from botocore.exceptions import ClientError
config = Config(s3={'addressing_style': 'path'}, retries={'max_attempts': 1}, proxies={'https': sys.argv[2]})
s3 = boto3.client('s3', region_name='us-east-1', endpoint_url='https://' + sys.argv[1], config=config,
    aws_access_key_id=sys.argv[4], aws_secret_access_key='not-checked-by-the-site', verify=sys.argv[3])
s3.put_object(Bucket='b', Key='clean', Body=io.BytesIO(b'clean content ' * 20000))
for body in (sys.argv[5].encode(), b'x' * 65530 + sys.argv[5].encode()):
    try:
        s3.put_object(Bucket='b', Key='secret', Body=io.BytesIO(body))
        print('PASSED')
    except ClientError as error:
        print(error.response['ResponseMetadata']['HTTPStatusCode'])
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_uploads_are_decoded_and_scanned() {
    let found = tokio::process::Command::new("python3").args(["-c", "import boto3"]).output().await;
    if !found.is_ok_and(|output| output.status.success()) {
        skip::aloud("boto3_uploads_are_decoded_and_scanned", &"python3 has no package boto3");
        return;
    }
    let route = "pass_credentials: true\n  dlp: {outbound_on_match: block}";
    let Links { proxy, received, _site } = links(route, with_own_secret).await;
    let output = tokio::process::Command::new("python3")
        .args(["-c", UPLOAD, SITE, &format!("http://{}", proxy.proxy)])
        .arg(proxy.ca())
        .args([&access_key(), OWN])
        .output()
        .await
        .expect("python3");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.trim(), "403\n403", "{errors}");
    let received = received.lock().expect("received");
    let [(target, credential, body)] = &received[..] else { panic!("{} requests", received.len()) };
    assert_eq!(target, "/b/clean");
    assert!(credential.starts_with("AWS4-HMAC-SHA256"), "{credential}");
    // The `aws-chunked` framing and its trailer arrive unchanged.
    assert!(body.starts_with(b"44") || body.starts_with(b"10000\r\n"), "{:?}", &body[..20]);
    assert!(memchr::memmem::find(body, b"x-amz-checksum-").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_all_parts_of_an_aws_chunked_body() {
    let Links { proxy, received, _site } = links(BLOCK, with_own_secret).await;
    let (one, two) = OWN.split_at(13);
    let signed = format!("4;chunk-signature={HEX64}\r\nabcd\r\n0;chunk-signature={HEX64}\r\n\r\n");
    let post = async |coding: &str, body: &str| {
        let coding = format!("content-encoding: {coding}");
        let url = format!("https://{SITE}/v1");
        proxy.curl(&["-H", &coding, "--data-binary", body, &url]).await
    };
    for body in [&signed, "4\r\nabcd\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", "0\r\n\r\n"] {
        let answer = post("aws-chunked", body).await;
        assert_eq!(answer.status(), 200, "{body}: {}", answer.text());
        assert_eq!(received.lock().expect("received").last().expect("a request").2, body.as_bytes());
    }
    for (body, reason) in [
        (format!("d\r\n{one}\r\nb\r\n{two}\r\n0\r\n\r\n"), "secret-found"),
        (format!("4;chunk-signature={OWN}\r\nabcd\r\n0\r\n\r\n"), "secret-found"),
        (format!("4\r\nabcd\r\n0\r\nx-amz-checksum-crc32:{OWN}\r\n\r\n"), "secret-found"),
        ("4\r\nabcde\r\n0\r\n\r\n".to_owned(), "structure-refused"),
        ("4\r\nabcd\r\n".to_owned(), "structure-refused"),
        ("0\r\n\r\nmore".to_owned(), "structure-refused"),
        ("fffffffffffffffff\r\n".to_owned(), "structure-refused"),
    ] {
        let answer = post("aws-chunked", &body).await;
        assert_eq!(answer.header("x-bottle-reason").as_deref(), Some(reason), "{body}");
    }
}

/// Returns the text `found` of each log line with the verdict `noticed`.
async fn warnings(proxy: &ProxyFixture, lines: usize) -> Vec<String> {
    let lines = proxy.logged(lines).await;
    let noticed = lines.iter().filter(|line| line["verdict"] == "noticed");
    noticed.map(|line| line["found"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_the_warnings_of_the_scanner() {
    let route = "dlp: {outbound_on_match: block, outbound_detectors: [token_patterns, entropy]}";
    let options = FixtureOptions {
        site: Site::named(&[SITE]),
        route,
        log: LogLevel::Blocks,
        ..FixtureOptions::default()
    };
    let proxy = ProxyFixture::with(options).await;
    let url = format!("https://{SITE}/v1");
    let token = github_token();
    let changed = if token.ends_with('0') { "1" } else { "0" };
    let changed = format!("a={}{changed}", &token[..token.len() - 1]);
    assert_eq!(proxy.curl(&["-d", &changed, &url]).await.status(), 200);
    let found = warnings(&proxy, 1).await;
    assert!(
        found[0].contains("a GitHub personal access token") && found[0].contains("checksum"),
        "{found:?}"
    );
    assert!(found[0].ends_with("in the body"), "{found:?}");
    // Random bytes, and the same bytes in base64.
    let bytes: Vec<u8> = std::iter::repeat_with(rand::random).take(512).collect();
    let file = proxy.directory.path().join("random");
    for content in [
        bytes.clone(),
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &bytes).into_bytes(),
    ] {
        std::fs::write(&file, content).expect("file");
        let data = format!("@{}", file.display());
        assert_eq!(proxy.curl(&["--data-binary", &data, &url]).await.status(), 200);
    }
    let found = warnings(&proxy, 3).await;
    assert!(
        found.len() == 3 && found[1..].iter().all(|found| found.contains("as random as a key")),
        "{found:?}"
    );
    // Prose alone causes no warning.
    assert_eq!(
        proxy.curl(&["-d", &"ordinary prose, and nothing else ".repeat(40), &url]).await.status(),
        200
    );
    assert_eq!(proxy.curl(&["-d", &token, &url]).await.status(), 403);
    let lines = proxy.logged(4).await;
    assert_eq!((lines.len(), lines[3]["verdict"].as_str()), (4, Some("denied")));
}
