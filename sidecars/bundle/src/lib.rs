//! The parent of a bottle's sidecars.
//!
//! [`run`] is the role `__bundle`; the backend that started the process hands it its configuration. It
//! starts one process for each daemon and speaks for them with the keeper:
//!
//! ```text
//! keeper ⇄ control socket ⇄ bundle ⇄ socket pairs ⇄ egress, git gate, supervise ⇄ proxy ⇄ bottle
//!          (one uid),        │  backlog of events, questions to a user
//!          or its own stdio  └─ a daemon that ends: its proxy is closed, the keeper is told
//! ```
//! The keeper's requests pass through it unread but for their kind; it keeps no secret and writes
//! nothing. Keepers come and go, the proxy stays as it was meanwhile. The parent and its daemons end
//! together: a daemon dies with its parent by the kernel's hand, a parent without daemons holds nothing
//! but the news of it.
//!
//! ```text
//! config   what the backend says at start
//! sidecar  one daemon: its process and the channel to it
//! keepers  where keepers speak from
//! control  what they ask
//! ```

mod config;
mod control;
mod keepers;
mod sidecar;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use bottle_harden::files::Files;
use bottle_harden::{MissingProtection, process, syscalls};
use tokio::signal::unix::{SignalKind, signal};

pub use bottle_daemon::ListenerConfig;
pub use bottle_harden::identity::Identity;
pub use config::{BundleConfig, Control};

use control::Bundle;
use keepers::Keepers;
use sidecar::Starting;

/// Runs the bundle in this process, which has no other thread, until a keeper says stop, until SIGTERM, or
/// until the streams end that it is spoken to on.
///
/// The control socket listens once it is there; whoever wants to connect tries until then.
pub fn run(config: BundleConfig) -> ExitCode {
    run_and_say(config, || Ok(()))
}

/// The same, for who wants to know when keepers can connect.
pub fn run_and_say(config: BundleConfig, listening: impl FnOnce() -> io::Result<()>) -> ExitCode {
    bottle_sidecar_log::start();
    match start(config, listening) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The backend keeps this and looks at it when the control socket does not come.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn start(mut config: BundleConfig, listening: impl FnOnce() -> io::Result<()>) -> anyhow::Result<()> {
    process::leave_folder()?;
    let keepers = Keepers::open(&config.control)?;
    listening().context("say that the control socket listens")?;
    // Before anything is given up: it has rights of its own to give up.
    let starting = sidecar::start_all(&config)?;
    let _reach = config.hold().context("proxy")?;
    let weaker = harden(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, keepers, starting, weaker))
}

/// See [`bottle_harden`] for the order. What is left: removing the sockets, ending the daemons.
fn harden(config: &BundleConfig) -> anyhow::Result<Vec<MissingProtection>> {
    if let Some(identity) = config.identity {
        identity.assume()?;
    }
    process::seal()?;
    process::drop_capabilities()?;
    let files = Files { sockets: config.socket_folders(), signal_others: true, ..Files::default() };
    let weaker = [files.restrict()?, syscalls::restrict()?];
    Ok(weaker.into_iter().flatten().collect())
}

async fn serve(
    config: BundleConfig,
    keepers: Keepers,
    starting: Vec<Starting>,
    weaker: Vec<MissingProtection>,
) -> anyhow::Result<()> {
    // As pid 1 of a container it would otherwise not even be noticed.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut daemons = Vec::new();
    for daemon in starting {
        daemons.push(daemon.establish().await?);
    }
    let bundle = Arc::new(Bundle::new(config, daemons, weaker));
    bundle.watch();
    tokio::select! {
        served = keepers.serve(&bundle) => served.context("keepers cannot be heard"),
        () = bundle.stopped() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}
