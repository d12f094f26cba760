//! The parent of a bottle's sidecars.
//!
//! [`run`] is the role `__bundle`; the backend that started the process hands it its configuration. It
//! starts one process for each daemon and speaks for them with the keeper:
//!
//! ```text
//! keeper ⇄ control socket ⇄ bundle ⇄ socket pair ⇄ egress ⇄ door sockets ⇄ bottle
//!          (one uid)         │  backlog of events
//!                            └─ a daemon that ends: its door is closed, the keeper is told
//! ```
//! The keeper's requests pass through it unread but for their kind; it keeps no secret and writes
//! nothing. Keepers come and go, the door stays as it was meanwhile. The parent and its daemons end
//! together: a daemon dies with its parent by the kernel's hand, a parent without daemons holds nothing
//! but the news of it.
//!
//! ```text
//! config   what the backend says at start
//! sidecar  one daemon: its process and the channel to it
//! control  the keeper's socket and what is asked on it
//! ```

mod config;
mod control;
mod sidecar;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::{fs, io};

use anyhow::Context;
use bottle_harden::files::Files;
use bottle_harden::{Weaker, process, syscalls};
use nix::unistd::getuid;

pub use bottle_egress::door::listen::Door;
pub use bottle_harden::identity::Identity;
pub use config::BundleConfig;

use control::Bundle;
use sidecar::Starting;

/// Runs the bundle in this process, which has no other thread, until a keeper says stop.
///
/// The control socket listens once it is there; whoever wants to connect tries until then.
pub fn run(config: BundleConfig) -> ExitCode {
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The backend keeps this and looks at it when the control socket does not come.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

fn start(config: BundleConfig) -> anyhow::Result<()> {
    let keeper = getuid();
    let control = bind(&config).with_context(|| format!("control socket {}", config.control.display()))?;
    // Before anything is given up: it has rights of its own to give up.
    let egress = sidecar::start_egress(&config)?;
    let weaker = harden(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, control, keeper, egress, weaker))
}

fn bind(config: &BundleConfig) -> io::Result<StdUnixListener> {
    match fs::remove_file(&config.control) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdUnixListener::bind(&config.control)?;
    fs::set_permissions(&config.control, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// See [`bottle_harden`] for the order. What is left: removing the sockets, ending the daemons.
fn harden(config: &BundleConfig) -> anyhow::Result<Vec<Weaker>> {
    if let Some(identity) = config.identity {
        identity.assume()?;
    }
    process::seal()?;
    process::drop_capabilities()?;
    let folders = config.control.parent().into_iter().chain(config.door_folder());
    let files =
        Files { sockets: folders.map(ToOwned::to_owned).collect(), signal_others: true, ..Files::default() };
    let weaker = [files.restrict()?, syscalls::restrict()?];
    Ok(weaker.into_iter().flatten().collect())
}

async fn serve(
    config: BundleConfig,
    control: StdUnixListener,
    keeper: nix::unistd::Uid,
    egress: Starting,
    weaker: Vec<Weaker>,
) -> anyhow::Result<()> {
    let listener = tokio::net::UnixListener::from_std(control)?;
    let bundle = Arc::new(Bundle::new(config, egress.establish().await?, weaker));
    bundle.watch();
    bundle.serve(listener, keeper).await;
    Ok(())
}
