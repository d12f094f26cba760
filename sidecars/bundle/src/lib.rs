//! The bundle: the parent process of a bottle's sidecar daemons.
//!
//! [`run`] is the process role `__bundle`. The backend passes it the configuration. The bundle spawns one
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
//! sidecar          one daemon: its process and the channel to it
//! keeper_listener  connections of keepers: control socket or standard streams
//! control          requests of keepers, events of daemons
//! ```

mod config;
mod control;
mod keeper_listener;
mod sidecar;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use bottle_harden::landlock::Files;
use bottle_harden::{MissingProtection, daemon_syscalls, process};
use tokio::signal::unix::{SignalKind, signal};

pub use bottle_daemon::ListenerConfig;
pub use bottle_harden::identity::Identity;
pub use config::{BundleConfig, Control};

use control::Bundle;
use keeper_listener::Keepers;
use sidecar::Starting;

/// Runs the bundle in this single-threaded process. Returns when a keeper requests a stop, when the process
/// receives SIGTERM, when its standard streams end (if keepers use them), or at an error.
///
/// The control socket accepts connections as soon as its file exists.
pub fn run(config: BundleConfig) -> ExitCode {
    run_and_notify(config, || Ok(()))
}

/// Like [`run`], and calls `listening` as soon as keepers can connect.
pub fn run_and_notify(config: BundleConfig, listening: impl FnOnce() -> io::Result<()>) -> ExitCode {
    bottle_sidecar_log::start();
    match start(config, listening) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The backend stores this output, and shows it if the control socket does not appear.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn start(mut config: BundleConfig, listening: impl FnOnce() -> io::Result<()>) -> anyhow::Result<()> {
    process::leave_folder()?;
    let keepers = Keepers::open(&config.control)?;
    listening().context("notify the parent that the control socket listens")?;
    // The daemons are started before the bundle drops privileges, because each daemon drops its privileges
    // itself.
    let starting = sidecar::start_all(&config)?;
    let _listener_folder = config.open_listener_folder().context("listener")?;
    let weaker = harden(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, keepers, starting, weaker))
}

/// Drops privileges in the order that [`bottle_harden`] describes. Afterwards the bundle can still remove
/// sockets and kill daemons.
fn harden(config: &BundleConfig) -> anyhow::Result<Vec<MissingProtection>> {
    if let Some(identity) = config.identity {
        identity.assume()?;
    }
    process::seal()?;
    process::drop_capabilities()?;
    let files = Files { sockets: config.socket_folders(), signal_others: true, ..Files::default() };
    let weaker = [files.restrict()?, daemon_syscalls::restrict()?];
    Ok(weaker.into_iter().flatten().collect())
}

async fn serve(
    config: BundleConfig,
    keepers: Keepers,
    starting: Vec<Starting>,
    weaker: Vec<MissingProtection>,
) -> anyhow::Result<()> {
    // Without a handler, pid 1 of a container ignores SIGTERM.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut daemons = Vec::new();
    for daemon in starting {
        daemons.push(daemon.establish().await?);
    }
    let bundle = Arc::new(Bundle::new(config, daemons, weaker));
    bundle.watch();
    tokio::select! {
        served = keepers.serve(&bundle) => served.context("cannot serve keepers"),
        () = bundle.stopped() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}
