//! The proxy: the only way out of a bottle.
//!
//! ```text
//! bottle ─► proxy ─────► request ──────────────────────────────────► upstream ─► world
//!           listen       facts ─ decide ─ scan ─ strip, inject       names, addresses
//!           hello, TLS   (contract)     (seam)   ▲                   trust, pool
//!           HTTP/1, 2      ▲                     │
//!                          live (routes)         vault (credentials)
//!                                     report ─► parent, log
//! ```
//! - [`daemon`]: the process: started by the bundle, hardened, told what to do over its channel.
//! - `proxy`: from an accepted socket to requests, all of it bounded.
//! - `request`: each request decided by the contract's one decision, then forwarded or refused.
//! - `upstream`: pinned addresses, verified certificates, connections kept.
//! - `live`, `vault`: what can change while it runs, and what cannot.
//! - [`report`]: refusals and logs, redacted.
//! - `usage`: what answers of models cost, counted as they pass and kept until the keeper has it.
//! - [`host_connector`]: the host's own connections, by the same rules of trust.
//! - `bounds`: every limit and deadline.
//!
//! It decides nothing by itself: what passes is `bottle_contract::decide`'s word, which
//! `bottle policy check` asks too.

mod bounds;
pub mod daemon;
mod egress;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host_connector;
mod inspect;
mod listener;
mod live;
pub mod report;
mod request;
#[cfg(any(test, feature = "fuzzing"))]
mod test_proxy;
mod tls;
mod upstream;
mod usage;
mod vault;

#[cfg(test)]
mod tests;

pub use daemon::run;
pub use tls::leaf::{LeafError, Leaves};
