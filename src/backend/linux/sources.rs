//! What a sandbox takes from private places of the host: the bottle's own folders, the agent's program, and
//! this program.
//!
//! Opened while the process still is who started it, because such a place may be closed to everyone else:
//! root's own home, for an agent that is somebody unprivileged.

use std::io;
use std::path::{Path, PathBuf};

use super::image::mounted::Files;
use super::mounts::Tree;
use super::spec::SandboxSpec;
use super::sys::Forbid;
use crate::backend::local::failure::Step;
use crate::backend::local::spawn_ipc::SetupFailure;

/// Read-only, and no device works.
pub(super) const READ_ONLY: Forbid = Forbid { writes: true, devices: true, programs: false };

/// Writable, and no device works.
pub(super) const WRITABLE: Forbid = Forbid { writes: false, devices: true, programs: false };

/// Everything that was opened.
pub(super) struct Sources {
    /// This program.
    pub(super) program: Tree,
    /// The bottle's own folders; absent in a trial.
    pub(super) own: Option<Own>,
    /// The image that it works in.
    pub(super) image: Option<Files>,
    /// Paths seen at the same place.
    pub(super) exposed: Vec<(PathBuf, Source)>,
}

/// The bottle's own folders.
pub(super) struct Own {
    /// The agent's home; an image has one.
    pub(super) home: Option<Tree>,
    /// The workspace.
    pub(super) workspace: Tree,
    /// The proxy's sockets.
    pub(super) proxy: Tree,
}

/// A path of the host.
pub(super) enum Source {
    /// A file or folder.
    Tree(Tree),
    /// A symbolic link, which is made again as it is.
    Link(PathBuf),
}

impl Source {
    /// What is at `path`; `None` when nothing is.
    ///
    /// # Errors
    /// When it cannot be looked at or cloned.
    pub(super) fn at(path: &Path, forbid: Forbid) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(metadata) if metadata.is_symlink() => Ok(Some(Self::Link(std::fs::read_link(path)?))),
            Ok(_) => Ok(Some(Self::Tree(Tree::of_host(path, forbid)?))),
        }
    }
}

impl Sources {
    /// Opens all of it.
    ///
    /// # Errors
    /// [`SetupFailure`] naming the path.
    pub(super) fn open(spec: &SandboxSpec) -> Result<Self, SetupFailure> {
        let program = std::fs::read_link("/proc/self/exe").step("find this program")?;
        let mut exposed = Vec::with_capacity(spec.exposed.len());
        for path in &spec.exposed {
            if let Some(source) = Source::at(path, READ_ONLY).step_at("expose", path)? {
                exposed.push((path.clone(), source));
            }
        }
        let own = match &spec.own {
            None => None,
            Some(own) => Some(Own {
                home: own
                    .home
                    .as_deref()
                    .map(|home| Tree::of_host(home, WRITABLE).step_at("mount the home", home))
                    .transpose()?,
                workspace: Tree::of_host(&own.workspace, WRITABLE)
                    .step_at("mount the workspace", &own.workspace)?,
                // Connecting needs no write access to the folder; taking a socket away would.
                proxy: Tree::of_host(&own.proxy, READ_ONLY).step_at("mount the proxy", &own.proxy)?,
            }),
        };
        let image = spec.image.as_ref().map(|image| Files::open(image, spec.outside_id)).transpose()?;
        let program = Tree::of_host(&program, READ_ONLY).step_at("mount", &program)?;
        Ok(Self { program, own, image, exposed })
    }
}
