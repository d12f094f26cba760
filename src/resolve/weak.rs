//! What in a resolved manifest gives away some of the door's protection: the preflight's red lines.
//!
//! Data, not a verdict: each of these can be right, and each should be seen before every launch.

use bottle_contract::route::{Dlp, Route};
use serde::Serialize;

use super::origin::{Origin, Traced};
use super::resolved::ResolvedManifest;

/// One thing that weakens a bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Weakness {
    /// The route's host; of the bottle itself `resources.nested`.
    pub host: String,
    /// What it is.
    pub what: Weakening,
    /// Where it was written.
    pub origin: Origin,
}

/// How a route, or the bottle itself, weakens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weakening {
    /// `inspect: false`.
    Uninspected,
    /// `private: true`.
    Private,
    /// `pass_credentials: true`.
    PassesCredentials,
    /// No outbound detector runs.
    UnscannedOut,
    /// No inbound detector runs.
    UnscannedIn,
    /// `resources.nested: true`.
    Nested,
}

impl Weakening {
    /// What it means, as a fragment that follows the host.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Uninspected => {
                "passes unopened: nothing inside is seen, matched or scanned (`inspect: false`)"
            }
            Self::Private => {
                "may lead to private addresses, this machine's network included (`private: true`)"
            }
            Self::PassesCredentials => {
                "takes whatever credentials the agent sends, an attacker's included (`pass_credentials: true`)"
            }
            Self::UnscannedOut => "is not scanned for secrets on their way out (`dlp.outbound_detectors`)",
            Self::UnscannedIn => "is not scanned on the way in (`dlp.inbound_detectors`)",
            Self::Nested => {
                "lets the agent make namespaces and mounts, so that more of the kernel is open to it (`nested: true`)"
            }
        }
    }
}

/// Everything that weakens this bottle: itself first, then in the order of its routes.
#[must_use]
pub fn weaknesses(manifest: &ResolvedManifest) -> Vec<Weakness> {
    let narrowing = manifest.provider.route.as_ref().map(|narrowing| &narrowing.origin);
    let routes = manifest.egress.routes.iter();
    // What weakens the provider's own route was written where it is narrowed.
    let of_routes = routes.flat_map(|route| {
        of_route(route, narrowing.filter(|_| route.value.provider).unwrap_or(&route.origin))
    });
    let nested = &manifest.resources.nested;
    let itself = nested.value.then(|| Weakness {
        host: "resources.nested".to_owned(),
        what: Weakening::Nested,
        origin: nested.origin.clone(),
    });
    itself.into_iter().chain(of_routes).collect()
}

fn of_route<'a>(route: &'a Traced<Route>, origin: &'a Origin) -> impl Iterator<Item = Weakness> + 'a {
    let flags = [
        (Weakening::Uninspected, !route.value.inspect),
        (Weakening::Private, route.value.private),
        (Weakening::PassesCredentials, route.value.pass_credentials),
    ];
    let flags = flags.into_iter().filter(|(_, set)| *set).map(|(what, _)| what);
    flags.chain(unscanned(&route.value.dlp)).map(|what| Weakness {
        host: route.value.host.to_string(),
        what,
        origin: origin.clone(),
    })
}

fn unscanned(dlp: &Dlp) -> impl Iterator<Item = Weakening> + use<> {
    let off = |none: bool, what| none.then_some(what);
    let outbound = dlp.outbound_detectors.as_ref().is_some_and(Vec::is_empty);
    let inbound = dlp.inbound_detectors.as_ref().is_some_and(Vec::is_empty);
    off(outbound, Weakening::UnscannedOut).into_iter().chain(off(inbound, Weakening::UnscannedIn))
}
