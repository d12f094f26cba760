//! The bundle: the parent process of a bottle's sidecar daemons.
//!
//! [`run()`] is the process role `__bundle`. The backend passes it the configuration. The bundle spawns one
//! process for each daemon and represents all daemons to the keeper process:
//!
//! ```text
//! keeper ⇄ control socket ⇄ bundle ⇄ socket pairs ⇄ egress, git gate, supervise ⇄ proxy ⇄ bottle
//!          (one uid),        │  backlog of events, questions to the user
//!          or std streams    └─ a daemon exits: the bundle closes its sockets, notifies the keeper
//! ```
//! The bundle forwards the keeper's requests and interprets only their type. The bundle stores no secrets and
//! writes no files. The proxy keeps running while keepers disconnect and reconnect. The kernel kills the
//! daemons when the bundle exits. A bundle whose daemons have exited only reports that they are down.
//!
//! ```text
//! config           the configuration from the backend
//! run              the process from its start to its end
//! sidecar          one daemon: its process and the channel to it
//! keeper_listener  connections of keepers: control socket or standard streams
//! control          requests of keepers, events of daemons
//! ```
//! The process runs on Linux. On other systems the crate has only its configuration, which a backend sends to it.

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
