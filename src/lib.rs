//! Runs coding agents in isolated bottles, which reach the network only through an egress proxy and a git gate.
//!
//! This package contains the user interfaces: the commands, the screens, the web pages and the MCP server. The user
//! interfaces call operations of [`bottle_lib`], and the library calls a keeper or a backend. The library never calls a
//! user interface.
//!
//! - [`cli`]: the commands. Only this module parses flags
//! - `screens`: full screens and attached sessions; `web`: the dashboard as pages; `mcp`: tools for other agents
//! - `console`: code that the user interfaces share
//!
//! Data flows through the crates in this direction:
//!
//! ```text
//! bottle_manifest ──► bottle_plan ──► bottle_keeper::launch(bottle_backend) ──► bottle_instance
//!  text → layers       complete        phases that undo themselves               facts on disk
//!  → resolved          immutable
//! ```
//! - [`bottle_host`]: the host's environment, directories and settings, as one value; [`bottle_archive`]: tar archives
//! - [`bottle_manifest`]: manifests, merged and resolved, and the providers of agents
//! - [`bottle_plan`]: plans; `secrets` reads the values of the secrets that a plan lists; `forge` is the only module
//!   that contains code for a specific git forge
//! - [`bottle_backend`]: the trait of backends; only [`bottle_containers`] and `bottle_sandbox` contain code for a
//!   specific container engine or sandbox, and [`bottle_lib::registry`] lists the backends of this build
//! - [`bottle_instance`]: records, logs, snapshots and archives of bottles; `learn` derives routes from denied requests
//! - [`bottle_keeper`]: the process that owns a running bottle, the launch, and the ledger of the tokens that all
//!   bottles used

pub mod cli;
mod console;
mod mcp;
mod screens;
mod web;

pub use mcp::relay::tool_call;
