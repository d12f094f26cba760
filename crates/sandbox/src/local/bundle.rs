//! Starts the bundle of a bottle. The bundle's proxy listens on unix sockets. This module also contains the entry point
//! of the bundle's process.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use bottle_backend::{BackendError, GATE_DIRECTORY, Launch, SIDECAR_LOGS};
use bottle_bundle::{BundleConfig, Control, Identity, ListenerConfig};

use super::Scope;
use super::labels::Role;
use super::roles::{self, PlainSetup};
use super::spawn_ipc::{ChildEnd, Report};

impl Scope {
    /// Starts the bundle and records its process. The bundle's proxy accepts no connections until the bundle is
    /// provisioned.
    ///
    /// If root starts the bottle, the bundle runs under the user id `sidecars_uid`. Otherwise, the bundle runs as the
    /// user who started the bottle.
    pub(crate) async fn start_bundle(
        &self,
        launch: &Launch<'_>,
        sidecars_uid: Option<u32>,
    ) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        let runtime_directory = self.runtime_directory(slug);
        let logs = launch.state.join(SIDECAR_LOGS);
        let gate = (!launch.plan.repos.is_empty()).then(|| launch.state.join(GATE_DIRECTORY));
        make_directory(&runtime_directory.proxy(), 0o755, sidecars_uid)
            .and_then(|()| make_directory(&logs, 0o700, sidecars_uid))
            .and_then(|()| {
                gate.as_ref().map_or(Ok(()), |directory| make_directory(directory, 0o700, sidecars_uid))
            })
            .map_err(|error| BackendError::failed("cannot make the sidecars' directories").because(error))?;
        let config = BundleConfig {
            labels: [self.label.clone(), slug.to_string()],
            proxy: ListenerConfig::Socket { directory: runtime_directory.proxy() },
            control: Control::Socket { path: runtime_directory.bundle_socket() },
            logs,
            relay_log: false,
            identity: sidecars_uid.map(|id| Identity { uid: id, gid: id }),
            machine: None,
            gate,
            supervise: launch.plan.supervise,
        };
        let started = roles::start(self, Role::Bundle, slug, Some(launch.state), &config, &[])?;
        started.wait_until_ready(&PlainSetup, launch.resources).await.map(drop)
    }
}

/// The entry point of `bottle __bundle`.
#[must_use]
pub fn run() -> ExitCode {
    match receive() {
        Ok((config, child_end)) => {
            bottle_bundle::run_and_notify(config, || child_end.ready(std::fs::File::open("/dev/null")?))
        }
        Err(error) => {
            // Writes the error to the bottle's log. The backend notices the failure because the handoff connection
            // closes.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn receive() -> io::Result<(BundleConfig, ChildEnd)> {
    let (child_end, config, _) = ChildEnd::receive()?;
    // `setsid` fails only in a process that already leads a session, so its error is ignored.
    let _ = rustix::process::setsid();
    child_end.report(&Report::Started { pid: std::process::id() })?;
    Ok((config, child_end))
}

/// Creates a directory with this mode and owner. Missing parent directories are created so that only the current user
/// can access them.
fn make_directory(directory: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(mode))?;
    if owner.is_some() {
        std::os::unix::fs::lchown(directory, owner, owner)?;
    }
    Ok(())
}
