//! Replaces files atomically: writes the content to a temporary file in the directory of the target, and then renames
//! the temporary file to the target.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_protocol::session::files::{FileEvent, WRITE_MAX, Write};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, fchmod, fsync, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::workspace::{MadeDirectories, Parent, Place, Workspace, cannot, check_regular};
use crate::failure::Outcome;
use crate::rooted::open_beneath;

/// The permission bits of a new file.
pub(super) const NEW_MODE: u32 = 0o644;

/// Writes a file.
pub(super) fn write(workspace: &Workspace, request: &Write, input: impl Read) -> Outcome<FileEvent> {
    let place = Place::new(&request.path)?;
    write_file(workspace, &place, request.new, input)
        .map_err(|error| cannot("write", place.as_path(), &error))
}

fn write_file(workspace: &Workspace, place: &Place, new: bool, input: impl Read) -> io::Result<FileEvent> {
    let mut made = MadeDirectories::default();
    let parent = workspace.make_parent(place, &mut made)?;
    let existing = parent.entry()?;
    if let Some(existing) = &existing {
        check_regular(existing)?;
        if new {
            return Err(io::Error::other("it exists already"));
        }
    }
    let mode = existing.map_or(NEW_MODE, |existing| existing.st_mode & 0o777);
    let mut staged = Staged::create(parent)?;
    let bytes = io::copy(&mut input.take(WRITE_MAX + 1), &mut staged.file)?;
    if bytes > WRITE_MAX {
        let why = format!("it has more than {} MiB; `bottle cp` copies larger files", WRITE_MAX >> 20);
        return Err(io::Error::other(why));
    }
    staged.finish(mode)?;
    staged.put_in_place(!new)?;
    made.keep();
    Ok(FileEvent::Written { bytes, created: existing.is_none() })
}

/// Returns a name for a temporary entry beside its target.
pub(super) fn temporary_name() -> io::Result<OsString> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(format!(".bottle-{:016x}.tmp", u64::from_ne_bytes(random)).into())
}

/// A temporary file in the directory of its target. Dropping this value removes the temporary file if it was not
/// renamed to the target.
pub(super) struct Staged {
    parent: Parent,
    /// The open temporary file, to which the content is written.
    pub(super) file: File,
    temporary: Option<OsString>,
}

impl Staged {
    /// Creates an empty temporary file.
    pub(super) fn create(parent: Parent) -> io::Result<Self> {
        let temporary = temporary_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = open_beneath(&parent.directory, Path::new(&temporary), flags, Mode::from_raw_mode(0o600))?;
        Ok(Self { parent, file: file.into(), temporary: Some(temporary) })
    }

    /// Sets the mode, and waits until the content is on disk.
    pub(super) fn finish(&self, mode: u32) -> io::Result<()> {
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        Ok(fsync(&self.file)?)
    }

    /// Renames the temporary file to the target. If `replace` is true, replaces an existing target. If the target is a
    /// symlink or hard link, only this link is replaced, so no other file changes. If `replace` is false, fails if the
    /// target exists.
    pub(super) fn put_in_place(&mut self, replace: bool) -> io::Result<()> {
        let Some(temporary) = &self.temporary else { return Ok(()) };
        let Parent { directory, name } = &self.parent;
        let renamed = if replace {
            renameat(directory, temporary, directory, name)
        } else {
            renameat_with(directory, temporary, directory, name, RenameFlags::NOREPLACE)
        };
        match renamed {
            // Some file systems cannot check for an existing target and rename in one step.
            Err(Errno::INVAL) if !replace => {
                if self.parent.entry()?.is_some() {
                    return Err(Errno::EXIST.into());
                }
                renameat(directory, temporary, directory, name)?;
            }
            done => done?,
        }
        self.temporary = None;
        sync(&self.parent.directory);
        Ok(())
    }

    /// Returns the target.
    pub(super) fn target(&self) -> &Parent {
        &self.parent
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.parent.directory, temporary, AtFlags::empty());
        }
    }
}

/// Waits until the entries of a directory are on disk. Errors are ignored: some file systems do not support this, and
/// the file's content is already complete.
pub(super) fn sync(directory: &OwnedFd) {
    let _ = fsync(directory);
}
