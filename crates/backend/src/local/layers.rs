//! Manages a bottle's layers, which are its writable directories on the host.
//!
//! The agent controls their content, so the names, modes and depth of the files are hostile. This module follows no
//! link, and a removal has only a few descriptors open, whatever the depth.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bottle_contract::names;
use bottle_contract::session::guest::{Changed, Changes};
use bottle_guest::changed_files;
use bottle_host::files;
use bottle_plan::LiveDirectory;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::nofollow;

/// The directory name of the agent's home, for a bottle that uses the host's system files.
pub(crate) const HOME: &str = "home";

/// The directory name of the agent's working directory.
pub(crate) const WORKSPACE: &str = "workspace";

/// The directory name of the shared objects among a bottle's layers.
pub(crate) const OBJECTS: &str = "git-objects";

/// The name of an overlay's upper directory, which contains the bottle's changes to its image.
pub(crate) const UPPER: &str = "upper";

/// The name of the work directory that the kernel uses for the overlay with the upper directory [`UPPER`].
pub(crate) const WORK: &str = "work";

/// The directory name of the bottle's copy of its image, on machines without overlay support.
pub(crate) const COPY: &str = "root";

/// The name of the file that contains the name of the bottle's image.
const IMAGE: &str = "image";

/// The maximum number of bytes read of an image's name. Names are shorter.
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

    /// The kind of the layers in this directory. `None` if it contains no layers.
    pub(crate) fn detect(directory: &Path) -> Option<Self> {
        // If both a copy and changes exist, the copy is used.
        Self::ALL.into_iter().rev().find(|kind| directory.join(kind.trees()[0]).is_dir())
    }
}

/// The layers of one bottle.
#[derive(Debug, Clone)]
pub(crate) struct Layers(PathBuf);

impl Layers {
    /// Layers in this directory.
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

    /// The name of the agent's working directory among the layers.
    pub(crate) const WORKSPACE: &str = WORKSPACE;

    /// The agent's working directory.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.0.join(WORKSPACE)
    }

    /// The objects that the copied repository shares with the host's repository. The directory exists only if the
    /// launch copied a directory.
    pub(crate) fn git_objects(&self) -> PathBuf {
        self.0.join(OBJECTS)
    }

    /// The file that [`super::copy::stamps`] writes. It is outside the layers, so the agent cannot change it.
    pub(crate) fn stamps(&self) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".stamps");
        path.into()
    }

    /// The kind of the layers. `None` if there are none.
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
    /// directories; otherwise this user owns them. Existing directories of a kept bottle stay unchanged.
    ///
    /// # Errors
    /// When a directory cannot be created, or its owner cannot be changed.
    pub(crate) fn make(&self, kind: Kind, owner: Option<u32>) -> io::Result<()> {
        // The user who starts the bottle owns the directory of the layers. If that is root, the bottle's user reaches
        // the content only through the two mounts in the bottle.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let mut directories = kind.trees().to_vec();
        if kind == Kind::Upper {
            directories.push(WORK);
        }
        if kind != Kind::Home && owner.is_some() {
            // The bottle mounts the layers through the path of their directory. On the host, only root can reach that
            // path.
            fs::set_permissions(&self.0, fs::Permissions::from_mode(0o711))?;
        }
        for directory in directories {
            // Every user in an image can read its root directory.
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

    /// Creates the empty directory of the bottle's repository, the only content of the workspace if a directory of the
    /// user is mounted in its place. `owner` is as in [`Layers::make`].
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

    /// Searches the workspace for changes. There are none in a missing workspace. If a directory of the user is mounted in
    /// its place (`is_live`), only the directories of the repository that have work are searched.
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

/// Gives a directory to `owner`, if it is another user's. A change of the owner, even to the same one, changes the time
/// from which [`Layers::find_changes`] concludes that a kept workspace was changed.
fn give(directory: &Path, owner: Option<u32>) -> io::Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    let found = fs::symlink_metadata(directory)?;
    if (found.uid(), found.gid()) == (owner, owner) {
        return Ok(());
    }
    std::os::unix::fs::lchown(directory, Some(owner), Some(owner))
}

/// Removes a directory and its content, at any depth and with any modes. A missing directory is no error.
///
/// Each directory is made accessible and emptied. A directory that is too deep is first moved to the top. The length of
/// paths and the number of open files therefore do not grow with the depth.
///
/// # Errors
/// When an entry cannot be removed.
pub(crate) fn remove_tree(directory: &Path) -> io::Result<()> {
    remove_tree_at(CWD, directory)
}

/// Removes the directory `name` in the open directory `at`, and its content.
///
/// # Errors
/// As [`remove_tree`].
pub(crate) fn remove_tree_at<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> io::Result<()> {
    let at = at.as_fd();
    match Directory::open(at, name) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(top) => {
            let mut moved = 0_u64;
            loop {
                let entries = top.entries()?;
                if entries.is_empty() {
                    break;
                }
                for (name, is_directory) in entries {
                    if is_directory {
                        empty_into(&top, &name, &mut moved)?;
                    } else {
                        rustix::fs::unlinkat(&top.0, &name, AtFlags::empty())?;
                    }
                }
            }
        }
    }
    rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// The depth above which a directory is moved to the top. Moving takes longer than emptying a directory in place.
const MAX_DEPTH: usize = 16;

fn empty_into(top: &Directory, name: &CString, moved: &mut u64) -> rustix::io::Result<()> {
    empty(&Directory::open(&top.0, name)?, top, moved, MAX_DEPTH)?;
    rustix::fs::unlinkat(&top.0, name, AtFlags::REMOVEDIR)
}

fn empty(directory: &Directory, top: &Directory, moved: &mut u64, deeper: usize) -> rustix::io::Result<()> {
    for (child, is_directory) in directory.entries()? {
        if !is_directory {
            rustix::fs::unlinkat(&directory.0, &child, AtFlags::empty())?;
        } else if let Some(deeper) = deeper.checked_sub(1) {
            empty(&Directory::open(&directory.0, &child)?, top, moved, deeper)?;
            rustix::fs::unlinkat(&directory.0, &child, AtFlags::REMOVEDIR)?;
        } else {
            move_to_top(directory, &child, top, moved)?;
        }
    }
    Ok(())
}

fn move_to_top(
    directory: &Directory,
    child: &CString,
    top: &Directory,
    moved: &mut u64,
) -> rustix::io::Result<()> {
    // Moving a directory changes its entry `..`, so the directory must be writable.
    nofollow::chmod(&directory.0, child, Mode::RWXU)?;
    loop {
        let aside = format!(".removed-{moved}");
        *moved += 1;
        match rustix::fs::renameat(&directory.0, child, &top.0, &aside) {
            // The name is taken. Replacing an empty directory by the rename would be harmless.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            done => return done,
        }
    }
}

struct Directory(OwnedFd);

impl Directory {
    fn open<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = at.as_fd();
        let opened = match rustix::fs::openat(at, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                nofollow::chmod(at, name, Mode::RWXU)?;
                rustix::fs::openat(at, name, flags, Mode::empty())?
            }
            opened => opened?,
        };
        if !rustix::fs::Mode::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).contains(Mode::RWXU) {
            rustix::fs::fchmod(&opened, Mode::RWXU)?;
        }
        Ok(Self(opened))
    }

    fn entries(&self) -> rustix::io::Result<Vec<(CString, bool)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                }
                known => known == FileType::Directory,
            };
            entries.push((name.to_owned(), is_directory));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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

    #[test]
    fn removes_unreadable_directories_and_directories_deeper_than_the_longest_path() {
        let (directory, layers) = layers();
        fs::write(directory.path().join("outside"), "kept").expect("written");
        symlink(directory.path(), layers.home().join("link")).expect("link");
        fs::create_dir_all(layers.home().join("closed/inner/.removed-0")).expect("directories");
        fs::write(layers.home().join("closed/inner/file"), "x").expect("file");
        fs::set_permissions(layers.home().join("closed/inner"), fs::Permissions::from_mode(0o0))
            .expect("closed");
        fs::set_permissions(layers.home().join("closed"), fs::Permissions::from_mode(0o0)).expect("closed");
        let mut at = Directory::open(CWD, layers.workspace().as_path()).expect("open").0;
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).expect("made");
            at = Directory::open(&at, "deeper").expect("open").0;
        }
        drop(at);
        remove_tree(layers.directory()).expect("removed");
        remove_tree(layers.directory()).expect("twice is no error");
        assert!(!layers.directory().exists());
        assert!(directory.path().join("outside").exists(), "a link is not followed");
    }
}
