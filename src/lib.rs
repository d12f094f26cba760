//! Runs coding agents in isolated bottles, which reach the network only through an egress proxy and a git gate.
//!
//! Data flows through the modules in this direction:
//!
//! ```text
//! manifest → resolve → plan → launch(backend) → instance → {freeze, resume, cleanup}
//!   text      pure    complete   phases that     facts       one transition each
//!                     immutable  undo themselves
//! ```
//! - `cli`: the only module that parses flags and prints
//! - `library`: the operations that all faces call
//! - `keeper`: the process that owns a running bottle
//! - `host`: the host's environment, directories and settings, as one value
//! - `backend/<name>`: the only modules that contain code for a specific container engine or sandbox
//! - `forge`: the only module that contains code for a specific git forge
//! - `learn`: derives routes from denied requests
//! - `ledger`: the database of what all bottles used
//! - `portable`: archives of bottles, which move between machines and backends
//! - `secrets`: reads the values of the secrets that a plan lists
//!
//! A module imports only from modules that come earlier in this list: causes, archive, host, manifest,
//! provider, resolve, forge, plan, secrets, backend, instance, portable, learn, ledger, launch, keeper, library, cli.
//! `cargo xtask layers` prints the imports, and fails if one of them violates the order or closes a circle of files.

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
pub mod ledger;
mod library;
pub mod manifest;
pub mod plan;
pub mod portable;
pub mod provider;
pub mod resolve;
pub mod secrets;
