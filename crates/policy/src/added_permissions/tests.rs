use http::HeaderMap;
use proptest::prelude::*;

use super::*;
use crate::decide::{Verdict, decide_url};
use crate::route::{Form, arbitrary, parse_routes};

fn table(yaml: &str) -> RouteTable {
    let yaml = if yaml.is_empty() { " []" } else { yaml };
    parse_routes(&format!("routes:\n{yaml}"), Form::Runtime).expect(yaml)
}

fn words(old: &str, new: &str) -> Vec<String> {
    gains(&table(old), &table(new)).iter().map(ToString::to_string).collect()
}

#[test]
fn reports_gains_and_nothing_else() {
    let a = "- host: a.example\n";
    let narrow = "- host: a.example\n  matches: [{paths: [{type: prefix, value: /v1/x}], methods: [GET]}]\n";
    let wide = "- host: a.example\n  matches: [{paths: [{type: prefix, value: /v1}], methods: [GET]}]\n";
    let auth = "  auth: {scheme: Bearer, slot: s}\n";
    for (old, new, expected) in [
        ("", a, &["a.example: a new host", "a.example: every request"][..]),
        (a, "", &[]),
        (a, narrow, &[]),
        (wide, narrow, &[]),
        (narrow, wide, &["a.example: GET of /v1/*"]),
        (narrow, a, &["a.example: every request"]),
        (
            &format!("{narrow}{auth}"),
            &format!("{wide}{auth}"),
            &["a.example: GET of /v1/*, with the credential `s`"],
        ),
        (a, &format!("{a}{auth}"), &["a.example: the credential `s` in `authorization`"]),
        (a, "- host: a.example\n  ports: [80, 443]\n", &["a.example: port 80, plain HTTP"]),
        (a, "- host: a.example\n  inspect: false\n", &["a.example: TLS passes through uninspected"]),
        ("- host: a.example\n  inspect: false\n", a, &[]),
        (a, "- host: a.example\n  connect_to: host:1\n", &["a.example: connections go to host:1"]),
        (
            "- host: a.example\n  connect_to: host:1\n",
            a,
            &["a.example: connections go where the name resolves"],
        ),
        (a, "- host: a.example\n  dlp: {outbound_detectors: false}\n", &["a.example: changed scanning"]),
        (a, "- host: a.example\n  provider: true\n", &["a.example: changed scanning"]),
        (a, "- host: a.example\n  git: {fetch: true}\n", &["a.example: git clone and fetch"]),
        // The new table adds a wildcard, or removes a route that restricted a host of a wildcard.
        (
            a,
            "- host: a.example\n- host: '*.b.example'\n",
            &["*.b.example: a new host", "*.b.example: every request"],
        ),
        ("- host: '*.b.example'\n", "- host: '*.b.example'\n- host: x.b.example\n", &[]),
        (
            "- host: '*.b.example'\n- host: x.b.example\n  matches: [{methods: [GET]}]\n",
            "- host: '*.b.example'\n",
            &["x.b.example: every request"],
        ),
    ] {
        assert_eq!(words(old, new), expected, "from\n{old}to\n{new}");
    }
}

/// Generates requests on which the tables of [`arbitrary`] decide differently.
fn request() -> impl Strategy<Value = (String, String)> {
    let method = prop_oneof![Just("GET"), Just("POST"), Just("PURGE")];
    let host = prop_oneof![
        Just("a.example"),
        Just("b.a.example"),
        Just("c.b.a.example"),
        Just("d.c.b.a.example"),
        Just("9.9.9.9"),
        Just("x.xn--bcher-kva.example"),
    ];
    let path = prop_oneof![Just("/".to_owned()), "(/[a-z0-9]{1,2}){1,2}", Just("/x/info/refs".to_owned())];
    (method, prop_oneof![Just("https"), Just("http")], host, path)
        .prop_map(|(method, scheme, host, path)| (method.to_owned(), format!("{scheme}://{host}{path}")))
}

/// A change of one route.
#[derive(Debug, Clone)]
enum RouteChange {
    Keep,
    Remove,
    /// Replaces everything except the host.
    Replace(Box<Route>),
    /// Changes only one condition, so that no other gain masks it.
    SetMatches(Vec<RequestMatch>),
    SetInspect(bool),
}

/// Generates a table and a changed version of it.
fn change() -> impl Strategy<Value = (RouteTable, RouteTable)> {
    let route_change = prop_oneof![
        Just(RouteChange::Keep),
        Just(RouteChange::Remove),
        arbitrary::route(Form::Runtime).prop_map(|route| RouteChange::Replace(Box::new(route))),
        arbitrary::matches().prop_map(RouteChange::SetMatches),
        any::<bool>().prop_map(RouteChange::SetInspect),
    ];
    (arbitrary::table(Form::Runtime), prop::collection::vec(route_change, 6)).prop_map(|(old, changes)| {
        let routes = old.routes().iter().zip(changes).filter_map(|(route, change)| {
            let changed = match change {
                RouteChange::Keep => route.clone(),
                RouteChange::Remove => return None,
                RouteChange::Replace(other) => Route { host: route.host.clone(), ..*other },
                RouteChange::SetMatches(matches) => Route { matches, ..route.clone() },
                RouteChange::SetInspect(inspect) => Route { inspect, ..route.clone() },
            };
            // The test ignores a change that violates a rule.
            Some(if RouteTable::new(vec![changed.clone()]).is_ok() { changed } else { route.clone() })
        });
        let new = RouteTable::new(routes.collect()).expect("hosts stay distinct");
        (old, new)
    })
}

fn allows(table: &RouteTable, (method, url): &(String, String)) -> Option<Option<String>> {
    let none = HeaderMap::new();
    match decide_url(table, method, url, &none, &|_| true).expect("url") {
        Verdict::Allow(allowed) => {
            Some(allowed.route.auth.as_ref().map(|auth| auth.source.name().to_owned()))
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn reordering_gains_nothing(table in arbitrary::table(Form::Runtime)) {
        prop_assert_eq!(gains(&table, &table), vec![]);
        let mut reversed = table.routes().to_vec();
        reversed.reverse();
        let reversed = RouteTable::new(reversed).expect("the same routes");
        prop_assert_eq!(gains(&table, &reversed), vec![]);
    }

    /// Every newly allowed request, and every request with another credential, appears in a gain whose
    /// pattern covers the host.
    #[test]
    fn every_gain_is_reported(
        (old, new) in change(),
        requests in prop::collection::vec(request(), 8..24),
    ) {
        let gained = gains(&old, &new);
        for request in &requests {
            let (before, now) = (allows(&old, request), allows(&new, request));
            let authority = request.1.split('/').nth(2).unwrap_or_default();
            let loses_credential = before.is_some() && now == Some(None);
            if now.is_some() && now != before && !loses_credential {
                prop_assert!(gained.iter().any(|gain| gain.host.covers(authority)), "{request:?}\n{gained:?}");
            }
        }
    }
}

#[test]
fn a_regular_expression_does_not_look_like_a_path() {
    let shown = |kind: &str, value: &str| {
        let new = format!(
            "routes:\n- host: a.example\n  matches: [{{paths: [{{type: {kind}, value: '{value}'}}]}}]\n"
        );
        let new: RouteTable = new.parse().expect("routes");
        gains(&RouteTable::default(), &new).last().expect("a gain").to_string()
    };
    assert_eq!(shown("exact", "/v1/"), "a.example: every method of /v1/");
    assert_eq!(shown("regex", "v1"), "a.example: every method of regex \"v1\"");
    assert_eq!(shown("regex", "a\"|/b"), "a.example: every method of regex \"a\\\"|/b\"");
}
