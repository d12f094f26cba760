//! Opens files inside the bottle in such a way that no path leaves the bottle.
//!
//! Every file is opened with `openat2`. For a path relative to the root, the flag `RESOLVE_IN_ROOT` stops `..` and
//! symlinks at the root. For a path relative to another directory, the flag `RESOLVE_BENEATH` rejects a path that
//! leaves the directory. gVisor has `openat2` only since August 2026 (google/gvisor#14103); before, [`walk`] resolves
//! the path.

mod walk;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;

/// Opens a path relative to the bottle's root. Symlinks are followed within the root.
pub(crate) fn open_in_root(root: &Path, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    resolve(root.as_fd(), path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
}

/// Opens a path beneath a directory. An empty path opens the directory itself. A symlink anywhere in the path is an
/// error.
///
/// # Errors
/// Fails with the system's error. The error is `ELOOP` for a symlink, and `EXDEV` for a path that leaves the directory.
pub fn open_beneath(directory: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    resolve(directory.as_fd(), path, flags, mode, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Opens a path beneath a directory. Symlinks are followed. A path that leaves the directory is an error, even if it
/// ends inside the directory.
pub(crate) fn open_within(directory: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    resolve(directory.as_fd(), path, flags, Mode::empty(), ResolveFlags::BENEATH)
}

fn resolve(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    bounds: ResolveFlags,
) -> io::Result<OwnedFd> {
    let path = named(path);
    let flags = flags | OFlags::CLOEXEC;
    let bounds = bounds | ResolveFlags::NO_MAGICLINKS;
    match retry(|| openat2(directory, path, flags, mode, bounds)) {
        Err(error) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => {
            Ok(walk::open(directory, path, flags, mode, bounds)?)
        }
        opened => opened,
    }
}

/// Opens a directory of the bottle, and creates the components of its path that do not exist.
pub(crate) fn make_directory(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY;
    match open_in_root(root, path, directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done,
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let parent = make_directory(root, parent)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    open_in_root(root, path, directory)
}

/// Replaces an empty path by `.`. An empty path means the directory itself.
fn named(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Repeats an `openat2` call that fails with EAGAIN because of a concurrent rename (openat2(2)).
fn retry(mut open: impl FnMut() -> rustix::io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    for _ in 0..16 {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
    Ok(open()?)
}
