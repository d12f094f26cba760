//! Locates, in a bottle's state directory, the records of the files with which the bottle's agent began.

use std::io;
use std::path::{Path, PathBuf};

use bottle_repository::Given;
use sha2::{Digest, Sha256};

/// The name of the record of the workspace. If the workspace has several directories, each directory has its own
/// record, and the record's name also contains a hash of the directory's name.
const RECORD: &str = "given";

/// Returns the path of the record of the directory with this name in the workspace. If `name` is empty, returns the
/// path of the record of the workspace itself.
#[must_use]
pub fn record(state: &Path, name: &str) -> PathBuf {
    if name.is_empty() {
        state.join(RECORD)
    } else {
        state.join(format!("{RECORD}-{}", hex::encode(Sha256::digest(name))))
    }
}

/// Copies the records of a bottle into the state directory of its fork. `names` contains the names of the directories
/// in the workspace.
///
/// # Errors
/// Fails if a record cannot be read or written.
pub fn copy<'a>(from: &Path, to: &Path, names: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    let all = std::iter::once("").chain(names);
    all.into_iter().try_for_each(|name| Given::copy(&record(from, name), &record(to, name)))
}
