//! Implements the guest, which is the first process of every bottle. It is pid 1 if the backend isolates
//! processes.
//!
//! The guest starts and reaps all processes of the bottle. It owns the agent's terminal and scrollback, runs
//! the resolver, and forwards connections to the proxy. It serves the host over one byte stream. The guest
//! does not depend on the backend. The backend sets up the sandbox, and passes a transport and a few settings
//! ([`GuestConfig`]).
//!
//! ```text
//!   host ══ transport ══► host ─► agent     the main process; output log ─► attached clients, logs
//!           (reconnects)           exec      additional processes
//!                                  copy      files as tar streams, confined to the root
//!                                  provision, probe, stop
//!   agent ── 127.9.9.9:port ─► forward ── unix socket ──► the bundle
//!   agent ── 127.9.9.9:53   ─► resolver (answers every name with the proxy's address)
//!   orphaned processes ──────► children (reaps them)
//! ```
//!
//! The guest keeps the agent's secrets in memory. It is therefore not dumpable, and `/proc/1` does not reveal
//! them. One thread runs everything except copies, searches for changes and the watch on limits. Every
//! buffer, every queue and the number of connections are bounded.
//!
//! - `config`: settings from the backend · `life`: startup and shutdown
//! - `children`, `spawn`, `program`, `process`, `descriptor`: processes
//! - `output`, `agent`, `attach`, `exec`, `logs`: the agent and its output
//! - `host`: successive connections of the host, and one task for each request
//! - `rooted`, `provision`, `copy`, `archive`: files · [`changed_files`]: changes in the workspace, based on
//!   [`file_clock`]
//! - `watch`: limits on memory and disk that the backend cannot enforce
//! - `forward`: connections to the proxy; [`bottle_resolver`]: DNS · `probe`: the isolation probe

mod agent;
pub mod archive;
mod attach;
pub mod changed_files;
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

pub use config::{GuestConfig, Limit, Limits, Programs, Transport};
pub use forward::ForwardConfig;
pub use life::run;
pub use watch::use_of_disk;
