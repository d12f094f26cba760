//! Implements the bundle, which is the parent process of a bottle's sidecar daemons.
//!
//! [`run()`] is the main function of the process role `__bundle`. The backend passes the configuration to the bundle.
//! The bundle spawns one process for each daemon. The keeper process connects only to the bundle, which forwards
//! requests to the daemons:
//!
//! ```text
//! keeper ⇄ control socket ⇄ bundle ⇄ socket pairs ⇄ egress, git gate, supervise ⇄ proxy ⇄ bottle
//!          (one uid),        │  backlog of events, questions to the user
//!          or std streams    └─ a daemon exits: the bundle closes its sockets, notifies the keeper
//! ```
//! The bundle forwards the keeper's requests and interprets only their type. The bundle stores no secrets and writes no
//! files. The proxy keeps running while keepers disconnect and reconnect. The kernel kills the daemons when the bundle
//! exits. If the daemons have exited, the bundle keeps running and reports that the daemons are down.
//!
//! ```text
//! config           the configuration from the backend
//! run              the process from its start to its end
//! sidecar          one daemon: its process and the channel to it
//! keeper_listener  connections of keepers: control socket or standard streams
//! control          requests of keepers, events of daemons
//! ```
//! The bundle's process runs only on Linux. On other systems, this crate contains only the configuration type, because
//! a backend on such a system sends the configuration to a bundle on Linux.

mod config;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
mod keeper_listener;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod sidecar;

pub use bottle_daemon::ListenerConfig;
pub use bottle_harden::identity::Identity;
pub use config::{BundleConfig, Control};
#[cfg(target_os = "linux")]
pub use run::{run, run_and_notify};
