//! Generators of valid routes for property tests. Values without a fixed format contain hostile characters.

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;

/// Generates a table of up to six valid routes for one [`Form`].
pub(crate) fn table(form: Form) -> impl Strategy<Value = RouteTable> {
    vec(route(form), 0..6).prop_map(|routes| {
        let mut seen = std::collections::HashSet::new();
        let distinct = routes.into_iter().filter(|route| seen.insert(route.host.clone())).collect();
        RouteTable::new(distinct).expect("valid routes")
    })
}

/// Generates hosts from few names, so that hosts collide and wildcards cover other hosts.
pub(crate) fn host() -> impl Strategy<Value = HostPattern> {
    let name = || {
        prop_oneof![
            Just("a.example"),
            Just("b.a.example"),
            Just("c.b.a.example"),
            Just("xn--bcher-kva.example")
        ]
    };
    prop_oneof![
        name().prop_map(|name| HostPattern::Exact(name.to_owned())),
        name().prop_map(|name| HostPattern::Wildcard(name.to_owned())),
        Just(HostPattern::Exact("9.9.9.9".to_owned())),
        Just(HostPattern::Exact("[2620:fe::9]".to_owned())),
    ]
}

/// Generates a valid route.
pub(crate) fn route(form: Form) -> impl Strategy<Value = Route> {
    let parts = (
        host(),
        btree_set(prop_oneof![Just(80u16), Just(443), 1u16..], 1..3),
        option::of(auth(form)),
        (matches(), except()),
    );
    let flags = (any::<[bool; 5]>(), any::<bool>(), option::of(connect_to()), dlp());
    (parts, flags).prop_map(
        move |((host, ports, auth, (matches, except)), (flags, refuse, connect_to, dlp))| {
            let [pass_credentials, git_fetch, inspect, private, provider] = flags;
            let auth = auth.filter(|_| !ports.contains(&80));
            let open = inspect || ports.contains(&80);
            Route {
                host,
                ports: ports.into_iter().collect(),
                pass_credentials: pass_credentials && auth.is_none() && open,
                auth: auth.filter(|_| open),
                matches: if open { matches } else { Vec::new() },
                except: if open { except } else { Vec::new() },
                git_fetch: git_fetch && open,
                inspect: open,
                private,
                connect_to,
                websocket: if refuse && open { WebSocket::Refuse } else { WebSocket::Allow },
                dlp: if open { dlp } else { Dlp::default() },
                provider: provider && form == Form::Runtime,
            }
        },
    )
}

fn auth(form: Form) -> impl Strategy<Value = Auth> {
    let source = match form {
        Form::Manifest => "[^\\p{Cc}]{0,20}[A-Z]".prop_map(AuthSource::Reference).boxed(),
        Form::Runtime => "[A-Za-z0-9_./:-]{1,12}".prop_map(AuthSource::Slot).boxed(),
    };
    let scheme_and_header = prop_oneof![
        Just((Scheme::Bearer, "authorization")),
        Just((Scheme::Token, "authorization")),
        Just((Scheme::Basic, "authorization")),
        Just((Scheme::Header, "x-api-key")),
        Just((Scheme::Header, "private-token")),
    ];
    (scheme_and_header, source).prop_map(|((scheme, header), source)| Auth {
        scheme,
        header: header.to_owned(),
        source,
    })
}

fn connect_to() -> impl Strategy<Value = ConnectTo> {
    (prop_oneof![Just("host"), Just("192.168.1.2"), Just("[fd00::1]"), Just("db.internal")], 1u16..)
        .prop_map(|(host, port)| ConnectTo { host: host.to_owned(), port })
}

fn dlp() -> impl Strategy<Value = Dlp> {
    let outbound = vec(
        prop_oneof![
            Just(OutboundDetector::TokenPatterns),
            Just(OutboundDetector::KnownSecrets),
            Just(OutboundDetector::Entropy)
        ],
        0..3,
    );
    let inbound = vec(
        prop_oneof![Just(InboundDetector::KnownSecrets), Just(InboundDetector::NaiveInjectionDetection)],
        0..3,
    );
    let on_match = prop_oneof![Just(OnMatch::Supervise), Just(OnMatch::Redact), Just(OnMatch::Block)];
    let inbound_on_match = prop_oneof![Just(InboundOnMatch::Warn), Just(InboundOnMatch::Block)];
    (option::of(outbound), option::of(inbound), option::of(on_match), option::of(inbound_on_match)).prop_map(
        |(outbound, inbound, on_match, inbound_on_match)| Dlp {
            outbound_detectors: outbound,
            inbound_detectors: inbound,
            outbound_on_match: on_match,
            inbound_on_match,
        },
    )
}

/// Generates valid `matches`, which are often empty.
pub(crate) fn matches() -> impl Strategy<Value = Vec<RequestMatch>> {
    let entry = (
        vec(path_match(), 0..3),
        vec(prop_oneof![Just("GET"), Just("POST"), Just("PURGE")], 0..3),
        vec(header(), 0..2),
    )
        .prop_map(|(paths, methods, headers)| RequestMatch {
            paths,
            methods: methods.into_iter().map(str::to_owned).collect(),
            headers,
        })
        .prop_filter("an entry has a condition", |entry| *entry != RequestMatch::default());
    vec(entry, 0..3)
}

/// Generates valid `except`, which is often empty and sometimes denies every request.
fn except() -> impl Strategy<Value = Vec<RequestMatch>> {
    let some = matches().prop_map(|entries| {
        let entries = entries.into_iter().map(|entry| RequestMatch { headers: Vec::new(), ..entry });
        entries.filter(|entry| *entry != RequestMatch::default()).collect()
    });
    prop_oneof![6 => Just(Vec::new()), 3 => some, 1 => Just(vec![RequestMatch::default()])]
}

fn path_match() -> impl Strategy<Value = PathMatch> {
    let path = "(/[a-z0-9:@&'!~-]{1,4}){1,3}";
    prop_oneof![
        Just(PathMatch::Prefix("/".to_owned())),
        path.prop_map(PathMatch::Prefix),
        path.prop_map(PathMatch::Exact),
        expression().prop_map(PathMatch::Regex),
    ]
}

fn header() -> impl Strategy<Value = HeaderMatch> {
    let exact = "[!-~]([ -~]{0,6}[!-~])?".prop_map(HeaderValueMatch::Exact);
    let value = prop_oneof![exact, expression().prop_map(HeaderValueMatch::Regex)];
    ("[a-z][a-z0-9-]{0,6}", value).prop_map(|(name, value)| HeaderMatch { name, value })
}

fn expression() -> impl Strategy<Value = Pattern> {
    "[^\\p{Cc}]{0,8}".prop_filter_map("an expression", |text| Pattern::new(&text).ok())
}
