use bottle_policy::decide::{Verdict, decide_url};
use bottle_policy::route::{Form, parse_routes};
use http::HeaderMap;
use proptest::prelude::*;

use super::*;

fn table(yaml: &str) -> RouteTable {
    parse_routes(yaml, Form::Runtime).expect(yaml)
}

fn refused(host: &str, method: &str, path: &str) -> Refused {
    let (host, method, path) = (host.to_owned(), method.to_owned(), path.to_owned());
    Refused { host, port: 443, method, path, reason: Reason::HostNotAllowed }
}

fn learned(now: &RouteTable, all: &[Refused]) -> Learned {
    let mut learning = Learning::default();
    all.iter().for_each(|one| learning.add(one));
    learning.learned(now)
}

fn passes(table: &RouteTable, method: &str, url: &str) -> bool {
    let headers = HeaderMap::new();
    let verdict = decide_url(table, method, url, &headers, &|_| true).expect("a URL");
    matches!(verdict, Verdict::Allow(_))
}

#[test]
fn allows_exactly_the_requested_hosts_methods_and_paths() {
    let all = [
        refused("b.example", "GET", "/v1/models"),
        refused("a.example", "GET", "/one"),
        refused("b.example", "POST", "/v1/models"),
        refused("b.example", "GET", "/"),
    ];
    let learned = learned(&table("routes: []"), &all);
    assert_eq!(
        learned.routes.expect("routes").render(),
        "routes:\n- host: b.example\n  matches:\n  - paths:\n    - type: exact\n      value: /\n    methods:\n    - GET\n  \
         - paths:\n    - type: exact\n      value: /v1/models\n    methods:\n    - GET\n    - POST\n- host: a.example\n  \
         matches:\n  - paths:\n    - type: exact\n      value: /one\n    methods:\n    - GET\n"
    );
    assert_eq!(learned.hosts, [("b.example".to_owned(), 3), ("a.example".to_owned(), 1)]);
    assert_eq!((learned.rules, learned.left_out), (vec![], vec![]));
}

#[test]
fn reports_where_routes_allow_more_than_was_requested() {
    let mut all: Vec<Refused> =
        (0..12).map(|n| refused("a.example", "GET", &format!("/v1/files/{n}"))).collect();
    all.push(refused("a.example", "GET", "/team/repo.git/info/refs"));
    let learned = learned(&table("routes: []"), &all);
    assert_eq!(
        learned.rules,
        [
            "a.example: 12 paths in /v1/files/ requested with GET became that directory",
            "a.example: an attempted clone of /team/repo.git may complete",
        ]
    );
    let table = proposal::merge(&table("routes: []"), &learned.routes.expect("routes")).expect("merged");
    let url = |path: &str| format!("https://a.example{path}");
    assert!(passes(&table, "GET", &url("/v1/files/99")));
    assert!(!passes(&table, "POST", &url("/v1/files/1")));
    assert!(!passes(&table, "GET", &url("/v1/other")));
    assert!(passes(&table, "GET", &url("/team/repo.git/info/refs?service=git-upload-pack")));
    assert!(passes(&table, "POST", &url("/team/repo.git/git-upload-pack")));
    assert!(!passes(&table, "GET", &url("/team/other.git/info/refs?service=git-upload-pack")));
    assert!(!passes(&table, "POST", &url("/team/repo.git/git-receive-pack")));
}

#[test]
fn omits_what_no_agent_may_get_with_the_reason() {
    let now = table(
        "routes:\n- host: key.example\n  matches: [{methods: [GET]}]\n  auth: {scheme: Bearer, slot: s}\n- host: open.example\n",
    );
    let with = |reason, port| Refused { reason, port, ..refused("a.example", "GET", "/x") };
    let all = [
        refused("key.example", "POST", "/x"),
        refused("open.example", "GET", "/meanwhile"),
        with(Reason::SecretFound, 443),
        with(Reason::HostNotAllowed, 80),
        refused("a.example", "GET", "/a/[redacted]"),
        refused("a.example", "", ""),
        refused("a.example", "GET", "//x"),
        refused("localhost", "GET", "/x"),
    ];
    let learned = learned(&now, &all);
    assert_eq!(learned.routes, None);
    let words: Vec<String> =
        learned.left_out.iter().map(|(host, times, why)| format!("{host} {times} {why}")).collect();
    for part in [
        "a.example 1 a secret was found",
        "a.example 1 only the user can allow port 80",
        "a.example 2 the log does not have",
        "a.example 1 the path has two slashes",
        "key.example 1 route `key.example`",
        "localhost 1 ",
    ] {
        assert!(words.iter().any(|words| words.starts_with(part)), "{part}: {words:?}");
    }
    assert_eq!(words.len(), 6, "{words:?}");
}

#[test]
fn bounds_the_result_for_an_agent_that_requests_everything() {
    let mut learning = Learning::default();
    for host in 0..1_100 {
        for path in 0..20 {
            learning.add(&refused(
                &format!("h{host}.example"),
                "GET",
                &format!("/{path}/{}", "x".repeat(500)),
            ));
        }
    }
    for path in 0..6_000 {
        learning.add(&refused("h0.example", "GET", &format!("/{path}")));
    }
    let learned = learning.learned(&table("routes: []"));
    let routes = learned.routes.expect("routes");
    assert!(routes.render().len() <= MAX_TEXT && routes.routes().len() <= MAX_ROUTES);
    assert_eq!(learned.hosts.len(), routes.routes().len());
    assert!(learned.left_out.len() <= MAX_LEFT_OUT + MAX_HOSTS, "{}", learned.left_out.len());
    assert!(learned.rules.iter().any(|rule| rule.contains("became the whole host")), "{:?}", learned.rules);
}

proptest! {
    /// The learned routes allow the requests. They allow no other host and no other method.
    #[test]
    fn the_routes_allow_the_requests_and_no_other_host_or_method(
        asked in proptest::collection::vec(
            ("[ab]{1,2}\\.example", prop::sample::select(vec!["GET", "POST", "PUT"]), "(/[a-c0-9]{1,3}){1,3}"), 1..60,
        ),
    ) {
        let all: Vec<Refused> = asked.iter().map(|(host, method, path)| refused(host, method, path)).collect();
        let empty = table("routes: []");
        let learned = learned(&empty, &all);
        let merged = proposal::merge(&empty, &learned.routes.expect("routes")).expect("merged");
        for (host, method, path) in &asked {
            let url = format!("https://{host}{path}");
            prop_assert!(passes(&merged, method, &url), "{} {}", method, url);
            let methods: Vec<&str> = asked.iter().filter(|(h, ..)| h == host).map(|(_, m, _)| *m).collect();
            for other in ["GET", "POST", "PUT", "DELETE"] {
                if !methods.contains(&other) {
                    prop_assert!(!passes(&merged, other, &url), "{} {}", other, url);
                }
            }
        }
        prop_assert!(!passes(&merged, "GET", "https://c.example/a"));
    }
}
