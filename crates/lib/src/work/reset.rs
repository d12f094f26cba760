//! Resets files of a workspace to their state at the start of the bottle.

use std::ffi::OsStr;
use std::path::PathBuf;

use bottle_channel::{Channel, Stream};
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{FileEvent, FilePath, FileRequest};
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};

use super::root::{compared, is_without_repository, require_copy};
use super::{Change, LeftOut, Root, Work};
use crate::connect::{guest_failure, keeper_lost, open_guest, unexpected_answer};
use crate::failure::{Failure, Kind};
use crate::notice::Notify;
use crate::report::{ComparedDirectory, FileEntryPath, ResetFile, ResetFiles};

/// The maximum number of paths in one request, and the maximum total size of these paths in bytes. In JSON, each byte
/// of a path takes at most six bytes, and the maximum size of a request is 1 MiB.
const MAX_PATHS: usize = 1000;
const MAX_PATH_BYTES: usize = 128 << 10;

/// The files of a bottle's workspace that differ from their state at the start of the bottle.
pub struct Differences<'a> {
    slug: Slug,
    /// The files of each root that differ.
    pub roots: Vec<RootDifferences<'a>>,
}

/// The files of one root that differ from their state at the start of the bottle.
pub struct RootDifferences<'a> {
    /// The work of the bottle.
    pub work: Work<'a>,
    /// The files that differ.
    pub changes: Vec<Change>,
    /// The files that were not compared.
    pub left_out: LeftOut,
}

/// Refuses a bottle whose workspace is a directory of the user.
///
/// # Errors
/// When the workspace is a directory of the user.
pub fn require_copy_to_reset(record: &Record) -> Result<(), Failure> {
    let slug = &record.slug;
    let instead = format!("`bottle diff {slug}` shows the changes; `git` in the directory puts files back");
    require_copy(record, &format!("reset {slug}"), instead)
}

/// Converts a path that the user wrote to a path relative to the workspace.
///
/// # Errors
/// When the path is outside of the workspace.
pub fn in_workspace(path: &OsStr) -> Result<PathBuf, Failure> {
    FilePath::from(path).in_workspace().ok_or_else(|| {
        Failure::usage(format!("cannot reset {path:?}: it is outside the workspace"))
            .about("PATH")
            .hint("write it from the workspace on, or with `/workspace`")
    })
}

/// Keeps only the roots that contain one of these paths. If `paths` is empty, keeps all roots.
pub fn retain_roots(roots: &mut Vec<Root>, paths: &[PathBuf]) {
    if paths.is_empty() {
        return;
    }
    let is_named = |path: &PathBuf, root: &Root| path.starts_with(&root.name) || path.as_os_str().is_empty();
    roots.retain(|root| paths.iter().any(|path| is_named(path, root)));
}

impl<'a> Differences<'a> {
    /// Finds the files in these roots that differ from their state at the start of the bottle.
    ///
    /// # Errors
    /// When a root cannot be compared. A root without a repository is left out with a warning, if another root can be
    /// compared.
    pub async fn find(
        host: &'a Host,
        slug: &Slug,
        channel: &Channel,
        roots: Vec<Root>,
        notify: Notify<'_>,
    ) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for root in roots {
            all.push(find_in(host, &root, channel, notify).await.map_err(|error| (root, error)));
        }
        let roots = compared(all, is_without_repository, notify)?;
        Ok(Self { slug: slug.clone(), roots })
    }

    /// Returns the files that differ.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.roots.iter().flat_map(|root| &root.changes)
    }

    /// Keeps only the files at or below these paths. If `paths` is empty, keeps all files. Returns the paths that match
    /// no file, because the user may have misspelled them.
    pub fn select<'p>(&mut self, paths: &'p [PathBuf]) -> Vec<&'p PathBuf> {
        if paths.is_empty() {
            return Vec::new();
        }
        let has_changes = |path: &PathBuf| self.changes().any(|change| change.path().starts_with(path));
        let unchanged = paths.iter().filter(|path| !has_changes(path)).collect();
        for RootDifferences { changes, .. } in &mut self.roots {
            changes.retain(|change| paths.iter().any(|path| change.path().starts_with(path)));
        }
        unchanged
    }

    /// Removes the files that were created since the start, and restores all other files. `channel` must allow writes.
    ///
    /// # Errors
    /// When a file cannot be removed or restored. Some files may already be reset.
    pub async fn reset(&self, channel: &Channel) -> Result<(), Failure> {
        for RootDifferences { work, changes, .. } in &self.roots {
            self.reset_root(channel, work, changes).await?;
        }
        Ok(())
    }

    async fn reset_root(
        &self,
        channel: &Channel,
        work: &Work<'_>,
        changes: &[Change],
    ) -> Result<(), Failure> {
        // A new file can have the path of a directory that is restored, so new files are removed first.
        for paths in parts(changes.iter().filter(|change| change.is_new())) {
            let stream = open_guest(channel, GuestRequest::Files(FileRequest::RemoveFiles { paths })).await?;
            self.answer(stream).await?;
        }
        if changes.iter().any(|change| !change.is_new()) {
            let stream =
                open_guest(channel, GuestRequest::Files(FileRequest::Import { path: FilePath::from(".") }))
                    .await?;
            let sent = bottle_archive::send(&stream, work.restoring(changes)).await;
            sent.map_err(|error| Failure::from_error(Kind::Failed, &error).hint(self.continues()))?;
            self.answer(stream).await?;
        }
        Ok(())
    }

    async fn answer(&self, mut stream: Stream) -> Result<(), Failure> {
        match stream.receive::<GuestEvent>().await.map_err(keeper_lost)? {
            GuestEvent::Files(FileEvent::Removed { .. } | FileEvent::Imported { .. }) => Ok(()),
            GuestEvent::Failed(failure) => {
                let error = guest_failure(failure);
                Err(error
                    .reworded(|message| format!("cannot reset all files: {message}"))
                    .hint(format!("`bottle fs reset {}` resets the whole workspace", self.slug)))
            }
            _ => Err(unexpected_answer()),
        }
    }

    fn continues(&self) -> String {
        format!("`bottle fs reset {}` continues", self.slug)
    }

    /// Returns the output document about the files. `applied` says whether the files were reset.
    pub fn document(&self, applied: bool) -> ResetFiles {
        let base = |work: &Work<'_>| work.base.commit.as_ref().map(|base| base.as_str().to_owned());
        let roots = self.roots.iter().filter(|found| found.work.root.is_directory());
        let directory =
            |work: &Work<'_>| ComparedDirectory { name: work.root.name.clone(), base: base(work) };
        let directories: Vec<_> = roots.map(|found| directory(&found.work)).collect();
        let base = self.roots.first().filter(|_| directories.is_empty()).and_then(|found| base(&found.work));
        let files = self.changes().map(|change| ResetFile {
            path: FileEntryPath::of(&FilePath::from(change.path())),
            action: change.action(),
        });
        let (slug, files) = (self.slug.to_string(), files.collect());
        ResetFiles { slug, base, directories, files, applied }
    }
}

/// Finds the files of one root that differ from their state at the start of the bottle.
async fn find_in<'a>(
    host: &'a Host,
    root: &Root,
    channel: &Channel,
    notify: Notify<'_>,
) -> Result<RootDifferences<'a>, Failure> {
    let mut work = Work::open(host, root.clone(), channel, notify).await?;
    if root.is_copy && work.lacks_directory().await? {
        let slug = &root.slug;
        return Err(Failure::state(format!(
            "cannot reset {slug}: {} is in no commit, so its files at the start are unknown",
            root.directory.display()
        ))
        .hint(format!("`bottle diff {slug}` shows its files; `bottle fs rm {slug} PATH` removes one")));
    }
    let (changes, left_out) = work.changes(channel).await?;
    Ok(RootDifferences { work, changes, left_out })
}

/// Splits the paths of these changes into lists that each fit into one request.
fn parts<'a>(changes: impl Iterator<Item = &'a Change>) -> Vec<Vec<FilePath>> {
    let mut parts: Vec<Vec<FilePath>> = Vec::new();
    let mut bytes = 0;
    for change in changes {
        let path = FilePath::from(change.path());
        bytes += path.as_bytes().len();
        match parts.last_mut() {
            Some(part) if part.len() < MAX_PATHS && bytes <= MAX_PATH_BYTES => part.push(path),
            _ => {
                bytes = path.as_bytes().len();
                parts.push(vec![path]);
            }
        }
    }
    parts
}
