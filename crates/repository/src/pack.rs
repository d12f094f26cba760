//! Adds a pack to a repository.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::directory::Directory;
use crate::id::ObjectId;

/// The mode of a pack, as in git.
const MODE: u32 = 0o444;

/// A new pack that is not in any repository yet, and its index.
#[derive(Debug)]
pub struct NewPack {
    id: ObjectId,
    pack: File,
    index: File,
}

impl NewPack {
    pub(crate) fn new(id: ObjectId, pack: File, index: File) -> Self {
        Self { id, pack, index }
    }

    /// Returns the names of the pack's files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        ["pack", "idx"].map(|kind| format!("pack-{}.{kind}", self.id)).to_vec()
    }

    /// Adds the pack to the directory of a repository's objects. Git uses the pack only when its index exists, so an
    /// interrupted call leaves only files that git removes later.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn add_to(&mut self, objects: &Directory) -> io::Result<()> {
        let directory = objects.directory_or_new(Path::new("pack"))?;
        for (file, kind) in [(&mut self.pack, "pack"), (&mut self.index, "idx")] {
            let name = temporary(kind);
            // The beginning of the name tells git that it may remove the file when the file is old.
            let mut new = directory.create(&name, MODE)?;
            new.copy_from(file)?;
            new.rename(&OsString::from(format!("pack-{}.{kind}", self.id)))?;
        }
        Ok(())
    }
}

/// Creates a file name that no other process uses at this time.
fn temporary(kind: &str) -> OsString {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    format!("tmp_{kind}_bottle-{process}-{number}").into()
}
