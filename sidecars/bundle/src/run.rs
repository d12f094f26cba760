//! Runs the bundle's process. The process starts the daemons, drops privileges, and serves keepers until the process
//! ends.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use bottle_daemon::ListenerConfig;
use bottle_harden::directory_access::Held;
use bottle_harden::landlock::Files;
use bottle_harden::{HardenError, MissingProtection, daemon_syscalls, process};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{BundleConfig, Control};
use crate::control::Bundle;
use crate::keeper_listener::Keepers;
use crate::sidecar::{self, Starting};

/// Runs the bundle in this single-threaded process. Returns when a keeper requests a stop, when the process receives
/// SIGTERM, or when an error occurs. If keepers use the process's standard streams, also returns when these streams
/// end.
///
/// The control socket accepts connections as soon as its file exists.
pub fn run(config: BundleConfig) -> ExitCode {
    run_and_notify(config, || Ok(()))
}

/// Runs the bundle like [`run`], and calls `listening` as soon as keepers can connect.
pub fn run_and_notify(config: BundleConfig, listening: impl FnOnce() -> io::Result<()>) -> ExitCode {
    bottle_sidecar_log::start();
    match start(config, listening) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The backend stores the bundle's standard error, and shows it if the control socket does not appear.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn start(mut config: BundleConfig, listening: impl FnOnce() -> io::Result<()>) -> anyhow::Result<()> {
    process::leave_directory()?;
    let keepers = Keepers::open(&config.control)?;
    listening().context("notify the parent that the control socket listens")?;
    // The daemons are started before the bundle drops its privileges. Each daemon drops its own privileges later.
    let starting = sidecar::start_all(&config)?;
    let _listener_directory = config.open_listener_directory().context("listener")?;
    let weaker = harden(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, keepers, starting, weaker))
}

/// Drops privileges in the order that [`bottle_harden`] describes. The bundle keeps the permissions to remove sockets
/// and to kill daemons.
fn harden(config: &BundleConfig) -> anyhow::Result<Vec<MissingProtection>> {
    if let Some(identity) = config.identity {
        identity.assume()?;
    }
    process::seal()?;
    process::drop_capabilities()?;
    let files = Files { sockets: config.socket_directories(), signal_others: true, ..Files::default() };
    let weaker = [files.restrict()?, daemon_syscalls::restrict()?];
    Ok(weaker.into_iter().flatten().collect())
}

async fn serve(
    config: BundleConfig,
    keepers: Keepers,
    starting: Vec<Starting>,
    weaker: Vec<MissingProtection>,
) -> anyhow::Result<()> {
    // The bundle may be pid 1 of a container. Without a signal handler, pid 1 ignores SIGTERM.
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

impl BundleConfig {
    /// Opens the directory of the listeners' sockets before the process switches users. The directory remains
    /// accessible as long as the returned value exists.
    ///
    /// # Errors
    /// Fails if the directory cannot be opened.
    fn open_listener_directory(&mut self) -> Result<Option<Held>, HardenError> {
        if self.identity.is_some() { self.proxy.hold() } else { Ok(None) }
    }

    /// Returns the directories in which the bundle removes unix sockets.
    fn socket_directories(&self) -> Vec<PathBuf> {
        let control = match &self.control {
            // If the bundle switches users, it cannot write to the directory of the control socket.
            Control::Socket { path } => path.parent().filter(|_| self.identity.is_none()),
            Control::Stdio => None,
        };
        let proxy = match &self.proxy {
            ListenerConfig::Socket { directory } => Some(directory.as_path()),
            ListenerConfig::Network { .. } => None,
        };
        control.into_iter().chain(proxy).map(Path::to_owned).collect()
    }
}
