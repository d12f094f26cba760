//! Shared code of the backends `linux`, `smolvm` and `fake`. Their sidecars are processes of this machine, and the
//! files of their bottles are in directories of this machine.
//!
//! ```text
//!   labels           argv of every role: `bottle __guest <home> <slug>`; `enumerate` searches for them
//!   layers           the bottle's writable directories
//!   layer_snapshots  snapshots of the layers and their restore ([`copy`](bottle_backend::trees::copy) copies them)
//!   portable         exports snapshots as images, and imports them
//!   spawn_ipc        sends a specification to a new process and receives its reports, through its standard input
//!   roles            starts `__guest` and `__bundle`, follows their setup, records their processes
//!   bundle           starts `__bundle`
//!   backend          the backend on top of the modules above, without the code that starts pid 1
//!   size             measures the disk space of the layers
//!   inventory        finds and removes resources by label
//! ```
//! No code in this directory isolates a bottle; the directory `linux` contains that code.

pub(crate) mod backend;
pub mod bundle;
pub(crate) mod cgroups;
pub(crate) mod failure;
pub(crate) mod inventory;
pub(crate) mod labels;
pub(crate) mod layer_snapshots;
pub(crate) mod layers;
pub mod portable;
pub(crate) mod roles;
mod size;
pub(crate) mod spawn_ipc;

use std::path::{Path, PathBuf};

use bottle_backend::runtime_directory::RuntimeDirectory;
use bottle_host::Host;
use bottle_policy::names::Slug;

use self::labels::Role;
use self::layers::Layers;

/// Distinguishes the bottles of one backend in one home from everything else on the machine.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// The second command-line argument of every process of these bottles.
    pub(crate) label: String,
    /// The parent directory of the bottles' runtime directories.
    pub(crate) runtime: PathBuf,
    /// The directory `$BOTTLE_HOME/state`.
    pub(crate) state: PathBuf,
    /// The name of the directory that contains a bottle's layers, in the bottle's state directory.
    layers: &'static str,
    /// The path in a bottle at which the layers' home is visible, relative to the bottle's root.
    pub(crate) home_inside: &'static str,
    /// The parent directory of the bottles' snapshots.
    pub(crate) snapshots: PathBuf,
    /// The path of this program.
    pub(crate) program: PathBuf,
    /// The roles with processes that are started in advance, while their specifications are prepared.
    prespawned_roles: &'static [Role],
    /// Processes that were started in advance and wait for their specifications.
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
            home_inside: "home/agent",
            snapshots: host.home.join("snapshots"),
            program: host.program.clone(),
            prespawned_roles: &[Role::Bundle, Role::Guest],
            prespawned: roles::Prespawned::default(),
        }
    }

    /// The scope of the `smolvm` backend. This scope uses other names than the `linux` scope, so that neither backend
    /// finds the bottles of the other backend.
    pub(crate) fn smolvm(host: &Host) -> Self {
        // These names contain a dot and no slug does, so they cannot be names of a bottle.
        Self {
            label: format!("{}.vm", host.home_hash()),
            runtime: host.runtime.join(".vm"),
            layers: "agent.vm",
            snapshots: host.home.join("snapshots.vm"),
            prespawned_roles: &[Role::Bundle],
            ..Self::linux(host)
        }
    }

    /// The scope of the `fake` backend, which exists only in test builds. This scope uses other names than the `linux`
    /// scope, so that neither backend finds the bottles of the other backend.
    #[cfg(feature = "test-parts")]
    pub(crate) fn fake(host: &Host) -> Self {
        let label = format!("{}.fake", host.home_hash());
        // These names contain a dot and no slug does, so they cannot be names of a bottle.
        Self {
            label,
            runtime: host.runtime.join(".fake"),
            layers: "agent.fake",
            // The guest uses the directory of the layers as its root.
            home_inside: "home",
            snapshots: host.home.join("snapshots.fake"),
            ..Self::linux(host)
        }
    }

    /// The bottle's runtime directory.
    pub(crate) fn runtime_directory(&self, slug: &Slug) -> RuntimeDirectory {
        RuntimeDirectory::new(&self.runtime, slug)
    }

    /// The name of the bottle's control groups.
    pub(crate) fn group(&self, slug: &Slug) -> String {
        format!("bottle-{}-{slug}", self.label)
    }

    /// The bottle's layers.
    pub(crate) fn layers(&self, slug: &Slug) -> Layers {
        self.layers_in(&self.state.join(slug.as_str()))
    }

    /// The layers in this state directory.
    pub(crate) fn layers_in(&self, state: &Path) -> Layers {
        Layers::new(state.join(self.layers))
    }
}
