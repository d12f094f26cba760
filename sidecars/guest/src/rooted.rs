//! Opens files inside the bottle, so that no path escapes from it.
//!
//! Every open uses `openat2`: from the root with `RESOLVE_IN_ROOT`, where `..` and symlinks stop at the
//! root, or from a folder with `RESOLVE_BENEATH` and no symlinks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;

/// Opens a path relative to the bottle's root and follows symlinks within it.
pub(crate) fn open_in_root(root: &Path, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    retry(|| openat2(&root, named(path), flags | OFlags::CLOEXEC, Mode::empty(), resolve))
}

/// Opens a path beneath a folder; any symlink in it is an error.
pub(crate) fn open_beneath(folder: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    retry(|| openat2(folder.as_fd(), named(path), flags | OFlags::CLOEXEC, mode, resolve))
}

/// Opens a folder of the bottle and creates missing components.
pub(crate) fn make_folder(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY;
    match open_in_root(root, path, folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done,
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let parent = make_folder(root, parent)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    open_in_root(root, path, folder)
}

/// Replaces an empty path, which means the folder itself, by `.`.
fn named(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Retries `openat2`, which fails with EAGAIN during a concurrent rename (openat2(2)).
fn retry(mut open: impl FnMut() -> rustix::io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    for _ in 0..16 {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
    Ok(open()?)
}
