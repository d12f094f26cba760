use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::route::{Form, arbitrary, parse_routes};

const ROUTES: &str = "
routes:
- host: open.example
- host: plain.example
  ports: [80, 443, 8443]
- host: api.example
  auth: {scheme: Bearer, slot: api}
  matches:
  - paths: [{type: prefix, value: /v1}]
    methods: [POST]
  - paths: [{type: regex, value: '/models/[a-z]+'}]
    methods: [GET]
    headers: [{name: accept, value: application/json}]
- host: '*.wild.example'
- host: git.example
  git: {fetch: true}
- host: gitlab.example
  git: {fetch: true}
  auth: {scheme: basic, slot: gitlab}
- host: missing.example
  auth: {scheme: header, header: x-api-key, slot: missing}
- host: pinned.example
  inspect: false
- host: sse.example
  websocket: refuse
- host: posts.example
  websocket: refuse
  matches: [{methods: [POST]}]
- host: 203.0.113.7
  private: true
- host: '[2001:db8::7]'
  private: true
";

fn table() -> RouteTable {
    parse_routes(ROUTES, Form::Runtime).expect("routes")
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        (HeaderName::from_bytes(name.as_bytes()).expect("name"), HeaderValue::from_str(value).expect("value"))
    });
    pairs.collect()
}

fn loaded(slot: &str) -> bool {
    slot != "missing"
}

/// Returns `allow`, `redact`, `ask`, or the reason for the denial.
fn outcome(verdict: &Verdict<'_, '_>) -> &'static str {
    match verdict {
        Verdict::Allow(_) => "allow",
        Verdict::Redact(_) => "redact",
        Verdict::Ask(_) => "ask",
        Verdict::Deny(refusal) => refusal.reason.as_str(),
    }
}

fn over_tls<'a>(host: &'a str, method: &'a str, target: &'a str, headers: &'a HeaderMap) -> RequestFacts<'a> {
    RequestFacts {
        ingress: Ingress::Transparent { port: 443 },
        scheme: UrlScheme::Https,
        sni: None,
        authority: Some(host),
        method,
        target,
        headers,
        websocket: is_websocket_upgrade(headers),
    }
}

#[test]
fn decides_requests_by_method_and_url() {
    let table = table();
    for (method, url, extra, expected) in [
        ("GET", "https://open.example", &[][..], "allow"),
        ("GET", "https://OPEN.example.:443/x?y", &[], "allow"),
        ("GET", "https://open.example:8443/", &[], "port-not-allowed"),
        ("GET", "http://open.example/", &[], "port-not-allowed"),
        ("GET", "http://plain.example/", &[], "allow"),
        ("GET", "https://plain.example:80/", &[], "port-not-allowed"),
        ("GET", "http://plain.example:8443/", &[], "port-not-allowed"),
        ("GET", "https://plain.example:8443/", &[], "allow"),
        ("GET", "https://other.example/", &[], "host-not-allowed"),
        ("GET", "https://other.example:9/", &[], "host-not-allowed"),
        ("GET", "https://sub.open.example/", &[], "host-not-allowed"),
        ("GET", "https://a.b.wild.example/", &[], "allow"),
        ("GET", "https://wild.example/", &[], "host-not-allowed"),
        ("GET", "https://203.0.113.7/", &[], "allow"),
        ("GET", "https://0xcb.0.0x71.7/", &[], "allow"),
        ("GET", "https://203.0.113.8/", &[], "host-not-allowed"),
        ("GET", "https://[2001:DB8:0::7]/", &[], "allow"),
        ("GET", "https://u:p@open.example/", &[], "authority-mismatch"),
        ("GET", "https:///x", &[], "authority-mismatch"),
        // Matches.
        ("POST", "https://api.example/v1/messages?beta=true", &[], "allow"),
        ("POST", "https://api.example/v1", &[], "allow"),
        ("POST", "https://api.example/v10", &[], "request-not-allowed"),
        ("POST", "https://api.example/v2/../v1/x", &[], "allow"),
        ("POST", "https://api.example/v1/../v2", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/%2e%2e/v2", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1\\..\\v2", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/..%2fv2", &[], "path-ambiguous"),
        ("POST", "https://api.example/v1/..;/v2", &[], "path-ambiguous"),
        ("POST", "https://api.example//v1/x", &[], "path-ambiguous"),
        ("POST", "https://api.example/v1/%252e%252e/v2", &[], "path-ambiguous"),
        ("GET", "https://open.example//a;b/%2f", &[], "allow"),
        ("GET", "https://api.example/v1/messages", &[], "request-not-allowed"),
        ("post", "https://api.example/v1/messages", &[], "method-refused"),
        ("GET", "https://api.example/models/abc", &[], "request-not-allowed"),
        ("GET", "https://api.example/models/abc", &[("accept", "application/json")], "allow"),
        (
            "GET",
            "https://api.example/models/abc",
            &[("accept", "application/json, x")],
            "request-not-allowed",
        ),
        (
            "GET",
            "https://api.example/models/abc",
            &[("accept", "application/json"), ("Accept", "x")],
            "request-not-allowed",
        ),
        ("GET", "https://api.example/models/abc/x", &[("accept", "application/json")], "request-not-allowed"),
        // Methods.
        ("TRACE", "https://open.example/", &[], "method-refused"),
        ("trace", "https://open.example/", &[], "method-refused"),
        ("CONNECT", "https://open.example/", &[], "method-refused"),
        // Short upper-case words are allowed, whether registered or not.
        ("PURGE", "https://open.example/", &[], "allow"),
        ("M-SEARCH", "https://open.example/", &[], "allow"),
        ("UPDATEREDIRECTREF", "https://open.example/", &[], "allow"),
        ("Get", "https://open.example/", &[], "method-refused"),
        ("GET2", "https://open.example/", &[], "method-refused"),
        ("SK-ANT-API03-ABCDEFGH", "https://open.example/", &[], "method-refused"),
        ("ABCDEFGHIJKLMNOPQRSTU", "https://open.example/", &[], "method-refused"),
        ("G_T", "https://open.example/", &[], "method-refused"),
        ("", "https://open.example/", &[], "method-refused"),
        ("GET", "https://open.example/", &[("x-http-method-override", "sk-ant-api03-x")], "method-refused"),
        ("POST", "https://open.example/", &[("x-http-method-override", "TRACE")], "method-refused"),
        ("POST", "https://open.example/", &[("x_http_method_override", "TRACE")], "method-refused"),
        ("POST", "https://api.example/v1/x", &[("X-HTTP-Method-Override", "DELETE")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("x-method-override", "post")], "allow"),
        ("POST", "https://api.example/v1/x?_method=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?%5fmethod=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?_METHOD=DELETE", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?_Method=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?%255fmethod=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?a=1;_method=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?+_method=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?.method=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?_method[]=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?_method%00=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?_method=d%65lete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?_method=post", &[], "allow"),
        ("POST", "https://api.example/v1/x?method=delete", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?X-HTTP-Method-Override=PUT", &[], "request-not-allowed"),
        ("POST", "https://api.example/v1/x?method=photos.search&payment_method=put", &[], "allow"),
        ("POST", "https://api.example/v1/x", &[("x-http-method", "DELETE")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("X-Method-Override", "delete")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("x_method_override", "DELETE")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("X-HTTP-Method_Override", "DELETE")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("x-original-method", "DELETE")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("_method", "DELETE")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("x-rest-method", "delete")], "request-not-allowed"),
        ("POST", "https://api.example/v1/x", &[("x-payment-method", "card")], "allow"),
        (
            "POST",
            "https://api.example/v1/x",
            &[("x-http-method-override", "POST"), ("X-HTTP-Method-Override", "DELETE")],
            "request-not-allowed",
        ),
        // Credentials.
        ("GET", "https://missing.example/", &[], "credential-missing"),
        ("GET", "https://gitlab.example/", &[], "allow"),
        // WebSocket.
        ("GET", "wss://sse.example/", &[], "request-not-allowed"),
        ("GET", "wss://open.example/", &[], "allow"),
        (
            "GET",
            "https://sse.example/",
            &[("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade")],
            "request-not-allowed",
        ),
        ("GET", "https://sse.example/", &[], "allow"),
        // TLS passthrough: the contents are not inspected, whatever the ingress is.
        ("TRACE", "https://pinned.example/x.git/git-receive-pack", &[], "allow"),
        ("GET", "http://pinned.example/", &[], "port-not-allowed"),
    ] {
        let extra = headers(extra);
        let verdict = decide_url(&table, method, url, &extra, &loaded).expect(url);
        assert_eq!(outcome(&verdict), expected, "{method} {url} {extra:?}: {verdict:?}");
    }
    for url in ["open.example", "ftp://open.example/", ""] {
        assert!(decide_url(&table, "GET", url, &HeaderMap::new(), &loaded).is_err(), "{url}");
    }
}

#[test]
fn detects_git_in_every_spelling() {
    let table = table();
    for (method, url, expected) in [
        ("GET", "https://git.example/a/b.git/info/refs?service=git-upload-pack", "allow"),
        ("POST", "https://git.example/a/b.git/git-upload-pack", "allow"),
        ("GET", "https://git.example/a/b.git/info/refs", "allow"),
        ("GET", "https://git.example/a/b.git/info/refs?service=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?x=1&service=git%2Dreceive%2dpack", "use-git-gate"),
        (
            "GET",
            "https://git.example/a/info/refs?service=git-upload-pack;service=git-receive-pack",
            "use-git-gate",
        ),
        ("PUT", "https://git.example/a/b.git/info/refs", "use-git-gate"),
        ("POST", "https://git.example/a/b.git/git-receive-pack", "use-git-gate"),
        ("POST", "https://git.example/a/b.git/Git-Receive-Pack", "use-git-gate"),
        ("POST", "https://open.example/a/b.git/git-receive-pack", "use-git-gate"),
        ("POST", "https://open.example/a/x/../git-receive-pack", "use-git-gate"),
        ("POST", "https://open.example/a%2fgit-receive-pack", "use-git-gate"),
        ("POST", "https://open.example/a/git%252dreceive-pack", "use-git-gate"),
        ("POST", "https://open.example/a/git-receive-pack;x", "use-git-gate"),
        ("POST", "https://open.example/a/git-receive-pack%00.html", "use-git-gate"),
        ("POST", "https://open.example/a/git-receive-pack.", "use-git-gate"),
        ("POST", "https://open.example/a//git-receive-pack//", "use-git-gate"),
        ("GET", "https://open.example/a/b.git/info/refs?service=git-upload-pack", "git-not-allowed"),
        ("POST", "https://open.example/a/b.git/git-upload-pack", "git-not-allowed"),
        ("POST", "https://open.example/a/b.git/info/lfs/objects/batch", "git-not-allowed"),
        ("POST", "https://git.example/a/b.git/info/lfs/objects/batch", "allow"),
        ("POST", "https://gitlab.example/a/b.git/info/lfs/objects/batch", "git-not-allowed"),
        ("POST", "https://gitlab.example/a/b.git/git-upload-pack", "allow"),
        ("POST", "https://open.example/a/b.git/git-receive-pack/", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack///", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack/.", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack/x/..", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack%2fx%2f..", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack.json", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack%3fx", "use-git-gate"),
        ("POST", "https://open.example/a/b/git%25252dreceive-pack/", "use-git-gate"),
        ("POST", "https://open.example/a/b/git%u002dreceive-pack", "use-git-gate"),
        ("POST", "https://open.example/a/b/git%c0%adreceive-pack", "use-git-gate"),
        ("POST", "https://open.example/a/b/git-receive-pack?x", "use-git-gate"),
        ("PUT", "https://open.example/a/b/git-receive-pack/", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs/?service=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/Info//Refs/?service=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info%2frefs?service=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs%3fservice=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/x%2f..%2frefs?service=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?SERVICE=GIT-RECEIVE-PACK", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?service[]=git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?%73ervice=git%252dreceive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?x%26service%3Dgit-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?service=+git-receive-pack", "use-git-gate"),
        ("GET", "https://git.example/a/b.git/info/refs?service=git-receive-pack%00", "use-git-gate"),
        (
            "GET",
            "https://git.example/a/b.git/info/refs?service=git-upload-pack&service=git-receive-pack",
            "use-git-gate",
        ),
        ("GET", "https://open.example/alias?service=git-receive-pack", "use-git-gate"),
        // Requests that `git http-push` sends over WebDAV, and an LFS upload.
        ("LOCK", "https://git.example/a/b.git/refs/heads/main", "use-git-gate"),
        ("MKCOL", "https://git.example/a/b.git/objects/ab/", "use-git-gate"),
        ("PUT", "https://git.example/a/b.GIT/objects/ab/cdef", "use-git-gate"),
        ("MOVE", "https://git.example/a/b/objects/ab/cdef", "use-git-gate"),
        ("DELETE", "https://git.example/a/b/refs/heads/main/", "use-git-gate"),
        ("PUT", "https://git.example/a/b.git/info/lfs/objects/abcd/7", "use-git-gate"),
        ("DELETE", "https://open.example/repos/o/r/git/refs/heads/x", "allow"),
        ("GET", "https://git.example/a/b.git/info/refs/", "allow"),
        ("GET", "https://open.example/a/b.git/info/refs/", "git-not-allowed"),
        ("POST", "https://open.example/a/b.git/git-upload-pack/", "git-not-allowed"),
        ("GET", "https://open.example/repos/o/info/git/refs/heads/x", "allow"),
        ("GET", "https://open.example/search?q=git-receive-pack", "allow"),
        ("GET", "https://open.example/docs/git-receive-pack/man", "allow"),
        ("GET", "https://open.example/info/references", "allow"),
    ] {
        let none = HeaderMap::new();
        let verdict = decide_url(&table, method, url, &none, &loaded).expect(url);
        assert_eq!(outcome(&verdict), expected, "{method} {url}: {verdict:?}");
    }
}

#[test]
fn reads_method_overrides_from_bodies() {
    let multipart = "--b\r\nContent-Disposition: form-data; name=\"_Method\"\r\n\r\nput\r\n--b--\r\n";
    for (kind, body, methods) in [
        ("application/x-www-form-urlencoded", "a=1&_method=delete", &["DELETE"][..]),
        ("Application/X-WWW-Form-Urlencoded; charset=utf-8", "%5f%4dethod=a", &["A"]),
        ("application/x-www-form-urlencoded", "a=_method", &[]),
        ("multipart/form-data; boundary=b", multipart, &["PUT"]),
        ("multipart/form-data; boundary=b", "name=\"a\"\r\n\r\n_method=PUT\r\n", &[]),
        ("application/json", "{\"a\":[1],\"_method\":\" patch\"}", &["PATCH"]),
        ("application/vnd.x+json", "{\"\\u005fmethod\":\"patch\"}", &["PATCH"]),
        ("application/json", "{\"_method\":\"GET\",\"_method\":\"PUT\"}", &["?"]),
        ("application/json", "{\"_method\":[\"PUT\"]}", &["?"]),
        ("application/json", "{\"a\":{\"_method\":\"PUT\"}}", &[]),
        ("application/json", "[\"_method\"]", &[]),
        ("application/json", "{\"_method\":", &[]),
        ("text/plain", "_method=PUT", &[]),
    ] {
        assert_eq!(form_methods(kind, body.as_bytes()), methods, "{kind} {body}");
    }
}

#[test]
fn detects_git_by_headers() {
    let table = table();
    for (method, path, extra, expected) in [
        ("POST", "/alias", [("content-type", "application/x-git-receive-pack-request")], "use-git-gate"),
        ("POST", "/alias", [("Content-Type", "x; a=Application/X-Git-Receive-Pack-Request")], "use-git-gate"),
        ("GET", "/alias", [("accept", "*/*, application/x-git-receive-pack-advertisement")], "use-git-gate"),
        ("POST", "/alias", [("accept", "application/x-git-receive-pack-result")], "use-git-gate"),
        ("POST", "/alias", [("git-protocol", "version=2")], "use-git-gate"),
        ("PUT", "/alias", [("git-protocol", "version=1")], "use-git-gate"),
        ("GET", "/alias", [("git-protocol", "version=2")], "allow"),
        ("POST", "/a.git/git-upload-pack", [("git-protocol", "version=2")], "allow"),
        ("POST", "/a.git/git-upload-pack", [("accept", "application/x-git-upload-pack-result")], "allow"),
        ("GET", "/a.git/info/refs", [("x-http-method-override", "PUT")], "use-git-gate"),
    ] {
        let url = format!("https://git.example{path}");
        let extra = headers(&extra);
        let verdict = decide_url(&table, method, &url, &extra, &loaded).expect("url");
        assert_eq!(outcome(&verdict), expected, "{method} {url} {extra:?}: {verdict:?}");
    }
    for (header, value) in
        [("git-protocol", "version=2"), ("content-type", "application/x-git-upload-pack-request")]
    {
        let extra = headers(&[(header, value)]);
        let verdict = decide_url(&table, "GET", "https://open.example/alias", &extra, &loaded).expect("url");
        assert_eq!(outcome(&verdict), "git-not-allowed", "{header}");
    }
}

/// Generates pushes as git sends them (method, path and query), in spellings that some server accepts as the
/// same push.
fn any_push_spelling() -> impl Strategy<Value = (&'static str, String)> {
    let bases = prop_oneof![
        Just(("POST", "/o/r.git/git-receive-pack", "")),
        Just(("POST", "/g/s/r/git-receive-pack", "")),
        Just(("GET", "/o/r.git/info/refs", "service=git-receive-pack")),
        Just(("GET", "/r/info/refs", "service=git-receive-pack")),
    ];
    (bases, prop::collection::vec((0..14_u8, any::<prop::sample::Index>()), 0..8)).prop_map(
        |((method, path, query), changes)| {
            let (mut path, mut query) = (path.to_owned(), query.to_owned());
            for (change, index) in changes {
                changed(change, index, &mut path, &mut query);
            }
            let target = if query.is_empty() { path } else { format!("{path}?{query}") };
            (method, target)
        },
    )
}

/// Applies a change of spelling at the position that `index` selects.
fn changed(change: u8, index: prop::sample::Index, path: &mut String, query: &mut String) {
    let letters = |text: &str| -> Vec<usize> {
        text.char_indices().filter(|(_, c)| matches!(c, 'g'..='z' | '-')).map(|(at, _)| at).collect()
    };
    // Only letters outside an escape sequence are changed, so that earlier changes remain intact.
    let one_of = |text: &str| {
        let places = letters(text);
        (!places.is_empty()).then(|| places[index.index(places.len())])
    };
    let slashes: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
    let slash = (!slashes.is_empty()).then(|| slashes[index.index(slashes.len())]);
    let encode = |text: &mut String, prefix: &str| {
        if let Some(at) = one_of(text) {
            let byte = text.as_bytes()[at];
            text.replace_range(at..=at, &format!("{prefix}{byte:02x}"));
        }
    };
    match (change, slash) {
        (0, _) => path.push('/'),
        (1, _) => path.push_str("/./"),
        (2, _) => path.push_str(";a=b"),
        (3, _) => path.push_str(["%20", "%00", "%20.", "%09"][index.index(4)]),
        (4, Some(at)) => path.insert_str(at, ["/", "/.", "/x/..", "//"][index.index(4)]),
        // This change is skipped if the path contains `..`, because `..` would then remove a different segment.
        (5, Some(at)) if !path.contains("..") => {
            path.replace_range(at..=at, ["%2f", "%5C", "\\", "%252F"][index.index(4)])
        }
        (6, _) => encode(path, "%"),
        (7, _) => encode(path, "%25"),
        (8, _) => *path = path.replacen(".git", "", 1),
        (9, _) => {
            if let Some(at) = one_of(path) {
                let upper = path[at..=at].to_ascii_uppercase();
                path.replace_range(at..=at, &upper);
            }
        }
        (10, _) if !query.is_empty() => *query = format!("x=1{}{query}", ["&", ";", "&&"][index.index(3)]),
        (11, _) if !query.is_empty() => {
            *query = format!("{query}&service=git-upload-pack");
        }
        (12, _) if !query.is_empty() => encode(query, ["%", "%25"][index.index(2)]),
        (13, _) if !query.is_empty() => *query = query.to_ascii_uppercase(),
        _ => {}
    }
}

#[test]
fn all_host_names_must_agree() {
    let table = table();
    let connect = |authority| Ingress::Connect { authority };
    let transparent = |port| Ingress::Transparent { port };
    for (ingress, sni, authority, hosts, expected) in [
        (connect("open.example:443"), Some("open.example"), None, &["open.example"][..], "allow"),
        (connect("OPEN.example:443"), Some("open.EXAMPLE"), None, &["open.example:443"], "allow"),
        (connect("open.example:443"), None, None, &["open.example"], "allow"),
        (connect("open.example:443"), None, None, &[], "allow"),
        (connect("open.example:443"), Some("open.example"), Some("open.example"), &[], "allow"),
        (connect("open.example:443"), Some("plain.example"), None, &["open.example"], "authority-mismatch"),
        (connect("open.example:443"), Some("open.example"), None, &["plain.example"], "authority-mismatch"),
        (connect("open.example:443"), Some("open.example"), Some("plain.example"), &[], "authority-mismatch"),
        (connect("open.example:443"), None, None, &["open.example", "plain.example"], "authority-mismatch"),
        (connect("open.example:443"), None, None, &["open.example:444"], "authority-mismatch"),
        (connect("open.example:443"), None, None, &["open.example@plain.example"], "authority-mismatch"),
        (connect("open.example:443"), None, None, &[""], "authority-mismatch"),
        (connect("open.example"), None, None, &["open.example"], "authority-mismatch"),
        (connect("other.example:443"), None, None, &["other.example"], "host-not-allowed"),
        (connect("203.0.113.7:443"), None, None, &["203.0.113.7"], "allow"),
        (transparent(443), Some("open.example"), None, &["open.example"], "allow"),
        (transparent(443), Some("open.example"), None, &["open.example:443"], "allow"),
        (transparent(443), Some("open.example"), None, &["open.example:8443"], "authority-mismatch"),
        (transparent(443), Some("open.example:443"), None, &["open.example"], "authority-mismatch"),
        (transparent(443), None, None, &[], "authority-mismatch"),
        (transparent(443), Some("open.example"), None, &["plain.example"], "authority-mismatch"),
        (Ingress::Absolute, None, Some("open.example"), &["open.example"], "allow"),
        (Ingress::Absolute, None, Some("open.example"), &["plain.example"], "authority-mismatch"),
        (Ingress::Absolute, None, Some("open.example"), &["open.example:8443"], "authority-mismatch"),
    ] {
        let pairs: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
        let headers = headers(&pairs);
        let facts = RequestFacts {
            ingress,
            scheme: UrlScheme::Https,
            sni,
            authority,
            method: "GET",
            target: "/",
            headers: &headers,
            websocket: false,
        };
        let verdict = decide(&table, &facts, &loaded, &Findings::none());
        assert_eq!(outcome(&verdict), expected, "{facts:?}: {verdict:?}");
    }
}

#[test]
fn only_passthrough_hosts_are_decided_before_a_request() {
    let table = table();
    let connect = |authority| Ingress::Connect { authority };
    assert!(matches!(decide_connect(&table, "pinned.example:443"), Tunnel::Passthrough(_)));
    for inspected in ["open.example:443", "other.example:443", "pinned.example:8443"] {
        assert_eq!(decide_connect(&table, inspected), Tunnel::Inspect, "{inspected}");
    }
    for bad in ["pinned.example", "", "a b:443", "u@pinned.example:443"] {
        assert!(matches!(decide_connect(&table, bad), Tunnel::Deny(_)), "{bad}");
    }
    for (ingress, sni, expected) in [
        (connect("pinned.example:443"), Some("pinned.example"), "pass"),
        (connect("pinned.example:443"), Some("Pinned.Example"), "pass"),
        (connect("pinned.example:443"), Some("public.ech.example"), "deny"),
        (connect("pinned.example:443"), None, "deny"),
        (connect("open.example:443"), Some("pinned.example"), "inspect"),
        (connect("open.example:443"), None, "inspect"),
        (Ingress::Transparent { port: 443 }, Some("pinned.example"), "pass"),
        (Ingress::Transparent { port: 443 }, Some("open.example"), "inspect"),
        (Ingress::Transparent { port: 443 }, None, "deny"),
    ] {
        let tunnel = decide_hello(&table, ingress, sni);
        let seen = match &tunnel {
            Tunnel::Passthrough(_) => "pass",
            Tunnel::Inspect => "inspect",
            Tunnel::Deny(_) => "deny",
        };
        assert_eq!(seen, expected, "{ingress:?} {sni:?}: {tunnel:?}");
    }
}

#[test]
fn the_route_decides_on_findings() {
    use Finding::{Secret, Structure, Unapprovable};
    let yaml = "routes:\n- host: asks.example\n- host: blocks.example\n  dlp: {outbound_on_match: block}\n- host: \
                redacts.example\n  dlp: {outbound_on_match: redact}\n- host: model.example\n  provider: true\n- host: \
                strict.example\n  provider: true\n  dlp: {outbound_on_match: block}\n";
    let table = parse_routes(yaml, Form::Runtime).expect("routes");
    for (host, found, after, expected) in [
        ("asks.example", vec![Secret], false, "ask"),
        ("asks.example", vec![Secret, Unapprovable], false, "secret-found"),
        ("asks.example", vec![Secret, Structure], false, "structure-refused"),
        ("blocks.example", vec![Secret], false, "secret-found"),
        ("blocks.example", vec![Structure], false, "structure-refused"),
        ("redacts.example", vec![Secret, Structure], false, "redact"),
        ("redacts.example", vec![Secret], true, "secret-found"),
        ("redacts.example", vec![Structure], true, "structure-refused"),
        ("redacts.example", vec![], true, "allow"),
        ("model.example", vec![Unapprovable], false, "redact"),
        ("model.example", vec![Unapprovable], true, "secret-found"),
        ("strict.example", vec![Unapprovable], false, "redact"),
        ("strict.example", vec![Secret], false, "secret-found"),
    ] {
        let none = HeaderMap::new();
        let findings =
            if after { Findings::after_redaction(found.clone()) } else { Findings::new(found.clone()) };
        let verdict = decide(&table, &over_tls(host, "GET", "/", &none), &loaded, &findings);
        assert_eq!(outcome(&verdict), expected, "{host} {found:?} {after}");
    }
}

#[test]
fn denials_name_the_next_step() {
    let table = table();
    let none = HeaderMap::new();
    let refuse = |method, url| match decide_url(&table, method, url, &none, &loaded).expect("url") {
        Verdict::Deny(refusal) => refusal,
        other => panic!("{url}: {other:?}"),
    };
    let refusal = refuse("GET", "https://pypi.example/simple/");
    assert_eq!((refusal.status, refusal.tool), (403, Some("egress-block")));
    assert!(
        refusal.sentence.contains("`pypi.example`") && refusal.sentence.contains("Ask the user"),
        "{refusal:?}"
    );
    let body = serde_json::to_value(refusal.body("id-1")).expect("json");
    assert_eq!(body["reason"], "host-not-allowed");
    assert_eq!(body["id"], "id-1");
    assert_eq!(body["tool"], "egress-block");
    // An agent may not widen a route with a credential.
    let refusal = refuse("GET", "https://api.example/v2");
    assert_eq!(refusal.tool, None);
    assert!(refusal.sentence.contains("Only the user"), "{}", refusal.sentence);
    assert!(serde_json::to_value(refusal.body("x")).expect("json").get("tool").is_none());
    assert_eq!(refuse("GET", "wss://sse.example/").status, 426);
    assert_eq!(refuse("GET", "wss://posts.example/").status, 426, "whatever else `matches` lets through");
    assert_eq!(refuse("GET", "https://posts.example/").status, 403);
    assert!(!refuse("GET", "https://missing.example/").sentence.contains("slot"));
}

#[test]
fn a_denial_because_of_a_budget_says_what_agents_do_not_repeat() {
    for reason in [Reason::BudgetSpent, Reason::BudgetUnknown, Reason::RequestRepeated] {
        let refusal = Refusal::later(reason, "llm.example", "5 of 10 tokens are left");
        assert_eq!(refusal.status, 400, "{reason}");
        assert!(
            refusal.sentence.contains("llm.example") && refusal.sentence.ends_with("left."),
            "{refusal:?}"
        );
        assert!(!reason.is_about_content() && !reason.description().is_empty());
    }
    let batch = Refusal::not_metered("llm.example", "a batch", false);
    assert!(batch.status == 403 && batch.sentence.contains("a batch"), "{batch:?}");
    assert!(!batch.asks_to_fall_back());
    assert!(Refusal::not_metered("llm.example", "a WebSocket", true).asks_to_fall_back());
    assert_eq!(Reason::NotMetered.as_str(), "not-metered");
}

#[test]
fn reasons_serialize_as_their_code() {
    for reason in
        [Reason::AuthorityMismatch, Reason::UseGitGate, Reason::UpstreamUntrusted, Reason::BudgetSpent]
    {
        assert_eq!(serde_json::to_value(reason).expect("json"), reason.as_str());
        assert!(![421, 429, 503].contains(&reason.status()));
    }
}

proptest! {
    #[test]
    fn never_panics_and_allows_declared_hosts_only(
        table in arbitrary::table(Form::Runtime),
        host in prop_oneof!["[a-c.]{0,3}a\\.example", any::<String>()],
        method in prop_oneof!["GET|POST|TRACE", any::<String>()],
        target in any::<String>(),
    ) {
        let none = HeaderMap::new();
        let facts = over_tls(&host, &method, &target, &none);
        if let Verdict::Allow(allowed) = decide(&table, &facts, &|_| true, &Findings::none()) {
            prop_assert!(allowed.route.host.covers(&allowed.host));
            prop_assert!(allowed.route.ports.contains(&allowed.port));
            let uninspected = !allowed.route.inspect;
            prop_assert!(uninspected || allowed.route.matches.is_empty() || allowed.target.path.ambiguous.is_none());
            prop_assert!(uninspected || allowed.git != Some(Git::Push));
        }
        let _ = decide_hello(&table, facts.ingress, Some(&host));
        let _ = decide_connect(&table, &host);
    }

    #[test]
    fn detects_a_push_in_every_spelling((method, target) in any_push_spelling()) {
        let table = table();
        let none = HeaderMap::new();
        for host in ["open.example", "git.example"] {
            let facts = over_tls(host, method, &target, &none);
            let verdict = decide(&table, &facts, &loaded, &Findings::none());
            prop_assert_eq!(outcome(&verdict), "use-git-gate", "{} {}", method, target);
        }
    }

    /// The forwarded form of an allowed request is allowed again, so the server receives the request on which the
    /// policy decided.
    #[test]
    fn the_forwarded_form_is_allowed_again(table in arbitrary::table(Form::Runtime), path in "(/|\\.|%2e|%2F|;|a|b|\\\\){0,8}") {
        let none = HeaderMap::new();
        let target = format!("/{path}?q=%41");
        let facts = over_tls("b.a.example", "GET", &target, &none);
        if let Verdict::Allow(allowed) = decide(&table, &facts, &|_| true, &Findings::none()) {
            let forwarded = allowed.target.to_forward();
            let again = over_tls(&allowed.host, "GET", &forwarded, &none);
            let verdict = decide(&table, &again, &|_| true, &Findings::none());
            let Verdict::Allow(second) = verdict else { return Err(TestCaseError::fail(format!("{verdict:?}"))) };
            prop_assert_eq!(second.target.to_forward(), forwarded);
        }
    }
}

/// Routes of a bottle whose git gate has repositories at these forges.
const FORGES: &str = "
forges: [fetch.gitea.example, github.example, gitlab.example]
routes:
- host: api.github.example
- host: fetch.gitea.example
  git: {fetch: true}
- host: uploads.github.example
  matches: [{methods: [POST], paths: [{type: prefix, value: /}]}]
- host: gitlab.example
  matches:
  - methods: [GET, POST]
  - methods: [PUT]
    paths: [{type: prefix, value: /api/v4/projects/1/repository}]
  - methods: [DELETE]
    paths: [{type: exact, value: /api/v4/projects/1/releases/v1}]
  - methods: [PATCH]
    paths: [{type: regex, value: '/api/v4/projects/1/(wikis|issues)/.*'}]
  - paths: [{type: prefix, value: /api/v4/projects/1/snippets}]
- host: '*.github.example'
- host: elsewhere.example
";

#[test]
fn denies_writes_to_a_gated_forge_that_bypass_the_gate() {
    let table = parse_routes(FORGES, Form::Runtime).expect("routes");
    let gate = "use-git-gate";
    for (method, url, extra, expected) in [
        // The route allows everything except these writes.
        ("GET", "https://api.github.example/repos/o/r/contents/a", &[][..], "allow"),
        ("PUT", "https://api.github.example/repos/o/r/contents/a", &[], gate),
        ("put", "https://api.github.example/repos/o/r/contents/a", &[], "method-refused"),
        ("DELETE", "https://api.github.example/repos/o/r/git/refs/heads/x", &[], gate),
        ("POST", "https://api.github.example/repos/o/r/git/blobs", &[], gate),
        ("PUT", "https://api.github.example/repos/o/r/pulls/1/merge", &[], gate),
        ("POST", "https://api.github.example/graphql", &[], gate),
        ("POST", "https://api.github.example/repos/o/r/issues", &[], "allow"),
        ("POST", "https://api.github.example/repos/o/r/pulls/1/reviews", &[], "allow"),
        ("PATCH", "https://api.github.example/repos/o/r/issues/comments/1", &[], "allow"),
        ("PATCH", "https://api.github.example/repos/o/r/pulls/1", &[], "allow"),
        ("PUT", "https://api.github.example/repos/o/r/collaborators/mallory", &[], gate),
        ("POST", "https://api.github.example/repos/o/r/actions/runners/registration-token", &[], gate),
        ("POST", "https://api.github.example/repos/o/r/actions/workflows/1/dispatches", &[], gate),
        ("POST", "https://api.github.example/repos/o/r/dispatches", &[], gate),
        ("PUT", "https://api.github.example/orgs/o/members/mallory", &[], gate),
        ("POST", "https://api.github.example/user/keys", &[], gate),
        ("POST", "https://api.github.example/repos/o/r/statuses/abc", &[], gate),
        ("PATCH", "https://api.github.example/repos/o/r/actions/variables/x", &[], gate),
        ("POST", "https://api.github.example/", &[], gate),
        ("PROPFIND", "https://api.github.example/o/r", &[], gate),
        ("GET", "https://api.github.example/graphql?query=mutation", &[], gate),
        // A clone is also a POST, in git's protocol and outside the API.
        (
            "POST",
            "https://fetch.gitea.example/o/r.git/git-upload-pack",
            &[("content-type", "application/x-git-upload-pack-request")],
            "allow",
        ),
        ("POST", "https://fetch.gitea.example/o/r.git/git-upload-pack", &[], gate),
        (
            "POST",
            "https://fetch.gitea.example/api/v1/repos/o/r/contents/git-upload-pack",
            &[("content-type", "application/x-git-upload-pack-request")],
            gate,
        ),
        (
            "PUT",
            "https://fetch.gitea.example/o/r.git/git-upload-pack",
            &[("content-type", "application/x-git-upload-pack-request")],
            "use-git-gate",
        ),
        (
            "POST",
            "https://fetch.gitea.example/o/r/_edit/main/git-upload-pack",
            &[("content-type", "application/x-git-upload-pack-request")],
            gate,
        ),
        (
            "POST",
            "https://fetch.gitea.example/o/r.git/info/lfs/objects/batch",
            &[("content-type", "application/vnd.git-lfs+json; charset=utf-8")],
            "allow",
        ),
        ("POST", "https://fetch.gitea.example/o/r/settings/keys", &[], gate),
        ("PUT", "https://fetch.gitea.example/o/r/raw/main/a", &[], gate),
        // Writes in other spellings of their paths.
        ("PUT", "https://api.github.example/repos/o/r/x/../contents/a", &[], gate),
        ("PUT", "https://api.github.example/REPOS/o/r/Contents/a", &[], gate),
        ("PUT", "https://api.github.example/repos/o/r/%63ontents/a", &[], gate),
        ("PUT", "https://api.github.example//repos//o/r//contents/a", &[], gate),
        ("PUT", "https://api.github.example/repos/o/r%2Fcontents/a", &[], gate),
        ("PUT", "https://api.github.example/repos/o/r/contents%252Fa", &[], gate),
        ("PUT", "https://api.github.example/repos/o/r/contents;x/a", &[], gate),
        ("PUT", "https://api.github.example/repos/o/r\\contents\\a", &[], gate),
        ("POST", "https://api.github.example/graphql/", &[], gate),
        ("POST", "https://api.github.example/repositories/1/contents/a", &[], gate),
        (
            "GET",
            "https://api.github.example/repos/o/r/contents/a",
            &[("x-http-method-override", "PUT")],
            gate,
        ),
        ("GET", "https://api.github.example/repos/o/r/contents/a?_method=put", &[], gate),
        // A condition that contains only the path before the resource allows no write.
        ("POST", "https://uploads.github.example/repos/o/r/releases/1/assets", &[], gate),
        ("POST", "https://gitlab.example/api/v4/projects/1/repository/commits", &[], gate),
        ("POST", "https://gitlab.example/api/v4/projects/1/issues", &[], "allow"),
        ("POST", "https://gitlab.example/api/v4/projects/1/snippets", &[], gate),
        ("POST", "https://gitlab.example/api/v4/projects/team%2Ftool/issues", &[], "path-ambiguous"),
        ("PUT", "https://gitlab.example/api/v4/projects/1/repository/files/a", &[], "allow"),
        ("PUT", "https://gitlab.example/api/v4/projects/2/repository/files/a", &[], "request-not-allowed"),
        ("DELETE", "https://gitlab.example/api/v4/projects/1/releases/v1", &[], "allow"),
        ("PATCH", "https://gitlab.example/api/v4/projects/1/wikis/a", &[], "allow"),
        // The forge and its two additional hosts are covered, but no other host.
        ("PUT", "https://raw.github.example/repos/o/r/contents/a", &[], "allow"),
        ("PUT", "https://elsewhere.example/repos/o/r/contents/a", &[], "allow"),
    ] {
        let headers = headers(extra);
        let verdict = decide_url(&table, method, url, &headers, &loaded).expect(url);
        assert_eq!(outcome(&verdict), expected, "{method} {url} {extra:?}");
    }
    let none = HeaderMap::new();
    let asked = decide_url(&table, "PUT", "https://api.github.example/repos/o/r/contents/a", &none, &loaded);
    let Ok(Verdict::Deny(refusal)) = asked else { panic!("{asked:?}") };
    assert!(refusal.sentence.contains("Push instead") && refusal.tool.is_none(), "{}", refusal.sentence);
    // The rendered table parses to the same table.
    let text = crate::route::render_routes(&table);
    assert_eq!(parse_routes(&text, Form::Runtime), Ok(table), "{text}");
}

#[test]
fn a_denied_registry_names_the_manifest_that_opens_it() {
    let (table, none) = (table(), HeaderMap::new());
    let sentence = |host: &str| match decide(
        &table,
        &over_tls(host, "GET", "/simple", &none),
        &loaded,
        &Findings::none(),
    ) {
        Verdict::Deny(refusal) => refusal.sentence.clone(),
        _ => panic!("{host} is not denied"),
    };
    let registry = sentence("pypi.org");
    assert!(registry.contains("The shipped bottle manifest `dev` opens it (`--bottle dev`)."), "{registry}");
    assert!(!sentence("pypi.example").contains("--bottle"));
}
