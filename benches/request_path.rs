//! Measures how long the proxy takes to decide about one request, and to create the certificate of one new host.
//!
//! The benchmark prints whether each time budget is kept, and does not fail if a budget is missed. Each request needs a
//! decision, and each host needs a certificate once a day. Run the benchmark with `cargo bench --bench request_path`.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bottle_egress::Leaves;
use bottle_policy::decide::{Findings, Ingress, RequestFacts, UrlScheme, Verdict, decide};
use bottle_policy::route::{Form, RouteTable, parse_routes};
use criterion::Criterion;
use http::HeaderMap;

/// The number of hosts in the route table. The default manifest of a company may contain this many hosts. A single user
/// lists fewer hosts.
const ROUTES: usize = 500;
/// The time budget for one decision: one percent of the time that the other steps of a request take.
const DECISION: Duration = Duration::from_micros(5);
/// The time budget for one certificate: a tenth of the time of a TLS handshake with a server on the internet.
const CERTIFICATE: Duration = Duration::from_millis(1);

fn table() -> RouteTable {
    let mut text = String::from("routes:\n");
    for index in 0..ROUTES {
        writeln!(text, "- host: api-{index}.example.com").expect("text");
        writeln!(text, "  auth: {{scheme: Bearer, slot: token-{index}}}").expect("text");
        writeln!(text, "  matches:").expect("text");
        writeln!(text, "  - {{methods: [POST], paths: [{{type: prefix, value: /v1}}]}}").expect("text");
        let models = "paths: [{type: regex, value: '/models/[a-z0-9.-]+'}]";
        writeln!(text, "  - {{methods: [GET], {models}}}").expect("text");
    }
    parse_routes(&text, Form::Runtime).expect("routes")
}

/// Returns the properties of a request to `host` that the proxy receives transparently.
fn facts<'f>(
    host: &'f str,
    (method, target): (&'f str, &'f str),
    headers: &'f HeaderMap,
) -> RequestFacts<'f> {
    RequestFacts {
        ingress: Ingress::Transparent { port: 443 },
        scheme: UrlScheme::Https,
        sni: Some(host),
        authority: Some(host),
        method,
        target,
        headers,
        websocket: false,
    }
}

/// The method and target of a request that a route allows by its path prefix.
const POST: (&str, &str) = ("POST", "/v1/messages?beta=true");
/// The method and target of a request that a route allows by its path pattern.
const GET: (&str, &str) = ("GET", "/models/claude-opus-4.1");

fn main() {
    let table = table();
    let last = format!("api-{}.example.com", ROUTES - 1);
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("accept", "application/json"), ("user-agent", "agent/1.0"), ("content-type", "application/json")]
    {
        headers.insert(name, value.parse().expect("a value"));
    }
    let word = |host: &str, what| {
        let facts = facts(host, what, &headers);
        match decide(&table, black_box(&facts), &|_| true, &Findings::default()) {
            Verdict::Allow(_) => "allow",
            Verdict::Deny(_) => "refuse",
            _ => "other",
        }
    };
    let decisions = [
        ("allowed by prefix", last.as_str(), POST, "allow"),
        ("allowed by pattern", last.as_str(), GET, "allow"),
        ("refused path", last.as_str(), ("GET", "/admin"), "refuse"),
        ("refused host", "exfiltration.example.net", POST, "refuse"),
    ];
    let leaves = Leaves::make("bench").expect("leaves");
    leaves.config_for("api.example.com").expect("minted");
    let mut names = 0_u64;
    let mut mint = || {
        names += 1;
        leaves.config_for(&format!("h{names}.example.com")).expect("minted")
    };

    let mut criterion = Criterion::default().configure_from_args();
    for (name, host, what, expected) in decisions {
        assert_eq!(word(host, what), expected, "{name}");
        criterion.bench_function(&format!("decide, {name}"), |bencher| bencher.iter(|| word(host, what)));
    }
    criterion.bench_function("certificate, new", |bencher| bencher.iter(&mut mint));
    criterion.bench_function("certificate, kept", |bencher| {
        bencher.iter(|| leaves.config_for(black_box("api.example.com")).expect("kept"));
    });
    criterion.final_summary();
    for (name, host, what, _) in decisions {
        let named = format!("a decision ({name}) among {ROUTES} routes");
        report(&named, DECISION, || {
            black_box(word(host, what));
        });
    }
    report("a new certificate", CERTIFICATE, || drop(mint()));
}

#[allow(clippy::print_stdout)]
fn report(what: &str, budget: Duration, mut run: impl FnMut()) {
    let mut times: Vec<Duration> = (0..1001)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    let median = times[times.len() / 2];
    let verdict = if median <= budget { "kept" } else { "missed" };
    println!("{what}: {median:.2?} (median of 1001); budget {budget:?}: {verdict}");
}
