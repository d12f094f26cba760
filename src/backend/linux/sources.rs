//! Opens the host paths that a sandbox mounts: the bottle's folders, the agent's program, and this program.
//!
//! They are opened while the process still runs as the user who started it, because the paths may be private to that
//! user: root's home, for an agent that runs as an unprivileged user.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::symlinkat;
use rustix::io::Errno;

use super::image::files::Files;
use super::mounts::{READ_ONLY, Tree, WRITABLE, file, folder, split};
use super::spec::SandboxSpec;
use super::sys::Forbid;
use crate::backend::local::failure::Step;
use crate::backend::local::spawn_ipc::SetupFailure;

/// All opened sources.
pub(super) struct Sources {
    /// This program.
    pub(super) program: Tree,
    /// The bottle's own folders; `None` for a trial sandbox.
    pub(super) own: Option<Own>,
    /// The bottle's image.
    pub(super) image: Option<Files>,
    /// Paths mounted at the same path inside.
    pub(super) exposed: Vec<(PathBuf, Source)>,
}

/// The bottle's own folders.
pub(super) struct Own {
    /// The agent's home; `None` with an image, which contains one.
    pub(super) home: Option<Tree>,
    /// The workspace.
    pub(super) workspace: Tree,
    /// The proxy's sockets.
    pub(super) proxy: Tree,
}

/// An opened host path.
pub(super) enum Source {
    /// A file or folder.
    Tree(Tree),
    /// A symbolic link, which is recreated inside.
    Link(PathBuf),
}

impl Source {
    /// Opens `path`; `None` when it does not exist.
    ///
    /// # Errors
    /// When it cannot be opened or its mount cannot be cloned.
    pub(super) fn at(path: &Path, forbid: Forbid) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(metadata) if metadata.is_symlink() => Ok(Some(Self::Link(std::fs::read_link(path)?))),
            Ok(_) => Ok(Some(Self::Tree(Tree::clone_host(path, forbid)?))),
        }
    }

    /// Mounts it at this path of the new root.
    ///
    /// # Errors
    /// [`SetupFailure`] naming the path.
    pub(super) fn mount_at(&self, root: BorrowedFd<'_>, path: &Path) -> Result<(), SetupFailure> {
        match self {
            Self::Link(target) => {
                let (parent, name) = split(path).step_at("link", path)?;
                let parent = folder(root, parent).step_at("make the folder of", path)?;
                match symlinkat(target, parent, name) {
                    Err(Errno::EXIST) => Ok(()),
                    linked => linked.step_at("link", path),
                }
            }
            Self::Tree(tree) => {
                let is_folder = tree.is_folder().step_at("look at", path)?;
                let over = if is_folder { folder(root, path) } else { file(root, path) };
                tree.attach(over.step_at("make a mount point for", path)?).step_at("mount", path)
            }
        }
    }
}

impl Sources {
    /// Opens all sources.
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
                    .map(|home| Tree::clone_host(home, WRITABLE).step_at("mount the home", home))
                    .transpose()?,
                workspace: Tree::clone_host(&own.workspace, WRITABLE)
                    .step_at("mount the workspace", &own.workspace)?,
                // Read-only: connecting needs no write access to the folder, and removing a socket is prevented.
                proxy: Tree::clone_host(&own.proxy, READ_ONLY).step_at("mount the proxy", &own.proxy)?,
            }),
        };
        let image = spec.image.as_ref().map(|image| Files::open(image, spec.outside_id)).transpose()?;
        let program = Tree::clone_host(&program, READ_ONLY).step_at("mount", &program)?;
        Ok(Self { program, own, image, exposed })
    }
}
