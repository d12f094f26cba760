//! Opens and changes files that an agent may have made unreadable or replaced. Uses descriptors and never follows a
//! link.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

/// The permission bits of a mode, without the file type.
const PERMISSIONS: RawMode = 0o7777;

/// Sets the mode of `name` in the directory `at`. A link is an error, because its target may be outside the directory.
///
/// Kernels before 6.6 lack the flag that stops `fchmodat` from following links, so the mode is set through a
/// descriptor.
///
/// # Errors
/// The system's error. `LOOP` for a link.
pub(crate) fn chmod<P: rustix::path::Arg>(at: impl AsFd, name: P, mode: Mode) -> rustix::io::Result<()> {
    let found =
        rustix::fs::openat(at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    rustix::fs::chmod(by_descriptor(&found), mode)
}

/// Returns the path of an open file in `/proc`. The path stays valid when the file is renamed.
fn by_descriptor(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// An entry that is open for reading. If the entry's mode forbids reading, the mode is changed until this value is
/// dropped.
pub(crate) struct Readable {
    file: OwnedFd,
    closed: Option<Mode>,
}

impl Readable {
    /// Opens a directory for listing its direct entries. Never follows a link.
    ///
    /// # Errors
    /// The system's error. `LOOP` or `NOTDIR` for a link.
    pub(crate) fn directory<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> rustix::io::Result<Self> {
        Self::open(at, name, OFlags::DIRECTORY, Mode::RUSR | Mode::XUSR)
    }

    /// Opens a file for reading. For a named pipe, does not wait for a writer.
    ///
    /// # Errors
    /// The system's error. `LOOP` for a link.
    pub(crate) fn file<P: rustix::path::Arg + Copy>(at: impl AsFd, name: P) -> rustix::io::Result<Self> {
        Self::open(at, name, OFlags::NONBLOCK | OFlags::NOCTTY, Mode::RUSR)
    }

    fn open<P: rustix::path::Arg + Copy>(
        at: impl AsFd,
        name: P,
        flags: OFlags,
        needed: Mode,
    ) -> rustix::io::Result<Self> {
        let at = at.as_fd();
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (file, widened) = match rustix::fs::openat(at, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let path = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mode = mode_of(&rustix::fs::openat(at, name, path, Mode::empty())?)?;
                chmod(at, name, mode | needed)?;
                (rustix::fs::openat(at, name, flags, Mode::empty())?, Some(mode))
            }
            opened => (opened?, None),
        };
        let mut readable = Self { file, closed: widened };
        let mode = mode_of(&readable.file)?;
        // The mode of a directory may allow reading the directory without allowing search in it.
        if !mode.contains(needed) && !rustix::process::geteuid().is_root() {
            rustix::fs::fchmod(&readable.file, mode | needed)?;
            readable.closed = Some(mode);
        }
        Ok(readable)
    }

    /// Returns the open file.
    pub(crate) fn file_descriptor(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns the status of the file, with the file's original mode.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn stat(&self) -> rustix::io::Result<Stat> {
        let mut stat = rustix::fs::fstat(&self.file)?;
        if let Some(mode) = self.closed {
            stat.st_mode = stat.st_mode & !PERMISSIONS | mode.as_raw_mode();
        }
        Ok(stat)
    }
}

impl Drop for Readable {
    fn drop(&mut self) {
        if let Some(mode) = self.closed {
            // The agent may have removed the file in the meantime.
            let _ = rustix::fs::fchmod(&self.file, mode);
        }
    }
}

fn mode_of(file: &OwnedFd) -> rustix::io::Result<Mode> {
    Ok(Mode::from_raw_mode(rustix::fs::fstat(file)?.st_mode) & Mode::from_raw_mode(PERMISSIONS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn chmod_does_not_follow_a_link() {
        let here = tempfile::tempdir().expect("directory");
        let mode =
            |name: &str| here.path().join(name).metadata().expect("there").permissions().mode() & 0o777;
        std::fs::write(here.path().join("theirs"), "x").expect("written");
        std::fs::set_permissions(here.path().join("theirs"), PermissionsExt::from_mode(0o640)).expect("set");
        symlink("theirs", here.path().join("link")).expect("link");
        assert_eq!(chmod(CWD, here.path().join("link"), Mode::RWXU), Err(Errno::LOOP));
        assert_eq!(mode("theirs"), 0o640);
        chmod(CWD, here.path().join("theirs"), Mode::RWXU).expect("set");
        assert_eq!(mode("theirs"), 0o700);
    }

    #[test]
    fn an_unreadable_directory_is_read_and_gets_its_mode_back() {
        let here = tempfile::tempdir().expect("directory");
        let path = here.path().join("closed");
        std::fs::create_dir(&path).expect("made");
        std::fs::write(path.join("inner"), "x").expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).expect("closed");
        let directory = Readable::directory(CWD, path.as_path()).expect("opened");
        let inner = Readable::file(directory.file_descriptor(), "inner").expect("opened");
        drop((inner, directory));
        let mode = path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("opened for the removal");
    }
}
