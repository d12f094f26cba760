//! Determines which requests the egress proxy would allow, and why.
//!
//! The decision is made by the function and the scanner that the proxy itself uses. It is based on the current routes
//! of a running bottle, or on the routes with which a bottle would be started. Checks that need a connection or a
//! secret's value (addresses, certificates, known values) are not included.
//!
//! - `replay`: decides recorded requests again

mod replay;

use std::sync::Arc;

use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::{State, Store, routes};
use bottle_manifest::origin::Traced;
use bottle_manifest::resolve::{ResolvedManifest, Selection, resolve};
use bottle_plan::{Flags, Plan};
use bottle_policy::credential::exempt::{self, Exempt};
use bottle_policy::credential::strip::{self, StrippedHeaders};
use bottle_policy::decide::{self, Allowed, BadUrl, Findings, Verdict, decide_url_with};
use bottle_policy::names::{Name, Slug};
use bottle_policy::route::{OutboundDetector, Route, RouteTable};
use bottle_scan::{Detector, Finding, HeadPart, KnownSecrets, RuleFiles, Scanner, Severity, head_injection};
use http::HeaderMap;

pub use self::replay::replay;
use crate::bottles::is_running;
use crate::connect::no_such_bottle;
use crate::failure::Failure;
use crate::manifests::manifests;
use crate::notice::{Notice, Notify};
use crate::report::PolicyAnswer;
use crate::scanner_rules;

/// The origin of the routes that decide about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// The routes of a bottle.
    Bottle(Slug),
    /// The routes of the only running bottle.
    OnlyRunning,
    /// The routes with which this agent would start, with these bottle manifests. If the list is empty, the agent's
    /// default bottle manifests are used.
    Agent(Name, Vec<Name>),
}

/// The input of a decision: the routes, the manifest that defines the routes, and the user's own scanner rules.
pub struct Decider {
    table: RouteTable,
    manifest: ResolvedManifest,
    rules: Arc<RuleFiles>,
}

impl Decider {
    /// Finds the routes and the rules that decide.
    ///
    /// # Errors
    /// When the bottle or the agent does not exist, or when its manifests or the user's own scanner rules cannot be
    /// used.
    pub fn of(host: &Host, whose: Whose, notify: Notify<'_>) -> Result<Self, Failure> {
        let (agent, bottles, record) = select(host, whose)?;
        let resolved = resolve(&Selection { agent, bottles }, &manifests(host))?;
        let plan = plan_of(host, &resolved.manifest)?;
        let live = record.as_ref().and_then(|record| live_routes(host, record));
        let is_other = |record: &Record| live.is_none() && record.manifest_hash != plan.manifest_hash;
        if let Some(record) = record.filter(is_other) {
            notify(Notice::Warning(format!(
                "the manifests of {} changed since it was started; the answer uses the current ones",
                record.slug
            )));
        }
        let rules = Arc::new(scanner_rules::load(host, notify)?.rules);
        Ok(Self { table: live.unwrap_or(plan.egress.routes), manifest: resolved.manifest, rules })
    }

    /// Decides whether the proxy would allow a request.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub fn decide(
        &self,
        method: &str,
        url: &str,
        headers: &HeaderMap,
        body: Option<&[u8]>,
    ) -> Result<PolicyAnswer, Failure> {
        let bad = |error: BadUrl| Failure::usage(error.to_string()).about("URL");
        let decide = |findings: &Findings| {
            decide_url_with(&self.table, method, url, headers, &|_| true, findings).map_err(bad)
        };
        let mut verdict = decide(&Findings::none())?;
        let mut warnings = Vec::new();
        if let Verdict::Allow(allowed) = &verdict {
            let found = found(allowed, method, headers, body, &self.rules)?;
            warnings = found.warnings;
            verdict = decide(&found.blocking)?;
        }
        Ok(PolicyAnswer { warnings, ..answer(&verdict, &self.table, &self.manifest) })
    }
}

/// Returns the agent, its bottle manifests, and the record of the bottle. The record is `None` if `whose` names an
/// agent.
fn select(host: &Host, whose: Whose) -> Result<(Name, Vec<Name>, Option<Record>), Failure> {
    let store = Store::of(host);
    let record = match whose {
        Whose::Agent(agent, bottles) => return Ok((agent, bottles, None)),
        Whose::OnlyRunning => the_only_one(&store)?,
        Whose::Bottle(slug) => match store.state(&slug) {
            Some(State::Alive(record) | State::Dead(record) | State::Kept(record)) => *record,
            Some(State::Damaged(why)) => return Err(Failure::state(why).about(slug)),
            Some(State::Newer(schema)) => {
                let why = format!("{slug} was written by a newer bottle (schema {schema})");
                return Err(Failure::state(why).about(slug).hint("use that version of bottle"));
            }
            None => return Err(no_such_bottle(&store, &slug)),
        },
    };
    Ok((record.agent.clone(), record.bottles.clone(), Some(record)))
}

/// Returns the current routes of a running bottle, with the user's approvals and changes. `None` if the bottle does not
/// run, or its routes are unknown.
fn live_routes(host: &Host, record: &Record) -> Option<RouteTable> {
    let store = Store::of(host);
    store.state(&record.slug).filter(is_running)?;
    routes::read(&store.directory(&record.slug)).ok().flatten().map(|routes| routes.table)
}

/// Returns the running bottle if exactly one bottle runs.
fn the_only_one(store: &Store) -> Result<Record, Failure> {
    let mut running = store.list().unwrap_or_default().into_iter().filter_map(|listed| match listed.state {
        State::Alive(record) => Some(*record),
        _ => None,
    });
    match (running.next(), running.next()) {
        (Some(record), None) => Ok(record),
        (None, _) => Err(Failure::usage("cannot choose a bottle: none is running")
            .about("--agent")
            .hint("name an agent (`--agent NAME`, with `--bottle NAME` for its bottles)")),
        (Some(_), Some(_)) => Err(Failure::usage("cannot choose a bottle: several are running")
            .about("--slug")
            .hint("name one with `--slug SLUG`, or an agent with `--agent NAME`")),
    }
}

/// Builds the plan of a launch. Only the routes and the manifest hash of this plan are used.
fn plan_of(host: &Host, manifest: &ResolvedManifest) -> Result<Plan, Failure> {
    let (label, task) = (Some("policy-check".to_owned()), Some(String::new()));
    let flags = Flags { label, task, ..Flags::default() };
    // The slug comes from the label, so no random bytes are needed.
    bottle_plan::build(host, manifest, &flags, &mut |_| {}).map_err(Failure::from)
}

fn answer(verdict: &Verdict<'_, '_>, table: &RouteTable, manifest: &ResolvedManifest) -> PolicyAnswer {
    let of = |word, reason, sentence: String, route: Option<&Route>| {
        let written = route.and_then(|route| origin(manifest, route));
        PolicyAnswer {
            verdict: word,
            reason,
            sentence,
            route: route.map(|route| route.host.to_string()),
            origin: written.map(|traced| traced.origin.to_string()),
            warnings: Vec::new(),
        }
    };
    match verdict {
        Verdict::Allow(allowed) => of("allow", None, passes(allowed), Some(allowed.route)),
        Verdict::Redact(allowed) => {
            let sentence = format!("{} It redacts what looks like a secret.", passes(allowed));
            of("allow", None, sentence, Some(allowed.route))
        }
        Verdict::Ask(allowed) => of(
            "ask",
            None,
            "It contains what looks like a secret, so the user has to approve it.".to_owned(),
            Some(allowed.route),
        ),
        Verdict::Deny(refusal) => {
            of("deny", Some(refusal.reason), refusal.sentence.clone(), table.route_for(&refusal.host))
        }
    }
}

/// The result of the scan of a request.
#[derive(Default)]
struct Found {
    blocking: Findings,
    /// Descriptions of the findings that do not block the request.
    warnings: Vec<String>,
}

/// Scans the parts of a request that the proxy would send: method, path, query, headers, and the body if it is known.
/// The values of secrets are unknown here, so the scan does not find these values.
fn found(
    allowed: &Allowed<'_, '_>,
    method: &str,
    headers: &HeaderMap,
    body: Option<&[u8]>,
    rules: &Arc<RuleFiles>,
) -> Result<Found, Failure> {
    let route = allowed.route;
    if !route.inspect {
        return Ok(Found::default());
    }
    let own = |name: &str| route.auth.as_ref().is_some_and(|auth| auth.header == name);
    let taken = StrippedHeaders::for_route(route);
    let leaves = |name: &http::HeaderName| !own(name.as_str()) && !taken.strips(name.as_str());
    let sent: Vec<_> = headers.iter().filter(|(name, _)| leaves(name)).collect();
    let target = sent_target(allowed);
    let mut text = format!("{method}\n{target}");
    for (name, value) in &sent {
        text.push_str(&format!("\n{name}: {}", String::from_utf8_lossy(value.as_bytes())));
    }
    let list = route.dlp.outbound_detectors.as_ref();
    let tokens = list.is_none_or(|list| list.contains(&OutboundDetector::TokenPatterns));
    let entropy = list.is_some_and(|list| list.contains(&OutboundDetector::Entropy));
    let known = KnownSecrets::new([]).map_err(|error| Failure::state(error.to_string()))?;
    let scanner = Scanner::outbound(known.into()).with_tokens(tokens).with_entropy(entropy);
    let scanner = if tokens { scanner.with_rules(Arc::clone(rules)) } else { scanner };
    let path = head_injection(HeadPart::Line, allowed.target.path.text.as_bytes());
    let query = allowed.target.query.as_ref();
    let query = query.and_then(|query| head_injection(HeadPart::Query, query.as_bytes()));
    let in_headers = sent.iter().filter_map(|(name, value)| {
        head_injection(HeadPart::Header, name.as_str().as_bytes())
            .or_else(|| head_injection(HeadPart::Header, value.as_bytes()))
    });
    let body = body.map(|body| scanner.scan(body).findings).unwrap_or_default();
    let names: Vec<&str> = sent.iter().map(|(name, _)| name.as_str()).collect();
    let mut head = scanner.scan(text.as_bytes()).findings;
    head.retain(|finding| {
        let exempt = exemption(&text, finding, &names, route.pass_credentials);
        !exempt.is_some_and(|exempt| finding.is_exempt(exempt))
    });
    let all = head.into_iter().chain(body).chain(path).chain(query).chain(in_headers);
    let (blocks, warnings): (Vec<_>, Vec<_>) = all.partition(|finding| finding.severity == Severity::Block);
    let words = blocks.first().map(|finding| finding.preview.clone()).unwrap_or_default();
    let weighed = blocks.iter().map(|finding| match finding.detector {
        Detector::Structure => decide::Finding::Structure,
        _ => decide::Finding::Secret,
    });
    let mut warnings: Vec<String> = warnings.into_iter().map(|finding| finding.preview).collect();
    warnings.dedup();
    Ok(Found { blocking: Findings::new(weighed.collect()).described(words), warnings })
}

/// Returns path and query in the form in which the proxy sends them.
fn sent_target(allowed: &Allowed<'_, '_>) -> String {
    match &allowed.target.query {
        Some(query) if !allowed.route.pass_credentials => {
            format!("{}?{}", allowed.target.path.text, strip::query(query))
        }
        _ => allowed.target.to_forward(),
    }
}

/// Returns which findings are exempt at the position of `finding` in `text`. The first line of `text` is the method,
/// and the second line is the target. Each further line is a header, in the order of `names`.
fn exemption(text: &str, finding: &Finding, names: &[&str], passes_credentials: bool) -> Option<Exempt> {
    let span = finding.span.within(text.len());
    let before = text.get(..span.start)?;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].split('\n').next().unwrap_or_default();
    if span.end > start + line.len() {
        return None;
    }
    match before.matches('\n').count() {
        0 => None,
        1 => {
            let query = line.find('?')? + 1;
            let at = span.start.checked_sub(start + query)?..span.end.checked_sub(start + query)?;
            exempt::in_query(&line[query..], &at, passes_credentials)
        }
        header => exempt::in_header(names.get(header - 2)?, passes_credentials),
    }
}

/// Describes what the proxy does with an allowed request, in words.
fn passes(allowed: &Allowed<'_, '_>) -> String {
    let to = match &allowed.route.connect_to {
        Some(place) => format!("{} through {}:{}", allowed.host, place.host, place.port),
        None => format!("{}:{}", allowed.host, allowed.port),
    };
    let credential = match (&allowed.route.auth, allowed.route.inspect, allowed.route.pass_credentials) {
        (Some(auth), ..) => format!("with the bottle's credential in `{}`", auth.header),
        (None, false, _) => "without inspection".to_owned(),
        (None, true, true) => "with the agent's own credentials".to_owned(),
        (None, true, false) => "without credentials".to_owned(),
    };
    format!("The proxy forwards it to {to}, {credential}.")
}

fn origin<'m>(manifest: &'m ResolvedManifest, route: &Route) -> Option<&'m Traced<Route>> {
    manifest.egress.routes.iter().find(|traced| traced.value.host == route.host)
}
