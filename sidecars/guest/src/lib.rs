//! Implements the guest, which is the first process of every bottle. The guest is pid 1 if the backend isolates
//! processes.
//!
//! The guest starts and reaps all processes of the bottle. The guest owns the agent's terminal and scrollback, runs the
//! resolver, and forwards connections to the proxy. The guest serves the host over one byte stream. The guest does not
//! depend on the backend. The backend sets up the sandbox, and passes a transport and a few settings ([`GuestConfig`]).
//!
//! ```text
//!   host ══ transport ══► host ─► agent     the main process; output log ─► attached clients, logs
//!           (reconnects)           exec      additional processes, with or without their client
//!                                  copy      files as tar streams, confined to the root
//!                                  files     files read, written and searched, confined to the workspace
//!                                  provision, probe, stop
//!   agent ── 127.9.9.9:port ─► forward ── unix socket ──► the bundle
//!   agent ── 127.9.9.9:53   ─► resolver (answers every name with the proxy's address)
//!   orphaned processes ──────► children (reaps them)
//! ```
//!
//! The guest keeps the agent's secrets in memory. The guest is therefore not dumpable, and `/proc/1` does not reveal
//! the secrets. One thread runs everything except copies, work on files, searches for changes and the watch on limits.
//! All buffers, all queues and the number of connections are bounded.
//!
//! - `config`: settings from the backend · `life`: startup and shutdown
//! - `children`, `spawn`, `program`, `process`, `proc_stat`, `descriptor`: processes
//! - `scrollback`, `hosted`, `attach`, `exec`, `logs`: the agent and its output · `processes`, `process_registry`,
//!   `session_processes`: processes that outlive the client that started them, and their use of the machine
//! - `services`: programs that must be ready before the agent starts, and that are started again when they end
//! - `host`, `answer`: successive connections of the host, and one task for each request
//! - `guest`, `facts`: the state that all requests share, and the settings in it
//! - `rooted`, `provision`, `secret_files`, `copy`, `archive`: files · `files`: the files of the workspace, for clients
//!   · [`changed_files`]: changes in the workspace, based on [`file_clock`]
//! - `watch`: limits on memory and disk that the backend cannot enforce
//! - `forward`: connections to the proxy; [`bottle_resolver`]: DNS · `probe`: the isolation probe
//!
//! The guest runs only on Linux. On other systems, this crate contains only the modules that the host uses too:
//! [`archive`], [`changed_files`] and [`file_clock`].

#[cfg(target_os = "linux")]
mod answer;
pub mod archive;
#[cfg(target_os = "linux")]
mod attach;
pub mod changed_files;
#[cfg(target_os = "linux")]
mod children;
#[cfg(target_os = "linux")]
mod config;
#[cfg(target_os = "linux")]
mod copy;
#[cfg(target_os = "linux")]
mod descriptor;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod facts;
#[cfg(target_os = "linux")]
mod failure;
pub mod file_clock;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
pub mod forward;
#[cfg(target_os = "linux")]
mod guest;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod hosted;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod logs;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
mod proc_stat;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod process_registry;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod provision;
#[cfg(target_os = "linux")]
mod redaction;
#[cfg(target_os = "linux")]
pub mod rooted;
#[cfg(target_os = "linux")]
mod scrollback;
#[cfg(target_os = "linux")]
mod secret_files;
#[cfg(target_os = "linux")]
mod services;
#[cfg(target_os = "linux")]
mod session_processes;
#[cfg(target_os = "linux")]
mod spawn;
#[cfg(target_os = "linux")]
mod stop;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
pub use config::{Confine, GuestConfig, Limit, Limits, Programs, Transport};
#[cfg(target_os = "linux")]
pub use forward::ForwardConfig;
#[cfg(target_os = "linux")]
pub use life::run;
#[cfg(target_os = "linux")]
pub use watch::use_of_disk;
