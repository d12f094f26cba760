//! Partial and alternative responses: a site echoes the credential, and a client requests this response a few bytes at
//! a time.

use std::sync::Arc;

use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body, whole};
use bottle_test_support::server::{Server, handler};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::fixture::{AUTH, ProxyFixture, REAL, SITE};

/// Returns the response of a site that echoes the credential, serves any range of this response, and lists the names of
/// the request's headers.
fn answer(request: &Request<Incoming>) -> Response<Body> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let text = format!("you are {}, welcome", header("authorization").unwrap_or("nobody"));
    let range = ["range", "request-range", "x-range", "x-ms-range"].iter().find_map(|name| header(name));
    let ranges: Vec<&str> =
        range.and_then(|range| range.strip_prefix("bytes=")).unwrap_or_default().split(',').collect();
    let slice = |range: &&str| -> Option<String> {
        let (start, end) = range.trim().split_once('-')?;
        let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
        text.get(start..=end.min(text.len() - 1)).map(str::to_owned)
    };
    let parts: Vec<String> = ranges.iter().filter_map(slice).collect();
    let (status, body) = match parts.as_slice() {
        [] => (StatusCode::OK, text),
        [one] => (StatusCode::PARTIAL_CONTENT, one.clone()),
        several => {
            let parts = several.iter().map(|part| format!("--b\r\nContent-Range: bytes\r\n\r\n{part}\r\n"));
            (StatusCode::PARTIAL_CONTENT, parts.collect::<String>() + "--b--\r\n")
        }
    };
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    let names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
    response.headers_mut().insert("x-asked-with", names.join(" ").parse().expect("names"));
    response
}

async fn setup(route: &str) -> (ProxyFixture, Server) {
    let authority = Authority::new("parts").expect("authority");
    let tls = authority.server_config(&[SITE], Leaf::Valid, Alpn::Both).expect("config");
    let answer = handler(Arc::new(()), |_, request: Request<Incoming>| async move { Some(answer(&request)) });
    let site = Server::start(0, Some(tls), answer).expect("server");
    let proxy = ProxyFixture::open().await;
    (ProxyFixture::reopened_with_log(proxy, authority.pem(), site.address().port(), route).await, site)
}

const URL: &str = "https://api.example.com/whoami";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_no_slices_of_an_echoed_credential() {
    let (proxy, _site) = setup(AUTH).await;
    for version in ["--http1.1", "--http2"] {
        for name in ["Range", "Request-Range", "X-Range", "x-ms-range", "RANGE"] {
            let mut received = String::new();
            for start in (0..60).step_by(5) {
                let range = format!("{name}: bytes={start}-{}", start + 4);
                let answer = proxy.curl(&[version, "-H", &range, "-H", "If-Range: \"x\"", URL]).await;
                assert_eq!(answer.status(), 200, "{range}");
                received.push_str(answer.text().rsplit("\r\n\r\n").next().expect("a body"));
            }
            assert!(!received.contains(REAL) && !received.contains(&REAL[5..17]), "{name}: {received}");
        }
        let several = "Range: bytes=0-9,10-19,20-29,30-39,40-49";
        let answer = proxy.curl(&[version, "-H", several, URL]).await;
        assert!(
            answer.status() == 200 && answer.text().contains("you are Bearer [redacted], welcome"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strips_requests_for_digests_deltas_and_other_encodings() {
    let headers = [
        "a-im: vcdiff",
        "accept-charset: utf-16",
        "available-dictionary: :abc:",
        "grpc-accept-encoding: gzip",
        "want-digest: sha-256",
        "want-repr-digest: sha-256=1",
    ];
    let mut arguments: Vec<&str> = headers.iter().flat_map(|header| ["-H", header]).collect();
    arguments.push(URL);
    let (proxy, _site) = setup(AUTH).await;
    let with = proxy.curl(&arguments).await;
    let (sent_names, stripped) = (with.header("x-asked-with"), with.header("x-bottle-stripped"));
    let (sent_names, stripped) = (sent_names.expect("names"), stripped.expect("names"));
    for header in headers {
        let name = header.split(':').next().expect("a name");
        assert!(!sent_names.split(' ').any(|sent| sent == name), "{name}: {sent_names}");
        assert!(stripped.split(", ").any(|listed| listed == name), "{name}: {stripped}");
    }
    // On a route without a credential, partial responses cannot leak a credential. So the proxy allows ranges, and
    // downloads can be resumed.
    let (proxy, _site) = setup("websocket: allow").await;
    let answer = proxy.curl(&["-H", "Range: bytes=0-6", URL]).await;
    assert_eq!((answer.status(), answer.header("x-bottle-stripped")), (206, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_stripped_names_in_the_response() {
    let (proxy, _site) = setup(AUTH).await;
    for version in ["--http1.1", "--http2"] {
        let sent =
            ["-H", "Cookie: a=secret-of-mine", "-H", "X-Figma-Token: b", "-H", "Authorization: Bearer mine"];
        let url = format!("{URL}?a=1&api_key=c");
        let answer = proxy.curl(&[&[version][..], &sent, &[&url]].concat()).await;
        let mut names: Vec<String> =
            answer.header("x-bottle-stripped").expect("names").split(", ").map(str::to_owned).collect();
        names.sort();
        assert_eq!(names, ["?api_key", "cookie", "x-figma-token"]);
        assert!(!answer.text().contains("secret-of-mine"));
        // The stripped header only contained a placeholder for the injected credential, so the response does not list
        // the header.
        let answer = proxy.curl(&[version, "-H", "Authorization: Bearer placeholder", URL]).await;
        assert_eq!((answer.status(), answer.header("x-bottle-stripped")), (200, None));
    }
    // The response header `x-bottle-stripped` has a maximum length.
    let many: Vec<String> = (0..80).map(|n| format!("x-{}-{n}-token: 1", "a".repeat(40))).collect();
    let arguments: Vec<&str> = many.iter().flat_map(|header| ["-H", header.as_str()]).chain([URL]).collect();
    let answer = proxy.curl(&arguments).await;
    assert!(answer.header("x-bottle-stripped").is_some_and(|names| (900..=1024).contains(&names.len())));
    assert!(!answer.header("x-asked-with").expect("names").contains("token"));
}
