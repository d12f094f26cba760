//! Lists the files of a workspace that differ from its base, and packs the content that these files have in the base.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use bottle_channel::Channel;
use bottle_repository::changes::Version as Entry;
use bottle_repository::{Blobs, Git};
use tar::{Builder, EntryType, Header};

use super::Work;
use super::scratch::FILES;
use super::workspace::LeftOut;
use crate::failure::Failure;

/// The maximum length of the target of a symlink in bytes, as in Linux.
const MAX_TARGET: u64 = 4096;

/// A file that differs from the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path, relative to the workspace.
    path: Vec<u8>,
    /// The file's mode and content in the base. `None` for a file that the base does not contain.
    before: Option<Entry>,
}

impl Change {
    /// The path, relative to the workspace.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Whether the file is not in the base.
    pub fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// The name of what a reset does with the file: `remove` or `restore`.
    pub fn action(&self) -> &'static str {
        if self.is_new() { "remove" } else { "restore" }
    }
}

impl Work<'_> {
    /// Imports the workspace's files, and lists the files that differ from the base, sorted by path.
    ///
    /// # Errors
    /// Returns an error if the import or git fails, or if too many files differ.
    pub async fn changes(&mut self, channel: &Channel) -> Result<(Vec<Change>, LeftOut), Failure> {
        let mut left_out = self.import(channel).await?;
        self.began.name_unknown(&mut left_out, &self.root);
        let before = self.began.start.raw(&self.scratch.listed(&self.base.tree).await?);
        let now = self.scratch.listed(&self.scratch.tree_of_reference(FILES).await?).await?;
        let paths: BTreeSet<&Vec<u8>> = before.keys().chain(now.keys()).collect();
        let is_known = |path: &Vec<u8>| !self.began.unknown.contains(path);
        let changed = paths.into_iter().filter(|path| is_known(path) && before.get(*path) != now.get(*path));
        let mut changes: Vec<Change> =
            changed.map(|path| Change { path: path.clone(), before: before.get(path).cloned() }).collect();
        if self.root.is_directory() {
            let directory = format!("{}/", self.root.name).into_bytes();
            changes.iter_mut().for_each(|change| change.path = [&directory, &change.path[..]].concat());
        }
        Ok((changes, left_out))
    }

    /// Returns a function that writes the changed files as an archive, with the content and mode that they have in the
    /// base. Files that the base does not contain are left out.
    pub fn restoring(
        &self,
        changes: &[Change],
    ) -> impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + use<> {
        let restored: Vec<(Vec<u8>, Entry)> =
            changes.iter().filter_map(|change| Some((change.path.clone(), change.before.clone()?))).collect();
        let git = self.scratch.store.git();
        move |out| pack(&git, &restored, out)
    }
}

/// Writes files of a repository as an archive.
fn pack(git: &Git, files: &[(Vec<u8>, Entry)], out: &mut dyn Write) -> io::Result<()> {
    let mut archive = Builder::new(out);
    let mut blobs = Blobs::start(git)?;
    // Build tools compare the modification times of files, so a restored file gets the current time.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    for (path, (mode, object)) in files {
        let path = Path::new(OsStr::from_bytes(path));
        let mut content = blobs.open(object)?;
        let mut header = Header::new_gnu();
        header.set_mtime(now);
        if mode == "120000" {
            if content.limit() > MAX_TARGET {
                return Err(io::Error::other(format!("the target of the symlink {path:?} is too long")));
            }
            let mut target = Vec::new();
            content.read_to_end(&mut target)?;
            header.set_entry_type(EntryType::Symlink);
            header.set_mode(0o777);
            header.set_size(0);
            archive.append_link(&mut header, path, Path::new(OsStr::from_bytes(&target)))?;
        } else {
            header.set_mode(if mode == "100755" { 0o755 } else { 0o644 });
            header.set_size(content.limit());
            archive.append_data(&mut header, path, &mut content)?;
        }
        blobs.close()?;
    }
    archive.finish()
}
