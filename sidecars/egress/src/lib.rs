//! The egress proxy: the only network path out of a bottle.
//!
//! ```text
//! bottle ─► listener ──► request ──────────────────────────────────► upstream ─► internet
//!           sockets      facts ─ decide ─ scan ─ strip, inject       names, addresses
//!           TLS, HTTP    (contract)     (scan)   ▲                   trust, pool
//!                          ▲                     │
//!                          live (routes)         credential_store (credentials)
//!                                     report ─► parent, log
//! ```
//! - [`daemon`]: the process. The bundle starts the process, which sandboxes itself and serves the requests of the
//!   bundle.
//! - `listener`: turns accepted sockets into HTTP requests, within fixed bounds.
//! - `request`: decides on each request by the policy in `bottle_policy`, then forwards or denies it.
//! - `upstream`: resolves names and checks addresses, verifies certificates, pools connections.
//! - `live`, `credential_store`: the routes and the credentials. The user can replace both at run time, but not where a
//!   credential is sent.
//! - `secrets`: the credentials and the scanners of one request.
//! - [`report`]: reports denials and writes logs, with secrets redacted.
//! - `usage`: counts the tokens of model responses and stores the records until the keeper process collects them.
//! - `lease`: reserves the tokens of requests to models from leases on budgets.
//! - [`host_connector`]: opens connections for the `bottle` process on the host, with the proxy's trust store.
//! - `config`: the configuration that the bundle passes to the daemon.
//! - `bounds`: limits and deadlines of connections, requests, logs and usage records.
//!
//! The crate contains no policy. `bottle_policy::decide` decides on each request, and `bottle policy check` calls the
//! same function.

mod bounds;
mod config;
mod connected_keepers;
mod credential_store;
pub mod daemon;
mod egress;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host_connector;
mod inspect;
mod lease;
mod listener;
mod live;
pub mod report;
mod request;
mod secrets;
#[cfg(any(test, feature = "fuzzing"))]
mod test_proxy;
mod tls;
mod upstream;
mod usage;

#[cfg(test)]
mod tests;

pub use daemon::run;
pub use tls::leaf::{LeafError, Leaves};
