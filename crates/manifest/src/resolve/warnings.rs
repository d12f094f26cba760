//! Lists the settings of a resolved manifest that weaken the bottle's isolation. The preflight shows them as
//! warnings.
//!
//! A user can have a good reason for each of these settings, so the settings are not refused. All of them are shown
//! before every launch.

use std::borrow::Cow;

use bottle_policy::known_hosts;
use bottle_policy::route::{Dlp, Route};
use serde::Serialize;

use super::resolved::{Repo, ResolvedManifest};
use crate::origin::{Origin, Traced};

/// A setting that weakens the isolation of a bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WeakeningSetting {
    /// The host of the route, or the key: `resources.nested` or `mcp`.
    pub host: String,
    /// How the setting weakens the isolation.
    pub what: Weakening,
    /// Where the setting comes from.
    pub origin: Origin,
}

/// How a route or a resource setting weakens the isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weakening {
    /// The route sets `inspect: false`.
    Uninspected,
    /// The route sets `private: true`.
    Private,
    /// The route sets `pass_credentials: true`.
    PassesCredentials,
    /// No outbound detector runs.
    UnscannedOut,
    /// No inbound detector runs.
    UnscannedIn,
    /// The route allows requests that write to the forge of a repository of the git gate, or to this forge's
    /// API.
    ForgeWrite,
    /// `agent_provider.route` adds requests to the provider route.
    Extended,
    /// The bottle sets `resources.nested: true`.
    Nested,
    /// The bottle sets `mcp`, which lets the agent start bottles.
    StartsBottles,
    /// The host looks like a typing error of a well-known registry or forge.
    Misspelt,
    /// The route covers all host names below a public suffix.
    ManyOwners,
}

impl WeakeningSetting {
    /// Describes the effect as a sentence fragment that follows the host.
    #[must_use]
    pub fn sentence(&self) -> Cow<'static, str> {
        match known_hosts::intended(&self.host).filter(|_| self.what == Weakening::Misspelt) {
            Some(meant) => format!("looks like a typing error of `{meant}`: another server answers").into(),
            None => self.what.sentence().into(),
        }
    }
}

impl Weakening {
    /// Describes the effect as a sentence fragment that follows the host.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Uninspected => {
                "is not inspected: its TLS traffic is tunnelled without matching or scanning (`inspect: false`)"
            }
            Self::Private => {
                "may resolve to private addresses, this machine's network included (`private: true`)"
            }
            Self::PassesCredentials => {
                "accepts any credentials that the agent sends, an attacker's included (`pass_credentials: true`)"
            }
            Self::UnscannedOut => "is not scanned for secrets in outbound data (`dlp.outbound_detectors`)",
            Self::UnscannedIn => "is not scanned for inbound data (`dlp.inbound_detectors`)",
            Self::ForgeWrite => {
                "allows writes to the forge of a repository of the git gate: its API requests are not checked like \
                 pushes, and only `matches` restricts their content (restrict it to GET)"
            }
            Self::Extended => {
                "allows more requests with the agent's login than the agent's conversations need \
                 (`agent_provider.route.extend`)"
            }
            Self::Nested => {
                "lets the agent create namespaces and mounts, which exposes more of the kernel (`nested: true`)"
            }
            Self::StartsBottles => {
                "lets the agent start bottles of other agents, with secrets and routes that both have (`mcp.agents`)"
            }
            Self::Misspelt => "looks like a typing error of a well-known host",
            Self::ManyOwners => {
                "stands for hosts of many owners: anybody can have a name in it, an attacker too (name a host, or a \
                 domain of one owner)"
            }
        }
    }
}

/// Returns all weakening settings of a bottle: first the settings outside of routes, then those of the routes in their
/// order.
#[must_use]
pub fn weakening_settings(manifest: &ResolvedManifest) -> Vec<WeakeningSetting> {
    let narrowing = manifest.provider.route.as_ref().map(|narrowing| &narrowing.origin);
    let routes = manifest.egress.routes.iter();
    // For the provider route, the setting that weakens it is in `agent_provider.route`.
    let from_routes = routes.flat_map(|route| {
        weakenings(route, narrowing.filter(|_| route.value.provider).unwrap_or(&route.origin))
    });
    let extended = manifest.provider.route.as_ref().filter(|route| route.value.extends());
    let provider_routes = manifest.egress.routes.iter().filter(|route| route.value.provider);
    let extended_routes =
        extended.into_iter().zip(provider_routes).map(|(extended, route)| WeakeningSetting {
            host: route.value.host.to_string(),
            what: Weakening::Extended,
            origin: extended.origin.clone(),
        });
    let nested = &manifest.resources.nested;
    let from_resources = nested.value.then(|| WeakeningSetting {
        host: "resources.nested".to_owned(),
        what: Weakening::Nested,
        origin: nested.origin.clone(),
    });
    let starts_bottles = manifest.mcp.as_ref().map(|rules| WeakeningSetting {
        host: "mcp".to_owned(),
        what: Weakening::StartsBottles,
        origin: rules.origin.clone(),
    });
    let forge_write_routes =
        manifest.egress.routes.iter().filter(|route| writes_to_forge(manifest, &route.value)).map(|route| {
            WeakeningSetting {
                host: route.value.host.to_string(),
                what: Weakening::ForgeWrite,
                origin: route.origin.clone(),
            }
        });
    let from_keys = from_resources.into_iter().chain(starts_bottles);
    from_keys.chain(from_routes).chain(extended_routes).chain(forge_write_routes).collect()
}

/// Whether this route allows writing to a repository that the git gate protects.
fn writes_to_forge(manifest: &ResolvedManifest, route: &Route) -> bool {
    let reads = |method: &String| matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS");
    let only_reads = !route.matches.is_empty()
        && route.matches.iter().all(|entry| !entry.methods.is_empty() && entry.methods.iter().all(reads));
    !(only_reads && route.inspect)
        && manifest.repos.values().flat_map(Repo::forges).any(|forge| {
            // GitHub has separate hosts for its API and for uploads. Other forges have a single host.
            [format!("api.{forge}"), format!("uploads.{forge}"), forge]
                .iter()
                .any(|host| route.host.covers(host))
        })
}

fn weakenings<'a>(
    route: &'a Traced<Route>,
    origin: &'a Origin,
) -> impl Iterator<Item = WeakeningSetting> + 'a {
    let flags = [
        (Weakening::Uninspected, !route.value.inspect),
        (Weakening::Private, route.value.private),
        (Weakening::PassesCredentials, route.value.pass_credentials),
        (Weakening::ManyOwners, route.value.host.spans_owners()),
        (Weakening::Misspelt, known_hosts::intended(&route.value.host.to_string()).is_some()),
    ];
    let flags = flags.into_iter().filter(|(_, set)| *set).map(|(what, _)| what);
    flags.chain(unscanned(&route.value.dlp)).map(|what| WeakeningSetting {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::tests::directories::Directories;

    fn forge_write_routes(routes: &str) -> Vec<String> {
        let bottle = format!(
            "---\nagent_provider: {{template: command, command: [agent]}}\ngit-gate:\n  repos:\n    \
             tool: {{url: 'git@ssh.Git.example.com:a/b.git', key: {{provider: gitea, token_ref: T, api_url: \
             'https://forge.example.com/api/v1'}}}}\n\
             egress:\n  routes: {routes}\n---\n"
        );
        let directories =
            Directories::with(&[("home/bottles/here.md", &bottle), ("home/agents/here.md", "Do.\n")]);
        let resolved = directories.resolve("here here").expect("resolved");
        let found = weakening_settings(&resolved.manifest).into_iter();
        found
            .filter(|weakness| weakness.what == Weakening::ForgeWrite)
            .map(|weakness| weakness.host)
            .collect()
    }

    #[test]
    fn reports_a_route_to_every_name_below_a_public_suffix() {
        for (host, reported) in
            [("*.github.io", true), ("*.co.uk", true), ("*.example.co.uk", false), ("github.io", false)]
        {
            let bottle = format!(
                "---\nagent_provider: {{template: command, command: [agent]}}\negress:\n  routes: [{{host: '{host}'}}]\n---\n"
            );
            let directories =
                Directories::with(&[("home/bottles/here.md", &bottle), ("home/agents/here.md", "Do.\n")]);
            let resolved = directories.resolve("here here").expect("resolved");
            let found = weakening_settings(&resolved.manifest);
            assert_eq!(found.iter().any(|setting| setting.what == Weakening::ManyOwners), reported, "{host}");
        }
    }

    #[test]
    fn reports_a_writable_route_to_a_gated_forge() {
        for (routes, reported) in [
            ("[{host: git.example.com}]", true),
            ("[{host: api.git.example.com, matches: [{methods: [GET]}, {methods: [POST]}]}]", true),
            ("[{host: '*.example.com', matches: [{paths: [{type: prefix, value: /x}]}]}]", true),
            ("[{host: git.example.com, matches: [{methods: [GET, HEAD]}]}]", false),
            ("[{host: forge.example.com}]", true),
            ("[{host: other.example.com}]", false),
        ] {
            assert_eq!(!forge_write_routes(routes).is_empty(), reported, "{routes}");
        }
    }
}
