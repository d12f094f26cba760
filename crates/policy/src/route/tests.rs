use proptest::prelude::*;

use super::*;
use bottle_text::yaml::Position;

fn one(yaml: &str) -> Result<Route, RoutesError> {
    parse_route(yaml, Form::Manifest)
}

#[test]
fn parses_every_key() {
    let route = one("
host: API.Example.com.
ports: [8443, 443, 443]
auth: {scheme: header, token_ref: 'env:KEY', header: X-Api-Key}
matches:
  - paths: [{type: prefix, value: /v1/}, {type: exact, value: /v2}, {type: regex, value: '/v3/[a-z]+'}]
    methods: [get, POST]
    headers: [{name: Accept, type: exact, value: text/html}, {name: X-A, type: regex, value: 'b+'}]
git: {fetch: true}
private: true
connect_to: host:11434
websocket: refuse
dlp: {outbound_detectors: [token_patterns, known_secrets], inbound_detectors: false, outbound_on_match: block, inbound_on_match: warn}
")
    .expect("route");
    assert_eq!(route.host, HostPattern::Exact("api.example.com".to_owned()));
    assert_eq!(route.ports, [443, 8443]);
    let auth = route.auth.expect("auth");
    assert_eq!(
        (auth.scheme, auth.header.as_str(), auth.source.name()),
        (Scheme::Header, "x-api-key", "env:KEY")
    );
    let [entry] = route.matches.as_slice() else { panic!("one entry") };
    assert_eq!(entry.paths[0], PathMatch::Prefix("/v1".to_owned()));
    assert_eq!(entry.methods, ["GET", "POST"]);
    assert_eq!(entry.headers[0].name, "accept");
    assert!(route.git_fetch && route.private && route.inspect);
    assert_eq!(route.connect_to, Some(ConnectTo { host: "host".to_owned(), port: 11434 }));
    assert_eq!(route.websocket, WebSocket::Refuse);
    assert_eq!(route.dlp.inbound_detectors, Some(Vec::new()));
    assert_eq!(route.dlp.outbound_on_match, Some(OnMatch::Block));
    assert_eq!(route.dlp.inbound_on_match, Some(InboundOnMatch::Warn));
}

#[test]
fn defaults_are_as_documented_and_not_rendered() {
    let route = one("host: a.example").expect("route");
    assert_eq!(route, Route::to(HostPattern::Exact("a.example".to_owned())));
    assert_eq!(render_route(&route), "host: a.example\n");
    let spelled = "host: a.example\nports: [443]\npass_credentials: false\ngit: {fetch: false}\ninspect: true\n\
                   private: false\nwebsocket: allow\ndlp: {}\n";
    assert_eq!(one(spelled).expect("route"), route);
}

#[test]
fn a_path_is_a_prefix_unless_it_says_otherwise() {
    let short = one("host: a.example\nmatches: [{paths: [{value: /v1}]}]").expect("route");
    assert_eq!(short.matches[0].paths, [PathMatch::Prefix("/v1".to_owned())]);
}

#[test]
fn an_empty_entry_is_every_request() {
    let every = one("host: a.example").expect("route");
    for text in ["[{}]", "[{methods: [GET]}, {}]", "[{}, {}]"] {
        assert_eq!(one(&format!("host: a.example\nmatches: {text}")).expect(text), every, "{text}");
    }
}

/// Each line contains the route, the key in the error, its position, and a part of the message.
#[test]
fn rule_violations_name_the_correction() {
    let table = [
        ("host: https://a.example/x", "host", "1:7", "`a.example`"),
        ("host: a.example/x", "host", "1:7", "`matches`"),
        ("host: a.example:8443", "host", "1:7", "`ports`"),
        ("host: '*'", "host", "1:7", "`*.example.com`"),
        ("host: a.*.example", "host", "1:7", "at the front"),
        ("host: '*.com'", "host", "1:7", "top-level"),
        ("host: '*.127.0.0.1'", "host", "1:7", "no subdomains"),
        ("host: '*.*.a.example'", "host", "1:7", ""),
        ("host: 0x7f.1", "host", "1:7", "`127.0.0.1`"),
        ("host: ''", "host", "1:7", "empty"),
        ("host: a b", "host", "1:7", "space"),
        ("host: egress", "host", "1:7", "own name"),
        ("host: _egress.local", "host", "1:7", "own name"),
        ("host: 10.0.0.5", "host", "1:7", "`private: true`"),
        ("host: '::ffff:127.0.0.1'", "host", "1:7", "loopback"),
        ("host: localhost", "host", "1:7", "connect_to"),
        ("host: a.example\nports: []", "ports", "2:8", "leave the key out"),
        ("host: a.example\nports: [0]", "ports", "2:8", "1 to 65535"),
        ("host: a.example\nports: [80]\nauth: {scheme: Bearer, token_ref: T}", "ports", "2:8", "plain HTTP"),
        ("host: a.example\nauth: {scheme: Bearer}", "auth.token_ref", "2:7", "token_ref: NAME"),
        ("host: a.example\nauth: {scheme: Bearer, slot: s}", "auth.slot", "2:30", "token_ref"),
        ("host: a.example\nauth: {scheme: Bearer, token_ref: ' '}", "auth.token_ref", "2:35", "env:NAME"),
        ("host: a.example\nauth: {scheme: header, token_ref: T}", "auth.header", "2:7", "x-api-key"),
        (
            "host: a.example\nauth: {scheme: basic, token_ref: T, header: x-a}",
            "auth.header",
            "2:45",
            "scheme: header",
        ),
        (
            "host: a.example\nauth: {scheme: header, token_ref: T, header: Host}",
            "auth.header",
            "2:46",
            "controls",
        ),
        (
            "host: a.example\nauth: {scheme: header, token_ref: T, header: 'x y'}",
            "auth.header",
            "2:46",
            "letters",
        ),
        (
            "host: a.example\npass_credentials: true\nauth: {scheme: Bearer, token_ref: T}",
            "pass_credentials",
            "2:19",
            "choose one",
        ),
        ("host: a.example\nmatches: []", "matches", "2:10", "leave the key out"),
        ("host: a.example\nmatches: [{paths: []}]", "matches.paths", "2:19", "leave the key out"),
        (
            "host: a.example\nmatches: [{paths: [{type: exact, value: v1}]}]",
            "matches.paths.value",
            "2:41",
            "`/v1`",
        ),
        (
            "host: a.example\nmatches: [{paths: [{type: exact, value: /a/../b}]}]",
            "matches.paths.value",
            "2:41",
            "`/b`",
        ),
        (
            "host: a.example\nmatches: [{paths: [{type: exact, value: '/a%2fb'}]}]",
            "matches.paths.value",
            "2:41",
            "slash",
        ),
        (
            "host: a.example\nmatches: [{paths: [{type: exact, value: '/a?b'}]}]",
            "matches.paths.value",
            "2:41",
            "query",
        ),
        (
            "host: a.example\nmatches: [{paths: [{type: regex, value: '('}]}]",
            "matches.paths.value",
            "2:41",
            "expression",
        ),
        (
            "host: a.example\nmatches: [{paths: [{type: regex, value: '(a{999}){999}'}]}]",
            "matches.paths.value",
            "2:41",
            "bytes",
        ),
        ("host: a.example\nmatches: [{methods: [TRACE]}]", "matches.methods", "2:22", "never"),
        ("host: a.example\nmatches: [{methods: ['G T']}]", "matches.methods", "2:22", "GET"),
        (
            "host: a.example\nmatches: [{headers: [{name: 'a:', type: exact, value: b}]}]",
            "matches.headers.name",
            "2:29",
            "letters",
        ),
        (
            "host: a.example\nmatches: [{headers: [{name: a, type: exact, value: \"b\\r\\nc: d\"}]}]",
            "matches.headers.value",
            "2:52",
            "line break",
        ),
        (
            "host: a.example\ninspect: false\nauth: {scheme: Bearer, token_ref: T}",
            "auth",
            "3:7",
            "not inspected",
        ),
        ("host: a.example\ninspect: false\nmatches: [{methods: [GET]}]", "matches", "3:10", "not inspected"),
        ("host: a.example\ninspect: false\nports: [80]", "inspect", "2:10", "plain HTTP"),
        ("host: a.example\nconnect_to: host", "connect_to", "2:13", "`host:PORT`"),
        ("host: a.example\nrole: git", "role", "2:7", "reserved"),
        ("host: a.example\nrole:", "role", "", "reserved"),
        ("host: a.example\nprovider: true", "provider", "2:11", "agent_provider.route"),
    ];
    for (text, field, at, part) in table {
        let error = one(text).expect_err(text);
        let RoutesError::Route(error) = error else { panic!("{text}: {error}") };
        assert_eq!(error.field, field, "{text}: {error}");
        let seen = error.at.map(|at: Position| at.to_string()).unwrap_or_default();
        assert!(at.is_empty() || at == seen, "{text}: {seen} {error}");
        assert!(error.problem.contains(part), "{text}: {error}");
    }
}

#[test]
fn unknown_words_list_the_accepted_ones() {
    for (text, part) in [
        ("hots: a.example", "`host`, `ports`, `auth`"),
        ("host: a.example\nauth: {scheme: bearer, token_ref: T}", "`Bearer`, `token`, `basic` or `header`"),
        ("host: a.example\nwebsocket: no", "`allow` or `refuse`"),
        (
            "host: a.example\ndlp: {outbound_detectors: [tokens]}",
            "`token_patterns`, `known_secrets` or `entropy`",
        ),
        ("host: a.example\ndlp: {outbound_detectors: true}", "`false` or a list"),
        ("host: a.example\ndlp: {inbound_on_match: redact}", "must be `warn` or `block`"),
        ("host: a.example\nmatches:", "`matches` has no value"),
        ("host: a.example\nports: 443", "a list"),
        ("host: a.example\ninspect: no", "must be true or false"),
        ("host: a.example\nhost: b.example", "appears twice"),
        ("ports: [443]", "lacks the key `host`"),
    ] {
        let error = one(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn an_address_may_be_a_host() {
    for (text, host) in [
        ("host: 9.9.9.9", "9.9.9.9"),
        ("host: 10.0.0.5\nprivate: true", "10.0.0.5"),
        ("host: 10.0.0.5\nconnect_to: host:8080", "10.0.0.5"),
        ("host: 2620:FE:0:0::9", "[2620:fe::9]"),
        ("host: '[2620:fe::9]'", "[2620:fe::9]"),
    ] {
        assert_eq!(one(text).expect(text).host.to_string(), host, "{text}");
    }
}

#[test]
fn rejects_duplicate_hosts() {
    let text = "routes:\n- host: a.example\n- host: b.example\n- host: A.example.\n  private: true\n";
    let error = parse_routes(text, Form::Runtime).expect_err("twice");
    assert_eq!(error.at().map(|at| at.line), Some(4), "{error}");
    assert!(error.to_string().contains("appears twice"), "{error}");
}

#[test]
fn exact_beats_wildcard_and_the_longest_wildcard_wins() {
    let text = "routes:\n- host: '*.example.com'\n- host: '*.b.example.com'\n- host: a.example.com\n  ports: [8443]\n";
    let table = parse_routes(text, Form::Runtime).expect("routes");
    for (host, port, found) in [
        ("a.example.com", 8443, "a.example.com"),
        ("c.example.com", 443, "*.example.com"),
        ("c.d.example.com", 443, "*.example.com"),
        ("b.example.com", 443, "*.example.com"),
        ("x.b.example.com", 443, "*.b.example.com"),
    ] {
        let Found::Route(route) = table.find(host, port) else { panic!("{host}") };
        assert_eq!(route.host.to_string(), found, "{host}");
    }
    assert!(
        matches!(table.find("a.example.com", 443), Found::OtherPorts(_)),
        "the exact host hides the wildcard"
    );
    for host in ["example.com", "aexample.com", "example.com.evil.test", "[2001:db8::1]", "203.0.113.1", ""] {
        assert_eq!(table.find(host, 443), Found::Nothing, "{host}");
    }
}

#[test]
fn expressions_match_the_whole_text() {
    let pattern = |text: &str| Pattern::new(text).expect("expression");
    assert!(pattern("/a|/ab").matches(b"/ab"));
    assert!(!pattern("/a").matches(b"/ab"));
    assert!(!pattern("(?m)/a$").matches(b"/a\n/b"));
    assert!(!pattern("/a|").matches(b"/b"));
    for trick in ["a)|(b", "(?x)/a # comment", "(", "\\p{Greek}", &"(?:".repeat(100), &"a".repeat(2000)] {
        assert!(Pattern::new(trick).is_err(), "{trick}");
    }
}

#[test]
fn prefixes_match_by_segment() {
    let prefix = PathMatch::Prefix("/v1".to_owned());
    for (path, fits) in
        [("/v1", true), ("/v1/", true), ("/v1/x", true), ("/v10", false), ("/v", false), ("/V1", false)]
    {
        assert_eq!(prefix.matches(path), fits, "{path}");
    }
}

#[test]
fn a_narrowing_only_narrows() {
    let own = one("host: a.example\nmatches: [{paths: [{type: prefix, value: /v1}], methods: [POST, GET]}]")
        .expect("route");
    let narrow = |text: &str| bottle_text::yaml::from_str::<Narrowing>(text).expect("words").apply(&own);
    let narrowed = narrow("matches: [{paths: [{type: exact, value: /v1/messages}], methods: [POST]}]")
        .expect("narrower");
    assert_eq!(narrowed.matches[0].methods, ["POST"]);
    let elsewhere = narrow("connect_to: gateway.example:8443").expect("elsewhere");
    assert_eq!(elsewhere.connect_to.map(|to| to.to_string()), Some("gateway.example:8443".to_owned()));
    assert_eq!(elsewhere.matches, own.matches);
    for wider in [
        "matches: [{paths: [{type: prefix, value: /}], methods: [POST]}]",
        "matches: [{paths: [{type: exact, value: /v1/x}]}]",
        "matches: [{methods: [POST]}]",
        "matches: [{}]",
        "matches: [{paths: [{value: /v1/messages}], methods: [POST]}, {}]",
    ] {
        let error = narrow(wider).expect_err(wider);
        assert!(error.problem.contains("`extend: true`"), "{error}");
    }
}

#[test]
fn an_extension_adds_requests_to_the_provider_route() {
    let own = one("host: a.example\nmatches: [{paths: [{value: /v1}], methods: [POST]}]").expect("route");
    let apply = |text: &str| bottle_text::yaml::from_str::<Narrowing>(text).expect("words").apply(&own);
    let wider =
        apply("extend: true\nmatches: [{paths: [{value: /v2}]}, {paths: [{value: /v1/x}], methods: [POST]}]")
            .expect("wider");
    // The provider route already allows the second entry of the extension, so that entry is dropped.
    assert_eq!(wider.matches.len(), 2);
    assert_eq!(wider.matches[0], own.matches[0]);
    assert_eq!(wider.matches[1].paths, [PathMatch::Prefix("/v2".to_owned())]);
    assert!(apply("{extend: true, matches: [{}]}").expect("every request").matches.is_empty());
    for (text, words) in [
        ("{extend: false, matches: [{}]}", "`extend: true`"),
        ("matches: [{}]", "`extend: true`"),
        ("extend: true", "`matches` is missing"),
    ] {
        let error = apply(text).expect_err(text).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn validates_routes_built_in_code() {
    let good = Route::to(HostPattern::Exact("a.example".to_owned()));
    let auth = Auth {
        scheme: Scheme::Bearer,
        header: "authorization".to_owned(),
        source: AuthSource::Slot("s".to_owned()),
    };
    for bad in [
        Route { host: HostPattern::Exact("A.example".to_owned()), ..good.clone() },
        Route { ports: vec![], ..good.clone() },
        Route { ports: vec![443, 80], ..good.clone() },
        Route { ports: vec![80], auth: Some(auth.clone()), ..good.clone() },
        Route { auth: Some(Auth { header: "x-key".to_owned(), ..auth.clone() }), ..good.clone() },
        Route { auth: Some(Auth { source: AuthSource::Slot("a\r\nb".to_owned()), ..auth }), ..good.clone() },
        Route { matches: vec![RequestMatch::default()], ..good.clone() },
        Route { connect_to: Some(ConnectTo { host: "a/b".to_owned(), port: 1 }), ..good.clone() },
    ] {
        assert!(RouteTable::new(vec![bad.clone()]).is_err(), "{bad:?}");
    }
    assert!(RouteTable::new(vec![good]).is_ok());
}

#[test]
fn refuses_a_message_that_a_document_could_not_be() {
    for (message, part) in [
        (r#"{"routes": [{"hots": "a.example"}]}"#, "hots"),
        (r#"{"routes": [{"host": "a.example", "ports": [0]}]}"#, "1 to 65535"),
        (r#"{"routes": [{"host": "a.example"}, {"host": "a.example"}]}"#, "appears twice"),
        (r#"{"routes": [{"host": "a.example", "auth": {"scheme": "Bearer", "token_ref": "T"}}]}"#, "`slot`"),
        (r#"{"routes": [], "more": 1}"#, "more"),
        ("{}", "routes"),
    ] {
        let error = serde_json::from_str::<RouteTable>(message).expect_err(message).to_string();
        assert!(error.contains(part), "{message}: {error}");
    }
}

proptest! {
    #[test]
    fn rendering_round_trips(table in arbitrary::table(Form::Runtime)) {
        let text = render_routes(&table);
        let read = parse_routes(&text, Form::Runtime).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(&read, &table);
        prop_assert_eq!(render_routes(&read), text);
    }

    #[test]
    fn a_message_round_trips(table in arbitrary::table(Form::Runtime)) {
        let message = serde_json::to_string(&table).expect("a message");
        prop_assert_eq!(serde_json::from_str::<RouteTable>(&message).expect("routes"), table);
    }

    #[test]
    fn the_manifest_form_round_trips(table in arbitrary::table(Form::Manifest)) {
        let text = render_routes(&table);
        let read = parse_routes(&text, Form::Manifest).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(read, table);
    }

    #[test]
    fn no_text_panics_the_parser(text in any::<String>(), host in any::<String>()) {
        let _ = parse_routes(&text, Form::Runtime);
        let _ = HostPattern::parse(&host);
        let _ = Pattern::new(&text);
    }

    #[test]
    fn a_pattern_that_covers_another_covers_its_hosts(one in arbitrary::host(), other in arbitrary::host(), label in "[a-z]{1,3}") {
        if let HostPattern::Wildcard(base) = &other {
            let host = format!("{label}.{base}");
            prop_assert!(other.covers(&host));
            prop_assert!(!other.covers(base));
            if one.covers_pattern(&other) {
                prop_assert!(one.covers(&host));
            }
        }
    }
}
