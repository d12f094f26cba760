use proptest::prelude::*;

use super::*;
use crate::added_permissions::{self, What};
use crate::credential::{bindings, check_moves};
use crate::route::{Form, arbitrary, parse_routes, render_routes};

fn table(yaml: &str) -> RouteTable {
    parse_routes(&format!("routes:\n{yaml}"), Form::Runtime).expect(yaml)
}

#[test]
fn parses_both_forms() {
    for text in [
        "routes:\n- host: A.example\n  matches: [{methods: [get]}]\n  git: {fetch: true}\n",
        r#"[{"host": "a.example", "matches": [{"methods": ["GET"]}], "git": {"fetch": true}}]"#,
        r#"{"routes": [{"host": "a.example", "matches": [{"methods": ["GET"]}], "git": {"fetch": true}}]}"#,
    ] {
        let proposal = parse(text).expect(text);
        let [route] = proposal.routes() else { panic!("{text}") };
        assert_eq!(route.host.to_string(), "a.example");
        assert_eq!(route.matches[0].methods, ["GET"]);
        assert!(route.git_fetch);
    }
}

#[test]
fn rejects_keys_that_only_the_user_may_set() {
    for (key, value) in [
        ("auth", "{scheme: Bearer, token_ref: T}"),
        ("ports", "[8443]"),
        ("except", "[{methods: [GET]}]"),
        ("dlp", "{outbound_detectors: false}"),
        ("private", "true"),
        ("inspect", "false"),
        ("connect_to", "host:1"),
        ("pass_credentials", "true"),
        ("websocket", "allow"),
        ("provider", "true"),
        ("role", "x"),
    ] {
        let error = parse(&format!("- host: a.example\n  {key}: {value}\n")).expect_err(key);
        assert!(
            matches!(&error, ProposalError::NotYours { key: named, at: Some(_), .. } if *named == key),
            "{error}"
        );
        assert!(error.to_string().contains(&format!("take out `{key}`")), "{error}");
    }
    for (text, part) in [
        ("[]", "no route"),
        ("routes: []", "no route"),
        ("host: a.example", "accepted here: `routes`"),
        ("- a.example", "a map"),
        ("- host: a.example\n  matches: []", "leave the key out"),
        ("- host: 10.0.0.1", "private"),
        ("- host: egress", "own name"),
        ("- hots: a.example", "accepted here: `host`"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(matches!(parse(&"- host: a.example\n".repeat(51)), Err(ProposalError::TooMany { .. })));
}

#[test]
fn merging_only_widens() {
    let plain = "- host: a.example\n  matches: [{methods: [GET]}]\n  dlp: {outbound_on_match: block}\n";
    for (own, proposal, expected) in [
        (plain, "- host: b.example\n", format!("{plain}- host: b.example\n")),
        (plain, "- host: a.example\n  matches: [{methods: [GET]}]\n", plain.to_owned()),
        (
            plain,
            "- host: a.example\n  matches: [{methods: [POST]}]\n",
            "- host: a.example\n  matches: [{methods: [GET]}, {methods: [POST]}]\n  dlp: {outbound_on_match: block}\n".to_owned(),
        ),
        (plain, "- host: a.example\n", "- host: a.example\n  dlp: {outbound_on_match: block}\n".to_owned()),
        // A route under a wildcard keeps the wildcard's settings.
        (
            "- host: '*.w.example'\n  ports: [443, 8443]\n  matches: [{methods: [GET]}]\n  dlp: {outbound_on_match: block}\n",
            "- host: x.w.example\n  git: {fetch: true}\n",
            "- host: '*.w.example'\n  ports: [443, 8443]\n  matches: [{methods: [GET]}]\n  dlp: {outbound_on_match: block}\n\
             - host: x.w.example\n  ports: [443, 8443]\n  git: {fetch: true}\n  dlp: {outbound_on_match: block}\n".to_owned(),
        ),
        ("- host: a.example\n  inspect: false\n", "- host: a.example\n  git: {fetch: true}\n", "- host: a.example\n  inspect: false\n".to_owned()),
    ] {
        let merged = merge(&table(own), &parse(proposal).expect(proposal)).expect("merged");
        assert_eq!(merged, table(&expected), "{own}{proposal}");
    }
}

#[test]
fn never_widens_a_route_with_a_credential() {
    let auth = "  auth: {scheme: Bearer, slot: s}\n";
    let own = format!(
        "- host: a.example\n  matches: [{{methods: [GET]}}]\n{auth}- host: '*.w.example'\n  matches: [{{methods: [GET]}}]\n{auth}"
    );
    for proposal in [
        "- host: a.example\n",
        "- host: a.example\n  matches: [{methods: [POST]}]\n",
        "- host: a.example\n  matches: [{methods: [GET]}]\n  git: {fetch: true}\n",
        "- host: x.w.example\n",
        "- host: '*.w.example'\n",
        "- host: '*.x.w.example'\n",
    ] {
        let result = merge(&table(&own), &parse(proposal).expect(proposal));
        assert!(matches!(result, Err(ProposalError::Credentialed { .. })), "{proposal}: {result:?}");
    }
    let within = "- host: a.example\n  matches: [{methods: [GET], paths: [{type: exact, value: /x}]}]\n";
    assert_eq!(merge(&table(&own), &parse(within).expect("proposal")), Ok(table(&own)));
    let provider = "- host: a.example\n  provider: true\n  matches: [{methods: [GET]}]\n";
    let result = merge(&table(provider), &parse("- host: a.example\n").expect("proposal"));
    assert!(matches!(result, Err(ProposalError::ProviderOwned { .. })), "{result:?}");
}

fn proposal() -> impl Strategy<Value = Proposal> {
    let route = (arbitrary::host(), arbitrary::matches(), any::<bool>())
        .prop_map(|(host, matches, git_fetch)| ProposedRoute { host, matches, git_fetch });
    prop::collection::vec(route, 1..4).prop_map(|routes| Proposal { routes })
}

/// Renders `proposal` as an agent would write it.
fn written(proposal: &Proposal) -> String {
    let mut seen = std::collections::HashSet::new();
    let distinct = proposal.routes.iter().filter(|route| seen.insert(route.host.clone()));
    let routes = distinct.map(|proposed| Route {
        matches: proposed.matches.clone(),
        git_fetch: proposed.git_fetch,
        ..Route::to(proposed.host.clone())
    });
    render_routes(&RouteTable::new(routes.collect()).expect("valid"))
}

proptest! {
    #[test]
    fn rendering_round_trips(proposal in proposal()) {
        prop_assert_eq!(parse(&proposal.render()), Ok(proposal));
    }

    #[test]
    fn a_proposal_never_changes_user_only_settings(table in arbitrary::table(Form::Runtime), proposal in proposal()) {
        let Ok(merged) = merge(&table, &proposal) else { return Ok(()) };
        // No credential is moved, added or removed.
        prop_assert_eq!(bindings(&merged), bindings(&table));
        prop_assert_eq!(check_moves(&bindings(&table), &merged), Ok(()));
        for own in table.routes() {
            let now = merged.declared(&own.host).expect("no route is taken away");
            if own.auth.is_some() || own.provider {
                prop_assert_eq!(now, own);
            }
            // All settings except requests and git are unchanged.
            let reset = Route { matches: own.matches.clone(), git_fetch: own.git_fetch, ..now.clone() };
            prop_assert_eq!(&reset, own);
        }
        // All gains are requests and git operations of hosts. No gain has a credential.
        for gain in added_permissions::gains(&table, &merged) {
            let open = matches!(gain.what, What::Host | What::Requests(_) | What::EveryRequest | What::GitFetch);
            prop_assert!(open && gain.credential.is_none(), "{gain:?}");
        }
        // A host that had a route keeps its scanning settings.
        for route in merged.routes() {
            if let Some(before) = table.effective(&route.host) {
                prop_assert_eq!(&route.dlp, &before.dlp);
                prop_assert_eq!(route.on_match(), before.on_match());
            }
        }
        // Allowed requests remain allowed, and merging again changes nothing.
        prop_assert_eq!(added_permissions::gains(&merged, &table), vec![]);
        prop_assert_eq!(merge(&merged, &proposal), Ok(merged.clone()));
    }

    #[test]
    fn parses_agent_text_faithfully(proposal in proposal()) {
        let read = parse(&written(&proposal)).expect("a proposal");
        prop_assert!(read.routes.iter().all(|route| proposal.routes.contains(route)));
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = parse(&text);
    }
}

#[test]
fn reports_international_host_names() {
    let proposal =
        parse("[{host: github.com}, {host: gіthub.com}, {host: '*.xn--pple-43d.com'}]").expect("proposal");
    assert_eq!(proposal.international_hosts(), ["xn--gthub-n2e.com", "*.xn--pple-43d.com"]);
    assert!(proposal.render().is_ascii(), "{}", proposal.render());
}

#[test]
fn refuses_every_name_below_a_public_suffix() {
    for host in [
        "*.co.uk",
        "*.github.io",
        "*.pages.dev",
        "*.s3.amazonaws.com",
        "*.compute.amazonaws.com",
        "*.公司.cn",
    ] {
        let text = format!("- host: '{host}'");
        assert!(
            matches!(parse(&text), Err(ProposalError::PublicSuffix { .. })),
            "{host}: {:?}",
            parse(&text)
        );
        // The user may allow the host, in a document of routes.
        assert!(
            text.parse::<crate::route::RouteTable>().is_ok()
                || format!("routes:\n{text}\n").parse::<crate::route::RouteTable>().is_ok()
        );
    }
    for host in [
        "*.example.co.uk",
        "*.octocat.github.io",
        "github.io",
        "*.example.com",
        "*.internal.corp",
        "*.amazonaws.com",
    ] {
        assert!(parse(&format!("- host: '{host}'")).is_ok(), "{host}");
    }
}
