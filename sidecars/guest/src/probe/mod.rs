//! The isolation probe: tests from inside what the bottle can reach.
//!
//! Every attempt is real: it opens sockets, resolves names, reads files. A result is *blocked* only if
//! the observation has no other explanation. A timeout, which may also be a lost packet, is *unknown*.
//!
//! - `network`, `datagram`: outside addresses, metadata services, the host, other resolvers
//! - `proxy`: the proxy must deny an unlisted host with a reason; `place`: addresses of proxy and resolver
//! - `inside`: environment, `/proc`, the host's files

mod datagram;
mod inside;
mod network;
mod place;
mod proxy;

use std::collections::BTreeMap;

use bottle_contract::secret::Secret;
use bottle_contract::session::guest::{Attempt, Probe, Reach};

/// Makes all attempts concurrently and returns them in a fixed order. `environment` is that of every
/// process of the bottle; the result names a suspicious variable without its value.
pub async fn run(probe: &Probe, environment: &BTreeMap<String, Secret>) -> Vec<Attempt> {
    let (network, proxy) = tokio::join!(network::attempts(probe), proxy::attempts());
    let mut attempts = network;
    attempts.extend(proxy);
    attempts.extend(inside::attempts(environment, probe.isolation_only));
    attempts
}

fn attempt(target: &str, via: impl Into<String>, result: Reach, seen: impl Into<String>) -> Attempt {
    Attempt { target: target.to_owned(), via: via.into(), to: None, result, seen: seen.into() }
}
