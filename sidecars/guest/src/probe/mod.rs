//! Implements the isolation probe, which tests from inside the bottle what the bottle can reach.
//!
//! Every attempt is real: it opens a socket, resolves a name or reads a file. The only exception is the memory of
//! pid 1. The probe runs in pid 1, so it checks the flag that denies access to other processes. A result is *blocked*
//! only if there is no other explanation for the observation. The cause of a timeout may also be a lost packet, so the
//! result of a timeout is *unknown*.
//!
//! - `network`, `datagram`: external addresses, metadata services, the host, other resolvers
//! - `proxy`: the proxy, which must deny an unlisted host and give a reason; `place`: the addresses of the
//!   proxy and the resolver
//! - `inside`: the environment, `/proc`, and files of the host

mod datagram;
mod inside;
mod network;
mod place;
mod proxy;

use std::collections::BTreeMap;

use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::{Attempt, Probe, Reach};

/// Makes all attempts concurrently, and returns their results in a fixed order. `environment` contains the variables
/// that every process of the bottle gets. The results contain the names of suspicious variables, but not their values.
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
