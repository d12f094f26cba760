//! A bottle's writable folders on the host, and what an agent may have left in them.
//!
//! Whatever is in there was written by the agent: names, modes and depth are hostile. Nothing here follows
//! a link, and removing holds a few descriptors however deep the folders go.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::nofollow;
use crate::host::files;

/// The agent's home, where the system is the host's.
const HOME: &str = "home";

/// The agent's working directory.
const WORKSPACE: &str = "workspace";

/// What a bottle changed of its image, as an overlay file system keeps it.
pub(crate) const UPPER: &str = "upper";

/// That file system's own.
pub(crate) const WORK: &str = "work";

/// The bottle's own copy of its image, where there is no such file system.
pub(crate) const COPY: &str = "root";

/// The name of the image that a bottle stands on.
const IMAGE: &str = "image";

/// Longer than any image's name.
const NAME_MAX: u64 = 256;

/// What a bottle's files are, beside its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A home; the system is the host's.
    Home,
    /// What it changed of an image.
    Upper,
    /// A copy of an image.
    Copy,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Home, Self::Upper, Self::Copy];

    /// The folders that are a bottle's files.
    pub(crate) fn trees(self) -> [&'static str; 2] {
        match self {
            Self::Home => [HOME, WORKSPACE],
            Self::Upper => [UPPER, WORKSPACE],
            Self::Copy => [COPY, WORKSPACE],
        }
    }

    /// What the files in this folder are; nothing when there are none.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        // A copy takes the place of changes.
        Self::ALL.into_iter().rev().find(|kind| folder.join(kind.trees()[0]).is_dir())
    }
}

/// The layers of one bottle.
#[derive(Debug, Clone)]
pub(crate) struct Layers(PathBuf);

impl Layers {
    /// Layers in this folder.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The folder that holds them.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// The agent's home.
    pub(crate) fn home(&self) -> PathBuf {
        self.0.join(HOME)
    }

    /// The agent's working directory.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.0.join(WORKSPACE)
    }

    /// What of them is stored, as [`super::copy::stamps`] writes it. Outside of them: it is none of the agent's.
    pub(crate) fn stamps(&self) -> PathBuf {
        let mut path = self.0.clone().into_os_string();
        path.push(".stamps");
        path.into()
    }

    /// What they are; nothing when there are none.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::of(&self.0)
    }

    /// The image that they stand on.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(crate) fn image(&self) -> io::Result<Option<String>> {
        let mut name = String::new();
        match File::open(self.0.join(IMAGE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?.take(NAME_MAX).read_to_string(&mut name)?,
        };
        Ok(Some(name))
    }

    /// Notes the image that they stand on.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn set_image(&self, name: &str) -> io::Result<()> {
        files::replace(&self.0.join(IMAGE), |file| file.write_all(name.as_bytes()))
    }

    /// Makes what is missing of such layers, for the user who will own it: the user, or `owner` when root starts
    /// a bottle. Layers of a kept bottle are left as they are.
    ///
    /// # Errors
    /// When a folder cannot be made or given away.
    pub(crate) fn make(&self, kind: Kind, owner: Option<u32>) -> io::Result<()> {
        // Root keeps this folder; the bottle's user gets through it only by its own two mounts.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let mut folders = kind.trees().to_vec();
        if kind == Kind::Upper {
            folders.push(WORK);
        }
        if kind != Kind::Home && owner.is_some() {
            // What is in it is mounted by way of it; from outside there is no way to it but root's.
            fs::set_permissions(&self.0, fs::Permissions::from_mode(0o711))?;
        }
        for folder in folders {
            // The top of an image is for everyone who is in it.
            let mode = if folder == UPPER { 0o755 } else { 0o700 };
            let folder = self.0.join(folder);
            match DirBuilder::new().mode(mode).create(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            if owner.is_some() {
                std::os::unix::fs::lchown(&folder, owner, owner)?;
            }
        }
        Ok(())
    }

    /// Whether the workspace holds anything that changed after `since`. One that is not there does not.
    ///
    /// # Errors
    /// When a part of it cannot be looked at.
    pub(crate) fn changed_since(&self, since: Timestamp) -> io::Result<bool> {
        if !self.workspace().try_exists()? {
            return Ok(false);
        }
        bottle_guest::work::changed_since(&self.workspace(), since)
    }
}

/// Removes a folder with everything in it, whatever its modes and however deep; gone already is no error.
///
/// Each folder is opened up and emptied; one that lies too deep is moved to the top first, so that neither the
/// length of a path nor the number of open files grows with the depth.
///
/// # Errors
/// When something cannot be removed.
pub(crate) fn demolish(folder: &Path) -> io::Result<()> {
    demolish_at(CWD, folder)
}

/// The same, of the folder `name` in another one.
///
/// # Errors
/// As [`demolish`].
pub(crate) fn demolish_at<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> io::Result<()> {
    let at = at.as_fd();
    match Folder::open(at, name) {
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(top) => {
            let mut moved = 0_u64;
            loop {
                let entries = top.entries()?;
                if entries.is_empty() {
                    break;
                }
                for (name, is_folder) in entries {
                    if is_folder {
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

/// Folders below this are moved to the top, which takes longer than emptying them where they are.
const DEEPEST: usize = 16;

fn empty_into(top: &Folder, name: &CString, moved: &mut u64) -> rustix::io::Result<()> {
    empty(&Folder::open(&top.0, name)?, top, moved, DEEPEST)?;
    rustix::fs::unlinkat(&top.0, name, AtFlags::REMOVEDIR)
}

fn empty(folder: &Folder, top: &Folder, moved: &mut u64, deeper: usize) -> rustix::io::Result<()> {
    for (child, is_folder) in folder.entries()? {
        if !is_folder {
            rustix::fs::unlinkat(&folder.0, &child, AtFlags::empty())?;
        } else if let Some(deeper) = deeper.checked_sub(1) {
            empty(&Folder::open(&folder.0, &child)?, top, moved, deeper)?;
            rustix::fs::unlinkat(&folder.0, &child, AtFlags::REMOVEDIR)?;
        } else {
            set_aside(folder, &child, top, moved)?;
        }
    }
    Ok(())
}

fn set_aside(folder: &Folder, child: &CString, top: &Folder, moved: &mut u64) -> rustix::io::Result<()> {
    // Moving a folder rewrites its `..`, so it has to be writable itself.
    nofollow::chmod(&folder.0, child, Mode::RWXU)?;
    loop {
        let aside = format!(".removed-{moved}");
        *moved += 1;
        match rustix::fs::renameat(&folder.0, child, &top.0, &aside) {
            // Something of that name is there; an empty folder may as well be replaced.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            done => return done,
        }
    }
}

struct Folder(OwnedFd);

impl Folder {
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
            let is_folder = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                }
                known => known == FileType::Directory,
            };
            entries.push((name.to_owned(), is_folder));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn layers() -> (tempfile::TempDir, Layers) {
        let folder = tempfile::tempdir().expect("folder");
        let layers = Layers::new(folder.path().join("agent"));
        layers.make(Kind::Home, None).expect("made");
        (folder, layers)
    }

    #[test]
    fn removes_what_was_closed_and_what_is_deeper_than_a_path_may_be_long() {
        let (folder, layers) = layers();
        fs::write(folder.path().join("outside"), "kept").expect("written");
        symlink(folder.path(), layers.home().join("link")).expect("link");
        fs::create_dir_all(layers.home().join("closed/inner/.removed-0")).expect("folders");
        fs::write(layers.home().join("closed/inner/file"), "x").expect("file");
        fs::set_permissions(layers.home().join("closed/inner"), fs::Permissions::from_mode(0o0))
            .expect("closed");
        fs::set_permissions(layers.home().join("closed"), fs::Permissions::from_mode(0o0)).expect("closed");
        let mut at = Folder::open(CWD, layers.workspace().as_path()).expect("open").0;
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).expect("made");
            at = Folder::open(&at, "deeper").expect("open").0;
        }
        drop(at);
        demolish(layers.folder()).expect("removed");
        demolish(layers.folder()).expect("twice is no error");
        assert!(!layers.folder().exists());
        assert!(folder.path().join("outside").exists(), "a link is not followed");
    }
}
