//! Shared parts of the backends whose bottles are processes of this machine (`linux`, `fake`).
//!
//! ```text
//!   labels           argv of every role: `bottle __guest <home> <slug>`; `enumerate` searches for them
//!   runtime_folder   the bottle's private runtime folder with its sockets
//!   layers           the bottle's writable folders
//!   layer_snapshots  snapshots of the layers and their restore ([`copy`] copies a hostile tree while it changes)
//!   nofollow         opens files despite their mode, never through a link
//!   spawn_ipc        hands a specification to a new process and receives its reports, over its standard input
//!   roles            spawns `__guest` and `__bundle`, follows their setup, records them
//!   bundle           starts `__bundle`
//!   connect          opens the two byte streams
//!   phases           the backend methods that need only the above
//!   inventory        finds and removes resources by label
//! ```
//! Nothing here isolates anything; the `linux` folder does.

pub mod bundle;
pub(crate) mod cgroups;
pub(crate) mod connect;
mod copy;
pub(crate) mod failure;
pub(crate) mod inventory;
pub(crate) mod labels;
pub(crate) mod layer_snapshots;
pub(crate) mod layers;
mod nofollow;
mod phases;
pub(crate) mod roles;
pub(crate) mod runtime_folder;
pub(crate) mod spawn_ipc;

use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;

pub(crate) use self::copy::tree_into;
use self::layers::Layers;
use self::runtime_folder::RuntimeFolder;
use crate::host::Host;

/// Identifies the bottles of one backend in one home among everything on the machine.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// Second argument of every process.
    pub(crate) label: String,
    /// Parent of the bottles' runtime folders.
    pub(crate) runtime: PathBuf,
    /// `$BOTTLE_HOME/state`.
    pub(crate) state: PathBuf,
    /// Name of the folder with a bottle's layers, under its state.
    layers: &'static str,
    /// Parent of the bottles' snapshots.
    pub(crate) snapshots: PathBuf,
    /// This program.
    pub(crate) program: PathBuf,
    /// Spawned processes that wait for their specification.
    prespawned: roles::Prespawned,
}

impl Scope {
    /// The scope of the `linux` backend.
    pub(crate) fn linux(host: &Host) -> Self {
        Self {
            label: host.home_hash(),
            runtime: host.runtime.clone(),
            state: host.state(),
            layers: "agent",
            snapshots: host.home.join("snapshots"),
            program: host.program.clone(),
            prespawned: roles::Prespawned::default(),
        }
    }

    /// The scope of the `fake` backend, which only tests have. Its names differ, so that neither backend finds the other's bottles.
    #[cfg(feature = "test-parts")]
    pub(crate) fn fake(host: &Host) -> Self {
        let label = format!("{}.fake", host.home_hash());
        // No slug contains a dot.
        Self {
            label,
            runtime: host.runtime.join(".fake"),
            layers: "agent.fake",
            snapshots: host.home.join("snapshots.fake"),
            ..Self::linux(host)
        }
    }

    /// The bottle's runtime folder.
    pub(crate) fn runtime_folder(&self, slug: &Slug) -> RuntimeFolder {
        RuntimeFolder::new(&self.runtime, slug)
    }

    /// Name of the control groups that limit the bottle.
    pub(crate) fn group(&self, slug: &Slug) -> String {
        format!("bottle-{}-{slug}", self.label)
    }

    /// The bottle's layers.
    pub(crate) fn layers(&self, slug: &Slug) -> Layers {
        self.layers_in(&self.state.join(slug.as_str()))
    }

    /// The layers under this state folder.
    pub(crate) fn layers_in(&self, state: &Path) -> Layers {
        Layers::new(state.join(self.layers))
    }
}
