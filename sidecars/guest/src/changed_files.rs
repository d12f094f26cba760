//! Detects work in a folder, that is, entries that changed after a given time.
//!
//! The agent wrote the folder's contents. Therefore no symlink is followed, and only the change time
//! (`ctime`), which the agent cannot set, is considered.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::Timestamp;

/// Whether `folder` contains an entry that changed after `since`. Empty folders are ignored, because a file
/// that was created and removed is not work.
///
/// # Errors
/// Fails if a part of the folder cannot be read.
pub fn changed_since(folder: &Path, since: Timestamp) -> io::Result<bool> {
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        let changed = is_newer(&fs::symlink_metadata(&folder)?, since);
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            // The folder is not empty, so a change of the folder itself counts as work.
            if changed || is_newer(&entry.metadata()?, since) && !entry.file_type()?.is_dir() {
                return Ok(true);
            }
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Ok(false)
}

fn is_newer(metadata: &fs::Metadata, since: Timestamp) -> bool {
    let nanoseconds = i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
    nanoseconds > since.as_nanosecond()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_clock;

    #[tokio::test]
    async fn detects_existing_entries_that_are_newer() {
        let folder = tempfile::tempdir().expect("folder");
        fs::create_dir(folder.path().join("src")).expect("made");
        fs::write(folder.path().join("src/old"), "x").expect("written");
        let ready = file_clock::between().await;
        assert!(!changed_since(folder.path(), ready).expect("looked"));
        fs::create_dir(folder.path().join("src/empty")).expect("made");
        fs::remove_dir(folder.path().join("src/empty")).expect("removed");
        assert!(changed_since(folder.path(), ready).expect("looked"), "a folder that is not empty changed");

        let folder = tempfile::tempdir().expect("folder");
        let ready = file_clock::between().await;
        fs::write(folder.path().join("scratch"), "x").expect("written");
        assert!(changed_since(folder.path(), ready).expect("looked"));
        fs::remove_file(folder.path().join("scratch")).expect("removed");
        assert!(!changed_since(folder.path(), ready).expect("looked"), "nothing is left of it");
        assert!(changed_since(&folder.path().join("absent"), ready).is_err());
    }
}
