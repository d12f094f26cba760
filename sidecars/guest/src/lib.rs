//! Pid 1 of every bottle.
//!
//! Owns every process of the bottle, the agent's terminal with its scrollback, the bottle's end of the
//! proxy and its resolver, and answers the host over one byte stream. Refuses to know a backend: it is
//! handed a transport and a few facts ([`GuestConfig`]) after somebody else made the sandbox.
//!
//! ```text
//!   host ══ transport ══► host ─► agent     one; output log ─► whoever is attached, logs
//!           (again any             exec      others beside it
//!            time)                 copy      tar streams, confined to the root
//!                                  provision, probe, stop
//!   agent ── 127.9.9.9:port ─► forward ── unix socket ──► the bundle
//!   agent ── 127.9.9.9:53   ─► resolver (every name is the proxy)
//!   orphans ─────────────────► children (reaped)
//! ```
//!
//! It holds the agent's own secrets in memory, so it is not dumpable: `/proc/1` shows nothing of them.
//! One thread runs everything but copies, and every buffer, queue and connection is counted.
//!
//! - `config`: what a backend says · `life`: from the first call to the last kill
//! - `children`, `spawn`, `program`, `process`, `descriptor`: processes
//! - `output`, `agent`, `attach`, `exec`, `logs`: the agent and what is seen of it
//! - `host`: one connection after another, one task per request
//! - `rooted`, `provision`, `copy`, `archive`: files · [`work`]: what changed among them, by [`file_clock`]
//! - `watch`: memory and disk, where nothing outside limits them
//! - `forward`: the proxy, with [`bottle_resolver`] beside it · `probe`: whether it is the only one

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
