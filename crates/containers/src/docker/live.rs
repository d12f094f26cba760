//! Mounts a directory of the user as a workspace (`--cwd=live`).
//!
//! ```text
//!   the directory ─bind mount─► /workspace        the bottle's repository ─volume─► /workspace/.git
//! ```
//! The volume has no name. It belongs to the agent's container, and later to a container that replaces it with the same
//! files. The agent never sees the files below the mount point, because a mount point cannot be moved, removed or
//! unmounted in a container.
//!
//! At each start of the container, the engine resolves the path again, as root. Pid 1 therefore checks which directory
//! is mounted, before any program of the image runs (`container_live`). The agent runs as the owner of the directory.
//! Otherwise the agent's files would get another owner, because an engine does not map owners.

use std::io;
use std::path::{Path, PathBuf};

use bollard::models::{Mount, MountType};
use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use bottle_backend::{BackendError, ImageInfo};
use bottle_plan::LiveDirectory;
use bottle_policy::names::{REPOSITORY, Slug, WORKSPACE};
use futures_util::TryStreamExt;

use super::container_entry::LiveSpec;
use super::engine::{Engine, EngineError};
use super::host_directories::{Obstacle, bind_mount};
use super::podman::COMMITTED_WITHIN;

/// The files in a container's workspace.
#[derive(Debug, Clone, Copy)]
pub(super) enum WorkspaceFiles<'a> {
    /// The container's own files.
    Own,
    /// A directory of the user.
    Live(&'a LiveDirectory),
    /// Only the bottle's repository, because the directory of the user must not be mounted any more.
    Repository,
}

impl<'a> WorkspaceFiles<'a> {
    pub(super) fn of(live: Option<&'a LiveDirectory>) -> Self {
        live.map_or(Self::Own, Self::Live)
    }

    /// Returns the mounts. The engine creates a volume without a source together with the container.
    pub(super) fn mounts(self, read_only: bool) -> Vec<Mount> {
        let Self::Live(live) = self else { return Vec::new() };
        let directory = live.path.to_str().map(|path| bind_mount(path, WORKSPACE, read_only));
        let repository = live.repository.map(|_| Mount {
            typ: Some(MountType::VOLUME),
            target: Some(REPOSITORY.to_owned()),
            ..Mount::default()
        });
        directory.into_iter().chain(repository).collect()
    }

    /// Returns the properties that pid 1 checks before it starts a program.
    pub(super) fn spec(self) -> Option<LiveSpec> {
        let Self::Live(live) = self else { return None };
        Some(LiveSpec { device: live.device, inode: live.inode, repository: live.repository })
    }

    /// Returns the user id and group id for a container with these files. With a directory of the user, the group is
    /// the directory's group.
    pub(super) fn user(self, image: &ImageInfo) -> (u32, u32) {
        match self {
            Self::Live(live) => (image.uid, live.gid),
            Self::Own | Self::Repository => (image.uid, image.gid),
        }
    }
}

/// Whether this is the volume of a bottle's repository. A container that replaces the bottle's container uses the same
/// volume.
pub(super) fn is_repository(mount: &Mount) -> bool {
    mount.source.is_none() && mount.target.as_deref() == Some(REPOSITORY)
}

/// The mounts of a container whose workspace is a directory of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The directory of the user that is mounted, if there is one.
    pub(super) directory: Option<PathBuf>,
    /// Whether the bottle's repository is in a volume.
    pub(super) repository: bool,
}

impl Mounted {
    /// Checks that the directory contains `.git`, over which the engine mounts the repository. An engine would create a
    /// missing `.git`, even to read the files of a container that does not run. `doing` is the action in the error
    /// (`cannot DOING`).
    ///
    /// # Errors
    /// [`BackendError`] that names the directory.
    pub(super) fn require_covered(&self, slug: &Slug, doing: &str) -> Result<(), BackendError> {
        let Some(directory) = self.directory.as_ref().filter(|_| self.repository) else { return Ok(()) };
        let git = directory.join(".git");
        if git.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Ok(());
        }
        let why = format!("cannot {doing}: {} is gone, over which its repository is mounted", git.display());
        Err(BackendError::failed(why)
            .with_hint(format!("`bottle cp {slug}:.git DIRECTORY` copies the repository out")))
    }

    /// Whether all files of the workspace belong to the user, so that removing the bottle loses none of them.
    pub(super) fn has_nothing_to_lose(&self) -> bool {
        self.directory.is_some() && !self.repository
    }

    /// Returns the directories in which changes are work of the agent. If the list is empty, the whole workspace is
    /// searched.
    pub(super) fn work_directories(&self) -> Vec<String> {
        self.directory.as_ref().map(|_| LiveDirectory::work_directories()).unwrap_or_default()
    }
}

/// Inspects the mounts of a container.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn mounted(engine: &Engine, container: &str) -> Result<Mounted, EngineError> {
    let mounts = engine.inspect_container(container).await?.mounts.unwrap_or_default();
    let find = |typ: &str, path: &str| {
        mounts
            .iter()
            .find(|mount| mount.typ.as_deref() == Some(typ) && mount.destination.as_deref() == Some(path))
    };
    let directory = find("bind", WORKSPACE).and_then(|mount| mount.source.clone()).map(PathBuf::from);
    Ok(Mounted { directory, repository: find("volume", REPOSITORY).is_some() })
}

/// Copies a bottle's repository from its volume into the files of a container that has not been started. The engine
/// makes and unpacks the archive, and writes no entry outside the target directory.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn copy_repository(engine: &Engine, from: &str, to: &str) -> Result<(), EngineError> {
    let options = DownloadFromContainerOptionsBuilder::new().path(REPOSITORY).build();
    let archive = engine.docker().download_from_container(from, Some(options));
    let body = bollard::body_try_stream(archive.map_err(io::Error::other));
    let options = UploadToContainerOptionsBuilder::new().path(WORKSPACE).build();
    let uploaded = engine.docker().upload_to_container(to, Some(options), body);
    engine.call_within(COMMITTED_WITHIN, uploaded).await
}

/// Refuses a directory that no agent's container can use as its workspace.
///
/// # Errors
/// [`BackendError`] that names the directory.
pub(super) fn require_ordinary(live: &LiveDirectory) -> Result<(), BackendError> {
    if live.uid == 0 {
        return Err(refused(live, "it belongs to root, and an agent in a container is never root"));
    }
    if live.gid == 0 {
        return Err(refused(live, "its group is root's, in which an agent in a container never is"));
    }
    if live.path.to_str().is_none() {
        return Err(refused(live, "an engine accepts only paths in UTF-8"));
    }
    Ok(())
}

/// Refuses a directory that the agent's container would not see unchanged.
///
/// # Errors
/// The errors of [`require_ordinary`].
pub(super) fn require_visible(live: &LiveDirectory, obstacle: Option<&Obstacle>) -> Result<(), BackendError> {
    obstacle.map_or(Ok(()), |obstacle| Err(refused(live, &obstacle.to_string())))
}

/// Refuses a directory whose owner differs from the image's user. Also refuses an image with volumes in the workspace,
/// because the engine would create directories for these volumes in the user's directory.
///
/// # Errors
/// The errors of [`require_ordinary`].
pub(super) fn require_image(live: &LiveDirectory, image: &ImageInfo) -> Result<(), BackendError> {
    if live.uid != image.uid {
        let why =
            format!("it belongs to user {}, and the agent in the image is user {}", live.uid, image.uid);
        return Err(refused(live, &why));
    }
    let below = |volume: &&String| Path::new(volume.as_str()).starts_with(WORKSPACE);
    match image.volumes.iter().find(below) {
        Some(volume) => Err(refused(live, &format!("the image has a volume at {volume}"))),
        None => Ok(()),
    }
}

fn refused(live: &LiveDirectory, why: &str) -> BackendError {
    BackendError::unsupported(
        format!("cannot mount {}: {why}", live.path.display()),
        "use `--backend linux`, or `--cwd`, which copies the directory",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn live(uid: u32, gid: u32) -> LiveDirectory {
        LiveDirectory { path: "/home/me/project".into(), device: 1, inode: 2, uid, gid, repository: Some(3) }
    }

    fn image(volumes: &[&str]) -> ImageInfo {
        ImageInfo {
            image: "sha256:abc".to_owned(),
            uid: 1000,
            gid: 1000,
            user: "agent".to_owned(),
            home: "/home/agent".to_owned(),
            env: BTreeMap::new(),
            volumes: volumes.iter().map(|volume| (*volume).to_owned()).collect(),
        }
    }

    #[test]
    fn only_a_directory_of_the_images_user_is_mounted() {
        for (uid, gid, ordinary) in [(1000, 1000, true), (0, 0, false), (0, 1000, false), (1000, 0, false)] {
            assert_eq!(require_ordinary(&live(uid, gid)).is_ok(), ordinary, "{uid}:{gid}");
        }
        for (uid, volumes, fits) in [
            (1000, &[][..], true),
            (1000, &["/data", "/workspaces"], true),
            (1000, &["/workspace"], false),
            (1000, &["/workspace/target"], false),
            (1001, &[], false),
        ] {
            assert_eq!(require_image(&live(uid, 100), &image(volumes)).is_ok(), fits, "{uid} {volumes:?}");
        }
        let refused = require_visible(&live(1000, 1000), Some(&Obstacle::Podman)).expect_err("refused");
        assert_eq!(refused.message, "cannot mount /home/me/project: the container engine is Podman");
    }

    #[test]
    fn a_repository_is_only_mounted_over_one_of_the_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let slug: Slug = "one".parse().expect("a slug");
        let is_covered = |directory: Option<&Path>, repository| {
            let mounted = Mounted { directory: directory.map(Path::to_owned), repository };
            mounted.require_covered(&slug, "make a snapshot of one").is_ok()
        };
        assert!(!is_covered(Some(directory.path()), true));
        assert!(is_covered(Some(directory.path()), false) && is_covered(None, true));
        std::fs::create_dir(directory.path().join(".git")).expect("a directory");
        assert!(is_covered(Some(directory.path()), true));
    }

    #[test]
    fn only_the_repository_can_be_lost() {
        for (directory, repository, lost, directories) in [
            (false, false, false, 0),
            (true, false, true, 2),
            (true, true, false, 2),
            (false, true, false, 0),
        ] {
            let mounted = Mounted { directory: directory.then(|| "/home/me/project".into()), repository };
            assert_eq!(mounted.has_nothing_to_lose(), lost, "{mounted:?}");
            assert_eq!(mounted.work_directories().len(), directories, "{mounted:?}");
        }
    }

    #[test]
    fn a_reader_gets_the_repository_from_the_kept_container() {
        let live = live(1000, 100);
        let files = WorkspaceFiles::Live(&live);
        let mounts = files.mounts(true);
        assert_eq!(mounts.iter().map(is_repository).collect::<Vec<_>>(), [false, true]);
        assert_eq!((mounts[0].read_only, mounts[0].source.as_deref()), (Some(true), live.path.to_str()));
        assert_eq!(files.user(&image(&[])), (1000, 100));
        let without = LiveDirectory { repository: None, ..live.clone() };
        assert_eq!(WorkspaceFiles::Live(&without).mounts(false).len(), 1);
        assert!(WorkspaceFiles::Repository.mounts(false).is_empty());
    }
}
