//! Locks the image builds of a `$BOTTLE_HOME`. While one process builds an image, other processes that need the image
//! wait.
//!
//! ```text
//! $BOTTLE_HOME/builds/         shared lock of every build; exclusive lock of a cleanup
//! $BOTTLE_HOME/builds/<image>  exclusive lock of the build of that image
//! ```
//! The kernel releases both locks when the process that holds them exits.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_host::Host;

use crate::{BackendError, ProgressSink, Step};

/// The interval between attempts to get a lock.
const PAUSE: Duration = Duration::from_millis(50);

/// The lock for building one image. Dropping it releases the lock.
#[derive(Debug)]
pub struct BuildLock {
    _all: File,
    _image: File,
}

/// Waits until this process holds the lock for building the image with this hash. `subject` names the image in progress
/// reports.
///
/// # Errors
/// [`BackendError`] when the directory that contains the lock files cannot be used.
pub async fn lock(
    host: &Host,
    hash: &str,
    subject: &str,
    progress: &ProgressSink<Step>,
) -> Result<BuildLock, BackendError> {
    let directory = directory(host);
    let path = directory.join(hash);
    let failed =
        |error: io::Error| BackendError::failed(format!("cannot lock {}", path.display())).because(error);
    let all = open(&directory).map_err(failed)?;
    while !acquired(all.try_lock_shared()).map_err(failed)? {
        tokio::time::sleep(PAUSE).await;
    }
    // The image's lock file is opened only after the shared lock is held, because a cleanup removes the images' lock
    // files.
    let image = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
    let mut waits = false;
    while !acquired(image.try_lock()).map_err(failed)? {
        if !waits {
            let line = "waiting for another start that is making it".to_owned();
            progress.report(Step { subject: subject.to_owned(), line, starts_stage: true });
        }
        waits = true;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(BuildLock { _all: all, _image: image })
}

/// Acquires the lock for removing leftovers of builds. Returns `None` while another process that uses this
/// `$BOTTLE_HOME` builds an image.
///
/// # Errors
/// When the directory that contains the lock files cannot be used.
pub fn lock_for_cleanup(host: &Host) -> io::Result<Option<File>> {
    let directory = directory(host);
    let all = open(&directory)?;
    if !acquired(all.try_lock())? {
        return Ok(None);
    }
    for entry in std::fs::read_dir(&directory)? {
        std::fs::remove_file(entry?.path())?;
    }
    Ok(Some(all))
}

fn directory(host: &Host) -> PathBuf {
    host.home.join("builds")
}

fn open(directory: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    File::open(directory)
}

fn acquired(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn a_build_blocks_other_builds_of_the_image_and_cleanups() {
        let directory = tempfile::tempdir().expect("directory");
        let host = Host::of_home(&directory.path().join("home"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let progress = ProgressSink::new(move |step: Step| sink.lock().expect("lock").push(step.line));
        let first = lock(&host, "a", "it", &progress).await.expect("begun");
        let other = lock(&host, "b", "it", &progress).await.expect("another image");
        assert!(lines.lock().expect("lock").is_empty());
        assert!(lock_for_cleanup(&host).expect("looked").is_none());
        let limit = Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, lock(&host, "a", "it", &progress)).await.is_err());
        assert_eq!(lines.lock().expect("lock").len(), 1, "it is said once");
        drop(first);
        drop(lock(&host, "a", "it", &progress).await.expect("its turn"));
        drop(other);
        let cleanup = lock_for_cleanup(&host).expect("looked").expect("nobody builds");
        assert_eq!(std::fs::read_dir(host.home.join("builds")).expect("directory").count(), 0);
        assert!(tokio::time::timeout(limit, lock(&host, "a", "it", &progress)).await.is_err());
        drop(cleanup);
        lock(&host, "a", "it", &progress).await.expect("its turn");
    }
}
