//! What the bottle can reach, tried from inside.
//!
//! Every attempt is real: sockets are opened, names are asked for, files are read. An attempt is `closed`
//! only when what it saw can have no other meaning; a timeout, which may also be a lost packet, is
//! `unknown`.
//!
//! - `network`, `datagram`: outside addresses, metadata, the host, other resolvers
//! - `proxy`: what is not allowed must be refused, with a reason; `place`: where the proxy is
//! - `inside`: environment, `/proc`, the host's files

mod datagram;
mod inside;
mod network;
mod place;
mod proxy;

use std::collections::BTreeMap;

use bottle_contract::secret::Secret;
use bottle_contract::session::guest::{Attempt, Probe, Reach};

/// Tries everything, side by side. The order of the answer is always the same. `environment` is what
/// every process of the bottle gets; of a suspicious variable the name is shown and never the value.
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
