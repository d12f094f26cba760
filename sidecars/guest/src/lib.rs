//! The guest: pid 1 of every bottle.
//!
//! It owns every process of the bottle, the agent's terminal and its scrollback, the bottle's side of the
//! proxy, and the resolver. It serves the host over one byte stream. It is independent of the backend,
//! which makes the sandbox and passes a transport and a few settings ([`GuestConfig`]).
//!
//! ```text
//!   host ══ transport ══► host ─► agent     one process; output log ─► attached clients, logs
//!           (reconnects)           exec      other processes
//!                                  copy      tar streams, confined to the root
//!                                  provision, probe, stop
//!   agent ── 127.9.9.9:port ─► forward ── unix socket ──► the bundle
//!   agent ── 127.9.9.9:53   ─► resolver (every name is the proxy)
//!   orphans ─────────────────► children (reaped)
//! ```
//!
//! The guest has the agent's secrets in memory, so it is not dumpable and `/proc/1` does not show them.
//! One thread runs everything but copies, and every buffer, queue and connection is bounded.
//!
//! - `config`: settings of the backend · `life`: startup and shutdown
//! - `children`, `spawn`, `program`, `process`, `descriptor`: processes
//! - `output`, `agent`, `attach`, `exec`, `logs`: the agent and its output
//! - `host`: consecutive connections of the host, one task for each request
//! - `rooted`, `provision`, `copy`, `archive`: files · [`work`]: changes in the workspace, by [`file_clock`]
//! - `watch`: limits on memory and disk that the backend cannot enforce
//! - `forward`: the path to the proxy, with [`bottle_resolver`] beside it · `probe`: the isolation probe

mod agent;
pub mod archive;
mod attach;
mod children;
mod config;
mod copy;
mod descriptor;
mod exec;
mod failure;
pub mod file_clock;
pub mod forward;
mod guest;
mod host;
mod life;
mod logs;
mod output;
pub mod probe;
mod process;
mod program;
mod provision;
mod rooted;
mod spawn;
mod stop;
mod watch;
pub mod work;

pub use config::{GuestConfig, Limit, Limits, Programs, Transport};
pub use forward::ForwardConfig;
pub use life::run;
pub use watch::use_of_disk;
