//! Starting the bundle of a bottle whose door comes by socket, and its process's first steps.

use std::io;
use std::process::ExitCode;

use bottle_bundle::{BundleConfig, Control, Door};

use super::Scope;
use super::handoff::{Newborn, Report};
use super::labels::Role;
use super::roles::{self, NoMidwife};
use crate::backend::{BackendError, Site};

impl Scope {
    /// Starts the bundle and records it. Its door stays closed until it is provisioned.
    pub(crate) async fn start_bundle(&self, site: &Site<'_>) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let place = self.place(slug);
        let config = BundleConfig {
            labels: [self.label.clone(), slug.to_string()],
            door: Door::Socket { folder: place.door() },
            control: Control::Socket { path: place.bundle_socket() },
            logs: site.state.join("logs"),
            // Root's runtime folder lets no other user through to the door; what confines a bundle of root
            // is that it has no capability and may touch no file but these.
            identity: None,
        };
        let started = roles::start(self, Role::Bundle, slug, Some(site.state), &config, &[])?;
        started.settle(&NoMidwife, site.ledger).await.map(drop)
    }
}

/// `bottle __bundle`: the role's whole life.
#[must_use]
pub fn run() -> ExitCode {
    match receive() {
        Ok(config) => bottle_bundle::run(config),
        Err(error) => {
            // The backend sees the end of the handoff; the sentence goes to the bottle's log.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("bundle: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn receive() -> io::Result<BundleConfig> {
    let (newborn, config, _) = Newborn::receive()?;
    // Fails only where the session is its own already.
    let _ = rustix::process::setsid();
    newborn.say(&Report::Born { pid: std::process::id() })?;
    newborn.ready(std::fs::File::open("/dev/null")?)?;
    Ok(config)
}
