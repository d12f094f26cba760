//! One making of an image at a time, in a home: another start waits for it and takes what came of it.
//!
//! ```text
//! $BOTTLE_HOME/builds/         held by everyone who makes an image, together; by who sweeps, alone
//! $BOTTLE_HOME/builds/<image>  held by who makes that image
//! ```
//! The kernel lets go of both when their process ends, however it ends.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backend::{BackendError, ProgressSink, Step};
use crate::host::Host;

/// Between two looks at a lock that another process holds.
const PAUSE: Duration = Duration::from_millis(50);

/// The right to make one image; given back when dropped.
#[derive(Debug)]
pub(crate) struct Building {
    _all: File,
    _image: File,
}

/// Waits until nobody else of this home makes the image of this hash. `of` names it in what is told.
///
/// # Errors
/// [`BackendError`] when the folder of the locks cannot be used.
pub(crate) async fn begin(
    host: &Host,
    hash: &str,
    of: &str,
    told: &ProgressSink<Step>,
) -> Result<Building, BackendError> {
    let folder = folder(host);
    let path = folder.join(hash);
    let failed = |error: io::Error| BackendError::failed(format!("cannot lock {}: {error}", path.display()));
    let all = open(&folder).map_err(failed)?;
    while !taken(all.try_lock_shared()).map_err(failed)? {
        tokio::time::sleep(PAUSE).await;
    }
    // Opened only now: who sweeps removes these files.
    let image = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
    let mut waits = false;
    while !taken(image.try_lock()).map_err(failed)? {
        if !waits {
            let line = "another start is making it, and this one waits for that".to_owned();
            told.tell(Step { of: of.to_owned(), line, begins: true });
        }
        waits = true;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Building { _all: all, _image: image })
}

/// The right to remove what builds of this home left; `None` while one of them goes on.
///
/// # Errors
/// When the folder of the locks cannot be used.
pub(crate) fn none_goes_on(host: &Host) -> io::Result<Option<File>> {
    let folder = folder(host);
    let all = open(&folder)?;
    if !taken(all.try_lock())? {
        return Ok(None);
    }
    for entry in std::fs::read_dir(&folder)? {
        std::fs::remove_file(entry?.path())?;
    }
    Ok(Some(all))
}

fn folder(host: &Host) -> PathBuf {
    host.home.join("builds")
}

fn open(folder: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    File::open(folder)
}

fn taken(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn one_makes_it_the_other_waits_and_nobody_sweeps_meanwhile() {
        let folder = tempfile::tempdir().expect("folder");
        let host = Host {
            env: BTreeMap::new(),
            cwd: "/".into(),
            home: folder.path().join("home"),
            user_home: "/nonexistent".into(),
            runtime: "/nonexistent".into(),
            program: "/nonexistent".into(),
        };
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = heard.clone();
        let told = ProgressSink::new(move |step: Step| hearing.lock().expect("lock").push(step.line));
        let first = begin(&host, "a", "it", &told).await.expect("begun");
        let other = begin(&host, "b", "it", &told).await.expect("another image");
        assert!(heard.lock().expect("lock").is_empty());
        assert!(none_goes_on(&host).expect("looked").is_none());
        let limit = Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, begin(&host, "a", "it", &told)).await.is_err());
        assert_eq!(heard.lock().expect("lock").len(), 1, "it is said once");
        drop(first);
        drop(begin(&host, "a", "it", &told).await.expect("its turn"));
        drop(other);
        let sweeping = none_goes_on(&host).expect("looked").expect("nobody builds");
        assert_eq!(std::fs::read_dir(host.home.join("builds")).expect("folder").count(), 0);
        assert!(tokio::time::timeout(limit, begin(&host, "a", "it", &told)).await.is_err());
        drop(sweeping);
        begin(&host, "a", "it", &told).await.expect("its turn");
    }
}
