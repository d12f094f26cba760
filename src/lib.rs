//! Runs coding agents in isolated bottles whose only way out is a guarded proxy.
//!
//! Data flows one way; the modules stand in its order:
//!
//! ```text
//! manifest → resolve → plan → launch(backend) → instance → {freeze, resume, cleanup}
//!   text      pure    complete   phases that     facts       one transition each
//!                     immutable  undo themselves
//! ```
//! `cli` is the only one that reads flags and prints; `keeper` is the process that owns a running
//! bottle; `host` is the machine outside as one value; `secrets` reads what a plan names; only `backend/<name>` knows
//! an engine, and only `forge` a forge. `learn` makes routes from denied requests.
//!
//! A module imports only from modules above it in this order: suggest, archive, host, manifest, provider, resolve,
//! forge, plan, secrets, backend, instance, learn, launch, keeper, cli. `cargo xtask layers` prints the imports, and
//! its tests refuse one against the order.

mod archive;
pub mod backend;
pub mod cli;
pub mod forge;
pub mod host;
pub mod instance;
pub mod keeper;
pub mod launch;
pub mod learn;
pub mod manifest;
pub mod plan;
pub mod provider;
pub mod resolve;
pub mod secrets;
mod suggest;
