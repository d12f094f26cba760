//! What the backends share whose bottles are processes of this machine (`linux`, `fake`).
//!
//! ```text
//!   labels     argv of every role: `bottle __guest <home> <slug>`, what `enumerate` looks for
//!   place      the bottle's private runtime folder: proxy, sockets
//!   layers     the writable folders and what is in them
//!   freeze     snapshots of them, and back ([`copy`]: a hostile tree copied while it changes)
//!   nofollow   opening what an agent closed, never through a link
//!   handoff    how a new process gets its specification and answers, over its standard input
//!   roles      starting `__guest`, following its setup, recording it
//!   bundle     starting `__bundle`
//!   connect    the two byte streams
//!   phases     the verbs of a backend that need no more than the above
//!   inventory  finding and removing what exists, by label
//! ```
//! Nothing here isolates anything; that is the `linux` folder's work.

pub mod bundle;
pub(crate) mod cgroups;
pub(crate) mod connect;
mod copy;
pub(crate) mod failure;
pub(crate) mod freeze;
pub(crate) mod inventory;
pub(crate) mod labels;
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
use self::runtime_folder::Place;
use crate::host::Host;

/// What tells one backend's bottles in one home from everything else on the machine.
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
    /// Its processes that wait for what they are to do.
    ahead: roles::Ahead,
}

impl Scope {
    /// Of the `linux` backend.
    pub(crate) fn linux(host: &Host) -> Self {
        Self {
            label: host.home_hash(),
            runtime: host.runtime.clone(),
            state: host.state(),
            layers: "agent",
            snapshots: host.home.join("snapshots"),
            program: host.program.clone(),
            ahead: roles::Ahead::default(),
        }
    }

    /// Of the `fake` backend: names of its own, so that neither takes the other's bottles for its own.
    pub(crate) fn fake(host: &Host) -> Self {
        let label = format!("{}.fake", host.home_hash());
        // A dot is no part of any slug.
        Self {
            label,
            runtime: host.runtime.join(".fake"),
            layers: "agent.fake",
            snapshots: host.home.join("snapshots.fake"),
            ..Self::linux(host)
        }
    }

    /// The bottle's runtime folder.
    pub(crate) fn place(&self, slug: &Slug) -> Place {
        Place::of(&self.runtime, slug)
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
