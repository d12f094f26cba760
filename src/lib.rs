//! Runs coding agents in isolated bottles whose only route to the network is an egress proxy.
//!
//! Data flows in one direction, and the modules follow its order:
//!
//! ```text
//! manifest → resolve → plan → launch(backend) → instance → {freeze, resume, cleanup}
//!   text      pure    complete   phases that     facts       one transition each
//!                     immutable  undo themselves
//! ```
//! - `cli`: the only module that reads flags and prints
//! - `keeper`: the process that owns a running bottle
//! - `host`: environment, folders and settings of the host as one value
//! - `backend/<name>`: the only module that knows a container engine or sandbox
//! - `forge`: the only module that knows a git forge
//! - `learn`: derives routes from denied requests
//! - `secrets`: reads the values that a plan names
//!
//! A module imports only from modules above it in this order: causes, suggest, archive, host, manifest, provider,
//! resolve, forge, plan, secrets, backend, instance, learn, launch, keeper, cli. `cargo xtask layers` prints the imports, and
//! its tests refuse one against the order.

mod archive;
pub mod backend;
mod causes;
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
