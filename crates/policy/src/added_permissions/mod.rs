//! Computes which permissions a change of routes adds.
//!
//! The approval screen shows these computed permissions instead of a text diff. A reordered file then shows no
//! permission, and one widened path prefix is clearly visible. Every newly allowed request is covered by some [`Gain`].
//! A gain may cover requests that were already allowed, because regular expressions are compared as text.

mod describe;

use crate::route::{ConnectTo, HostPattern, RequestMatch, Route, RouteTable};

/// One permission that the new routes grant and the old routes do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gain {
    /// The hosts that the permission applies to.
    pub host: HostPattern,
    /// The permission that is added.
    pub what: What,
    /// The slot of the credential that the proxy adds to requests to these hosts, or `None` if the proxy adds no
    /// credential.
    pub credential: Option<String>,
}

/// A permission; see [`Gain::what`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A host that had no route before. Other gains list the permissions of the new route.
    Host,
    /// An additional port.
    Port(u16),
    /// Requests that match this entry of the new route's `matches`.
    Requests(RequestMatch),
    /// Every request to the host.
    EveryRequest,
    /// Git clone and fetch.
    GitFetch,
    /// A different credential, or the first credential of this route.
    Credential {
        /// The credential's slot.
        slot: String,
        /// The header that contains the credential.
        header: String,
    },
    /// The proxy forwards the agent's own credentials.
    AgentCredentials,
    /// The proxy forwards TLS connections without inspecting them.
    TlsPassthrough,
    /// The host name may resolve to an address that the proxy otherwise refuses to connect to
    /// ([`crate::address`]).
    PrivateAddresses,
    /// The proxy connects to this address, or with `None` to the address that the name resolves to.
    Destination(Option<ConnectTo>),
    /// Requests may upgrade to WebSocket.
    WebSockets,
    /// The scan uses other detectors, or takes another action on a match. A stricter scan is reported too.
    Scanning,
}

/// Returns the permissions that `new` grants and `old` does not, in the order of `new`'s routes.
#[must_use]
pub fn gains(old: &RouteTable, new: &RouteTable) -> Vec<Gain> {
    // The longest matching pattern selects a host's route, so comparing at every pattern of both tables covers every
    // host. The comparison includes hosts that lost a route which restricted them.
    let removed = old.routes().iter().filter(|route| new.declared(&route.host).is_none());
    let patterns = new.routes().iter().chain(removed).map(|route| &route.host);
    patterns
        .filter_map(|pattern| {
            let now = new.effective(pattern).filter(|now| !now.denies_all())?;
            Some((pattern, old.effective(pattern).filter(|before| !before.denies_all()), now))
        })
        .flat_map(|(pattern, before, now)| {
            let credential = now.auth.as_ref().map(|auth| auth.source.name().to_owned());
            let gained = match before {
                Some(before) => between(before, now),
                None => all_of(now),
            };
            gained.into_iter().map(move |what| Gain {
                host: pattern.clone(),
                what,
                credential: credential.clone(),
            })
        })
        .collect()
}

/// The gains of a host that had no route before.
fn all_of(now: &Route) -> Vec<What> {
    let nothing = Route::to(now.host.clone());
    let mut gained = vec![What::Host];
    if now.inspect {
        match now.matches.as_slice() {
            [] => gained.push(What::EveryRequest),
            entries => gained.extend(entries.iter().cloned().map(What::Requests)),
        }
    }
    gained.extend(between(&nothing, now));
    gained
}

/// The gains of a host whose previous route was `before`.
fn between(before: &Route, now: &Route) -> Vec<What> {
    let mut gained: Vec<What> =
        now.ports.iter().filter(|port| !before.ports.contains(port)).map(|port| What::Port(*port)).collect();
    gained.extend(requests(before, now));
    if now.auth != before.auth {
        gained.extend(now.auth.as_ref().map(|auth| What::Credential {
            slot: auth.source.name().to_owned(),
            header: auth.header.clone(),
        }));
    }
    if now.connect_to != before.connect_to {
        gained.push(What::Destination(now.connect_to.clone()));
    }
    let refuses = |route: &Route| route.websocket == crate::route::WebSocket::Refuse;
    // If the old route did not inspect requests, it already allowed every request that these gains cover.
    let inspected = before.inspect;
    let scanned = now.inspect && (now.dlp != before.dlp || now.on_match() != before.on_match());
    for (gain, what) in [
        (inspected && now.inspect && now.git_fetch && !before.git_fetch, What::GitFetch),
        (
            inspected && now.inspect && now.pass_credentials && !before.pass_credentials,
            What::AgentCredentials,
        ),
        (inspected && !now.inspect, What::TlsPassthrough),
        (now.private && !before.private, What::PrivateAddresses),
        (inspected && now.inspect && refuses(before) && !refuses(now), What::WebSockets),
        (inspected && scanned, What::Scanning),
    ] {
        if gain {
            gained.push(what);
        }
    }
    gained
}

fn requests(before: &Route, now: &Route) -> Vec<What> {
    if !before.inspect || !now.inspect {
        return Vec::new();
    }
    if now.matches.is_empty() && !before.matches.is_empty() {
        return vec![What::EveryRequest];
    }
    let all_before = before.matches.is_empty();
    let is_known = |entry: &&RequestMatch| all_before || before.matches.iter().any(|own| own.includes(entry));
    let wider = now.matches.iter().filter(|entry| !is_known(entry));
    let restored = before.except.iter().filter(|entry| !now.except.iter().any(|own| own.includes(entry)));
    wider.chain(restored).cloned().map(What::Requests).collect()
}

#[cfg(test)]
mod tests;
