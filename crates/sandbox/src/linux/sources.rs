//! Opens the host paths that a sandbox mounts: the bottle's directories, the agent's program, and this program.
//!
//! The paths are opened while this process still runs as the user who started it, because the paths may be private to
//! that user. For example, the agent of a bottle that root starts runs as an unprivileged user without access to root's
//! home.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use bottle_plan::LiveDirectory;
use rustix::fs::symlinkat;
use rustix::io::Errno;

use super::image::files::Files;
use super::live;
use super::mounts::{DATA, READ_ONLY, Tree, WRITABLE, directory, file, split};
use super::spec::{OwnDirectories, SandboxSpec};
use super::sys::Forbid;
use crate::local::failure::Step;
use crate::local::spawn_ipc::SetupFailure;

/// The open host paths of one sandbox.
pub(super) struct Sources {
    /// The mount of this program.
    pub(super) program: Tree,
    /// The bottle's directories. `None` for a trial sandbox.
    pub(super) own: Option<Own>,
    /// The files of the bottle's image.
    pub(super) image: Option<Files>,
    /// Host paths that are mounted at the same path in the sandbox.
    pub(super) exposed: Vec<(PathBuf, Source)>,
}

/// The bottle's directories.
pub(super) struct Own {
    /// The agent's home. `None` if the bottle runs from an image, which contains the home.
    pub(super) home: Option<Tree>,
    /// The mount of the workspace.
    pub(super) workspace: Tree,
    /// The bottle's repository, if the workspace is a directory of the user. The bottle's repository covers the user's
    /// repository in the workspace.
    pub(super) repository: Option<(LiveDirectory, Tree)>,
    /// The git objects that the bottle's repository shares with the host's repository. `None` if the two repositories
    /// share no objects.
    pub(super) objects: Option<Tree>,
    /// The directory of the proxy's sockets, if there is a proxy.
    pub(super) proxy: Option<Tree>,
}

/// An opened host path.
pub(super) enum Source {
    /// A file or directory.
    Tree(Tree),
    /// A symbolic link, which is recreated in the sandbox.
    Link(PathBuf),
}

impl Source {
    /// Opens `path`. Returns `None` if `path` does not exist.
    ///
    /// # Errors
    /// When the path cannot be opened or its mount cannot be cloned.
    pub(super) fn at(path: &Path, forbid: Forbid) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(metadata) if metadata.is_symlink() => Ok(Some(Self::Link(std::fs::read_link(path)?))),
            Ok(_) => Ok(Some(Self::Tree(Tree::clone_host(path, forbid)?))),
        }
    }

    /// Mounts the source at `path` under the new root.
    ///
    /// # Errors
    /// [`SetupFailure`] that names the path.
    pub(super) fn mount_at(&self, root: BorrowedFd<'_>, path: &Path) -> Result<(), SetupFailure> {
        match self {
            Self::Link(target) => {
                let (parent, name) = split(path).step_at("link", path)?;
                let parent = directory(root, parent).step_at("make the directory of", path)?;
                match symlinkat(target, parent, name) {
                    Err(Errno::EXIST) => Ok(()),
                    linked => linked.step_at("link", path),
                }
            }
            Self::Tree(tree) => {
                let is_directory = tree.is_directory().step_at("look at", path)?;
                let over = if is_directory { directory(root, path) } else { file(root, path) };
                tree.attach(over.step_at("make a mount point for", path)?).step_at("mount", path)
            }
        }
    }
}

impl Sources {
    /// Opens all sources.
    ///
    /// # Errors
    /// [`SetupFailure`] that names the path.
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
                workspace: match &own.live {
                    Some(directory) => live::open(directory, forbid(own), spec.outside_id)?,
                    None => Tree::clone_host(&own.workspace, forbid(own))
                        .step_at("mount the workspace", &own.workspace)?,
                },
                repository: match &own.live {
                    Some(directory) => live::open_repository(directory, &own.workspace, forbid(own))?
                        .map(|repository| (directory.clone(), repository)),
                    None => None,
                },
                objects: own
                    .objects
                    .as_deref()
                    .map(|objects| Tree::clone_host(objects, DATA).step_at("mount the git objects", objects))
                    .transpose()?,
                // The directory is mounted read-only, so that no program can remove a socket. Connecting to a socket
                // needs no write access to the directory.
                proxy: own
                    .proxy
                    .as_deref()
                    .map(|proxy| Tree::clone_host(proxy, READ_ONLY).step_at("mount the proxy", proxy))
                    .transpose()?,
            }),
        };
        let image = spec.image.as_ref().map(|image| Files::open(image, spec.outside_id)).transpose()?;
        let program = Tree::clone_host(&program, READ_ONLY).step_at("mount", &program)?;
        Ok(Self { program, own, image, exposed })
    }
}

/// The restrictions for the mounts of the bottle's own directories.
fn forbid(own: &OwnDirectories) -> Forbid {
    if own.read_only { READ_ONLY } else { WRITABLE }
}
