//! Starting the bundle of a bottle whose proxy comes by socket, and its process's first steps.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use bottle_bundle::{BundleConfig, Control, Identity, ListenerConfig};

use super::Scope;
use super::labels::Role;
use super::roles::{self, NoIdMap};
use super::spawn_ipc::{ChildEnd, Report};
use crate::backend::{BackendError, GATE_FOLDER, SIDECAR_LOGS, Site};

impl Scope {
    /// Starts the bundle and records it. Its proxy stays closed until it is provisioned.
    ///
    /// `guards` is whom it becomes when root starts it; else it stays who started it.
    pub(crate) async fn start_bundle(
        &self,
        site: &Site<'_>,
        guards: Option<u32>,
    ) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let place = self.place(slug);
        let logs = site.state.join(SIDECAR_LOGS);
        let gate = (!site.plan.repos.is_empty()).then(|| site.state.join(GATE_FOLDER));
        give(&place.proxy(), 0o755, guards)
            .and_then(|()| give(&logs, 0o700, guards))
            .and_then(|()| gate.as_ref().map_or(Ok(()), |folder| give(folder, 0o700, guards)))
            .map_err(|error| BackendError::failed(format!("cannot make the place of the guards: {error}")))?;
        let config = BundleConfig {
            labels: [self.label.clone(), slug.to_string()],
            proxy: ListenerConfig::Socket { folder: place.proxy() },
            control: Control::Socket { path: place.bundle_socket() },
            logs,
            identity: guards.map(|id| Identity { uid: id, gid: id }),
            machine: None,
            gate,
            supervise: site.plan.supervise,
        };
        let started = roles::start(self, Role::Bundle, slug, Some(site.state), &config, &[])?;
        started.settle(&NoIdMap, site.ledger).await.map(drop)
    }
}

/// `bottle __bundle`: the role's whole life.
#[must_use]
pub fn run() -> ExitCode {
    match receive() {
        Ok((config, child_end)) => {
            bottle_bundle::run_and_notify(config, || child_end.ready(std::fs::File::open("/dev/null")?))
        }
        Err(error) => {
            // The backend sees the end of the handoff; the sentence goes to the bottle's log.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn receive() -> io::Result<(BundleConfig, ChildEnd)> {
    let (child_end, config, _) = ChildEnd::receive()?;
    // Fails only where the session is its own already.
    let _ = rustix::process::setsid();
    child_end.say(&Report::Born { pid: std::process::id() })?;
    Ok((config, child_end))
}

/// Makes a folder what it has to be for the guards; the way to it stays closed to everyone but its maker.
fn give(folder: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    if owner.is_some() {
        std::os::unix::fs::lchown(folder, owner, owner)?;
    }
    Ok(())
}
