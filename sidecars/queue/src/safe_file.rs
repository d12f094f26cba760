//! Reads, creates and locks single files in a directory. The contents of the directory may be hostile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bottle_protocol::queue::MAX_FILE;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The prefix of temporary files. A writer that is killed leaves its temporary file behind.
pub(crate) const TEMPORARY: &str = ".new-";

/// The maximum number of attempts to lock a file. If all attempts fail, another asker holds the lock.
const LOCK_TRIES: u32 = 20;
/// The pause between two attempts to lock a file.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The reason why an existing file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damaged(String),
}

impl From<Unreadable> for io::Error {
    fn from(error: Unreadable) -> Self {
        match error {
            Unreadable::Io(error) => error,
            Unreadable::Damaged(why) => Self::new(io::ErrorKind::InvalidData, why),
        }
    }
}

/// Opens a regular file in the directory, without following symlinks and without blocking. Returns `None` if the file
/// does not exist.
pub(crate) fn open(directory: BorrowedFd<'_>, name: &str) -> Result<Option<File>, Unreadable> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(Unreadable::Damaged("it is a symlink".to_owned())),
        Err(Errno::NXIO) => return Err(Unreadable::Damaged("it is not a regular file".to_owned())),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    if !file.metadata()?.is_file() {
        return Err(Unreadable::Damaged("it is not a regular file".to_owned()));
    }
    Ok(Some(file))
}

/// Parses a file of at most [`MAX_FILE`] bytes as JSON.
pub(crate) fn read<T: DeserializeOwned>(file: &mut File) -> Result<T, Unreadable> {
    let mut text = Vec::new();
    let read = file.take(MAX_FILE as u64 + 1).read_to_end(&mut text)?;
    if read > MAX_FILE {
        return Err(Unreadable::Damaged(format!("it is larger than {MAX_FILE} bytes")));
    }
    serde_json::from_slice(&text).map_err(|error| Unreadable::Damaged(format!("cannot parse it: {error}")))
}

/// Creates a new file atomically. Only the user of this process can read the file.
///
/// If `lock` is set, the file is locked before it gets its final name. The file remains locked until the returned file
/// is closed.
///
/// # Errors
/// Fails with [`io::ErrorKind::AlreadyExists`] if a file with the name `name` exists.
pub(crate) fn create<T: Serialize>(
    directory: BorrowedFd<'_>,
    name: &str,
    content: &T,
    lock: bool,
) -> io::Result<File> {
    let mut text = serde_json::to_vec_pretty(content)?;
    text.push(b'\n');
    if text.len() > MAX_FILE {
        return Err(io::Error::other("it is too large for the queue"));
    }
    let temporary = temporary_name();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(&text).and_then(|()| file.sync_all()).and_then(|()| {
        if lock {
            self::lock(&file)?;
        }
        publish(directory, &temporary, name)
    });
    // An error is ignored. The temporary file does not exist if `publish` renamed it.
    let _ = rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
    written?;
    // If the directory were not synchronized, a power failure could remove the file's name.
    rustix::fs::fsync(directory)?;
    Ok(file)
}

fn temporary_name() -> String {
    format!("{TEMPORARY}{:032x}", rand::random::<u128>())
}

/// Returns whether `linkat` failed because this file cannot have another name. Some file systems do not support hard
/// links, and the kernel refuses hard links to directories and to files of other users.
fn cannot_link(error: Errno) -> bool {
    matches!(error, Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK)
}

/// Gives a temporary file its final name. Fails if a file with the final name exists.
fn publish(directory: BorrowedFd<'_>, temporary: &str, name: &str) -> io::Result<()> {
    match rustix::fs::linkat(directory, temporary, directory, name, AtFlags::empty()) {
        Err(error) if cannot_link(error) => {
            rustix::fs::renameat_with(directory, temporary, directory, name, RenameFlags::NOREPLACE)?;
            Ok(())
        }
        linked => Ok(linked?),
    }
}

/// Locks the file of a proposal. The lock shows that the proposal's asker is waiting. Retries, because another process
/// may hold the lock for a moment in [`is_locked`].
pub(crate) fn lock(file: &File) -> io::Result<()> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            locked => return Ok(locked?),
        }
    }
    Err(io::Error::from(Errno::WOULDBLOCK))
}

/// Returns whether an asker has locked the file. Always returns true on a file system that does not support locks.
pub(crate) fn is_locked(file: &File) -> bool {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
            false
        }
        Err(_) => true,
    }
}

/// Gives a file of `directory` a second name in the directory `processed`. Replaces a file with the same name there.
/// Returns false if the file does not exist or cannot have another name.
pub(crate) fn link(directory: BorrowedFd<'_>, processed: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let temporary = temporary_name();
    match rustix::fs::linkat(directory, name, processed, &temporary, AtFlags::empty()) {
        Ok(()) => {}
        Err(error) if error == Errno::NOENT || cannot_link(error) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let renamed = rustix::fs::renameat(processed, &temporary, processed, name);
    // If both are names of the same file, `renameat` keeps both. A killed process leaves two names of the same file.
    let _ = rustix::fs::unlinkat(processed, &temporary, AtFlags::empty());
    renamed?;
    Ok(true)
}

/// Moves a file to the directory `processed`. Returns whether the file existed.
pub(crate) fn archive(directory: &impl AsFd, processed: &impl AsFd, name: &str) -> io::Result<bool> {
    match rustix::fs::renameat(directory, name, processed, name) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
