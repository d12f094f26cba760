//! Locates the records of the files that a bottle was given, in the bottle's state directory.

use std::io;
use std::path::{Path, PathBuf};

use bottle_repository::Given;
use sha2::{Digest, Sha256};

/// The name of the record of the workspace. In a workspace with several directories, the name of each record also
/// contains a hash of the directory's name.
const RECORD: &str = "given";

/// The record of the directory with this name in the workspace. With an empty name, the record of the workspace itself.
#[must_use]
pub fn record(state: &Path, name: &str) -> PathBuf {
    if name.is_empty() {
        state.join(RECORD)
    } else {
        state.join(format!("{RECORD}-{}", hex::encode(Sha256::digest(name))))
    }
}

/// Copies the records of a bottle for a bottle that was forked from it. `names` contains the names of the directories
/// in its workspace.
///
/// # Errors
/// When a record cannot be read or written.
pub fn copy<'a>(from: &Path, to: &Path, names: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    let all = std::iter::once("").chain(names);
    all.into_iter().try_for_each(|name| Given::copy(&record(from, name), &record(to, name)))
}
