//! Manages a bottle's layers, which are its writable directories on the host.
//!
//! The agent controls the content of the layers, so the names, modes and depth of the files are hostile. This module
//! follows no links.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(crate) use bottle_backend::trees::copy::UPPER;
pub(crate) use bottle_backend::trees::{OBJECTS, WORKSPACE};
use bottle_guest::changed_files;
use bottle_host::files;
use bottle_plan::LiveDirectory;
use bottle_policy::names;
use bottle_protocol::session::guest::{Changed, Changes};

/// The directory name of the agent's home, for a bottle that uses the host's system files.
pub(crate) const HOME: &str = "home";

/// The name of the work directory that the kernel uses for the overlay with the upper directory [`UPPER`].
pub(crate) const WORK: &str = "work";

/// The directory name of the bottle's copy of its image, on machines without overlay support.
pub(crate) const COPY: &str = "root";

/// The name of the file that contains the name of the bottle's image.
const IMAGE: &str = "image";

/// The maximum number of bytes read of an image's name. Valid names are shorter.
const NAME_MAX: u64 = 256;

/// The kind of a bottle's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A home. The bottle uses the host's system files.
    Home,
    /// Changes to an image.
    Upper,
    /// A copy of an image.
    Copy,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Home, Self::Upper, Self::Copy];

    /// The directories that contain the bottle's files.
    pub(crate) fn trees(self) -> [&'static str; 2] {
        match self {
            Self::Home => [HOME, WORKSPACE],
            Self::Upper => [UPPER, WORKSPACE],
            Self::Copy => [COPY, WORKSPACE],
        }
    }

    /// Returns the kind of the layers in this directory. Returns `None` if the directory contains no layers.
    pub(crate) fn detect(directory: &Path) -> Option<Self> {
        // If a directory of changes and a copy of the image both exist, the copy is used.
        Self::ALL.into_iter().rev().find(|kind| directory.join(kind.trees()[0]).is_dir())
    }
}

/// The layers of one bottle.
#[derive(Debug, Clone)]
pub(crate) struct Layers(PathBuf);

impl Layers {
    /// Creates the value for the layers in this directory.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// The directory that contains the layers.
    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// The agent's home.
    pub(crate) fn home(&self) -> PathBuf {
        self.0.join(HOME)
    }

    /// The name of the agent's working directory in the directory of the layers.
    pub(crate) const WORKSPACE: &str = WORKSPACE;

    /// The agent's working directory.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.0.join(WORKSPACE)
    }

    /// The directory of the git objects that the copied repository shares with the host's repository. This directory
    /// exists only if the launch copied a directory into the workspace.
    pub(crate) fn git_objects(&self) -> PathBuf {
        self.0.join(OBJECTS)
    }

    /// The file that [`bottle_backend::trees::copy::stamps`] writes. The file is outside the layers, so the agent
    /// cannot change it.
    pub(crate) fn stamps(&self) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".stamps");
        path.into()
    }

    /// The kind of the layers. `None` if there are no layers.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::detect(&self.0)
    }

    /// The name of the image on which the layers are based.
    ///
    /// # Errors
    /// When the name cannot be read.
    pub(crate) fn image(&self) -> io::Result<Option<String>> {
        let mut name = String::new();
        match File::open(self.0.join(IMAGE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?.take(NAME_MAX).read_to_string(&mut name)?,
        };
        Ok(Some(name))
    }

    /// Records the image on which the layers are based.
    ///
    /// # Errors
    /// When the name cannot be written.
    pub(crate) fn set_image(&self, name: &str) -> io::Result<()> {
        files::replace(&self.0.join(IMAGE), |file| file.write_all(name.as_bytes()))
    }

    /// Creates the missing directories for layers of this kind. If root starts the bottle, `owner` owns the
    /// directories. Otherwise, the current user owns them. Existing directories of a kept bottle stay unchanged.
    ///
    /// # Errors
    /// When a directory cannot be created, or its owner cannot be changed.
    pub(crate) fn make(&self, kind: Kind, owner: Option<u32>) -> io::Result<()> {
        // The user who starts the bottle owns the directory of the layers. If root starts the bottle, the bottle's user
        // can access the content only through the bottle's mounts of the home and the workspace.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let mut directories = kind.trees().to_vec();
        if kind == Kind::Upper {
            directories.push(WORK);
        }
        if kind != Kind::Home && owner.is_some() {
            // A bottle on an image mounts the layers by the path of this directory, so the bottle's user must be able
            // to pass through it. On the host, only root can access its parent directories.
            fs::set_permissions(&self.0, fs::Permissions::from_mode(0o711))?;
        }
        for directory in directories {
            // The upper directory becomes the root directory of the bottle, which all users must be able to read.
            let mode = if directory == UPPER { 0o755 } else { 0o700 };
            let directory = self.0.join(directory);
            match DirBuilder::new().mode(mode).create(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            give(&directory, owner)?;
        }
        Ok(())
    }

    /// Creates the empty directory of the bottle's repository in the workspace directory. If a directory of the user is
    /// mounted as the workspace, this repository is the only content of the bottle's own workspace directory. `owner`
    /// has the same meaning as in [`Layers::make`].
    ///
    /// # Errors
    /// When the directory cannot be created, or its owner cannot be changed.
    pub(crate) fn make_repository(&self, owner: Option<u32>) -> io::Result<()> {
        let directory = self.workspace().join(".git");
        match DirBuilder::new().mode(0o755).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        give(&directory, owner)
    }

    /// Searches the workspace for changes. A missing workspace has no changes. If a directory of the user is mounted as
    /// the workspace (`is_live`), only the directories of the bottle's repository that can contain unsaved work are
    /// searched.
    ///
    /// # Errors
    /// When a part of the workspace cannot be read.
    pub(crate) fn find_changes(&self, request: &Changed, is_live: bool) -> io::Result<Changes> {
        let workspace = self.workspace();
        if !workspace.try_exists()? {
            return Ok(Changes::default());
        }
        let mut directories = vec![workspace.clone()];
        if is_live {
            let below = |directory: &String| {
                workspace.join(Path::new(directory).strip_prefix(names::WORKSPACE).unwrap_or(Path::new("")))
            };
            directories = LiveDirectory::work_directories().iter().map(below).collect();
            directories.retain(|directory| directory.exists());
        }
        changed_files::search(&workspace, &directories, request)
    }
}

/// Makes `owner` the owner of a directory if another user owns it. The owner is not set again if it is already correct,
/// because each `chown` updates the time that [`Layers::find_changes`] uses to detect changes of a kept workspace.
fn give(directory: &Path, owner: Option<u32>) -> io::Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    let found = fs::symlink_metadata(directory)?;
    if (found.uid(), found.gid()) == (owner, owner) {
        return Ok(());
    }
    std::os::unix::fs::lchown(directory, Some(owner), Some(owner))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn layers() -> (tempfile::TempDir, Layers) {
        let directory = tempfile::tempdir().expect("directory");
        let layers = Layers::new(directory.path().join("agent"));
        layers.make(Kind::Home, None).expect("made");
        (directory, layers)
    }

    #[test]
    fn only_commits_and_staged_files_of_a_live_bottle_are_work() {
        let (_directory, layers) = layers();
        layers.make_repository(None).expect("made");
        let git = layers.workspace().join(".git");
        let always = Changed::since(Timestamp::MIN);
        let looked = |is_live| layers.find_changes(&always, is_live).expect("looked").work;
        assert!(!looked(true), "an empty repository");
        fs::write(git.join("index"), "x").expect("written");
        assert!(!looked(true), "the index alone");
        assert!(looked(false));
        fs::create_dir_all(git.join("objects/ab")).expect("made");
        fs::write(git.join("objects/ab/cd"), "x").expect("written");
        assert!(looked(true), "an object");
    }
}
