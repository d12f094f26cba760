//! What a change of routes newly allows, as data.
//!
//! What an approval grants is computed, not eyeballed: a reordered file gains nothing, one widened
//! prefix stands out. Sound rather than complete: whatever the new routes allow and the old ones do not
//! is within some [`Gain`]; a gain may turn out to be no more than was allowed before (two regular
//! expressions compare by their text).

mod describe;

use crate::route::{ConnectTo, HostPattern, RequestMatch, Route, RouteTable};

/// One thing that new routes allow and old ones do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gain {
    /// For which hosts.
    pub host: HostPattern,
    /// What.
    pub what: What,
    /// The credential that goes along with such requests.
    pub credential: Option<String>,
}

/// See [`Gain::what`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A host that had no route; what it may be asked follows as further gains.
    Host,
    /// Another port.
    Port(u16),
    /// Requests that satisfy this.
    Requests(RequestMatch),
    /// Requests of every kind.
    EveryRequest,
    /// Git clone and fetch.
    GitFetch,
    /// Another credential, or one where there was none.
    Credential {
        /// Which one.
        slot: String,
        /// In which header.
        header: String,
    },
    /// The agent's own credentials.
    AgentCredentials,
    /// TLS is no longer opened, so nothing inside is seen.
    Unopened,
    /// The name may lead to a forbidden address.
    PrivateAddresses,
    /// Connections lead elsewhere: there, or with `None` to where the name leads.
    Destination(Option<ConnectTo>),
    /// WebSockets.
    WebSockets,
    /// What the scanner looks for, or what it does then, is not what it was.
    Scanning,
}

/// What `new` allows and `old` does not, in the order of `new`'s routes.
#[must_use]
pub fn gains(old: &RouteTable, new: &RouteTable) -> Vec<Gain> {
    // A host's route is that of its longest pattern, so comparing at every pattern of either table
    // compares at every host: also where an entry that held a host back is gone.
    let gone = old.routes().iter().filter(|route| new.declared(&route.host).is_none());
    let patterns = new.routes().iter().chain(gone).map(|route| &route.host);
    patterns
        .filter_map(|pattern| new.effective(pattern).map(|now| (pattern, old.effective(pattern), now)))
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

/// What a host gains that had no route.
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

/// What a host gains whose route was `before`.
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
    // Through a host that was not opened all of these passed already.
    let opened = before.inspect;
    let scanned = now.inspect && (now.dlp != before.dlp || now.on_match() != before.on_match());
    for (gain, what) in [
        (opened && now.inspect && now.git_fetch && !before.git_fetch, What::GitFetch),
        (opened && now.inspect && now.pass_credentials && !before.pass_credentials, What::AgentCredentials),
        (opened && !now.inspect, What::Unopened),
        (now.private && !before.private, What::PrivateAddresses),
        (opened && now.inspect && refuses(before) && !refuses(now), What::WebSockets),
        (opened && scanned, What::Scanning),
    ] {
        if gain {
            gained.push(what);
        }
    }
    gained
}

fn requests(before: &Route, now: &Route) -> Vec<What> {
    let all_before = !before.inspect || before.matches.is_empty();
    if all_before || !now.inspect {
        return Vec::new();
    }
    if now.matches.is_empty() {
        return vec![What::EveryRequest];
    }
    let wider = now.matches.iter().filter(|entry| !before.matches.iter().any(|own| own.includes(entry)));
    wider.cloned().map(What::Requests).collect()
}

#[cfg(test)]
mod tests;
