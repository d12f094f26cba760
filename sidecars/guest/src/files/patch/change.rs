//! Checks the changes of a patch. Then writes either all changes or none.

use std::io::{self, Read, Write};

use bottle_protocol::session::files::{FileChange, FileEvent, PATCHED_FILE_MAX, PatchedFile, Replace};
use bottle_protocol::session::guest::Failure;
use rustix::fs::{AtFlags, Stat, unlinkat};
use rustix::io::Errno;

use super::super::answer_size::AnswerSize;
use super::super::bounds::Bounds;
use super::super::workspace::{MadeDirectories, Parent, Place, Workspace, cannot, number};
use super::super::write::{NEW_MODE, Staged, sync};
use super::hunks::{FileDiff, Operation};
use super::replace::replace;
use crate::failure::{Outcome, other};

/// The maximum total size in bytes of the files in a patch, before and after the patch together. The contents of all
/// these files are kept in memory.
const TOTAL_MAX: u64 = 64 << 20;

/// The changes of a patch.
pub(super) struct Changes<'a> {
    workspace: &'a Workspace,
    all: Vec<Change>,
    bytes: u64,
    size: AnswerSize,
}

/// A checked change to one file. `before` is the state of the file at the time of the check.
struct Change {
    place: Place,
    before: Option<Before>,
    after: Option<Vec<u8>>,
    mode: u32,
    places: u64,
}

/// The state of a file before the change.
struct Before {
    content: Vec<u8>,
    version: Version,
}

/// The metadata by which a changed or replaced file is detected.
#[derive(PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl Version {
    fn of(stat: &Stat) -> Self {
        Self {
            file: (number(stat.st_dev), number(stat.st_ino)),
            size: number(stat.st_size),
            changed: (number(stat.st_ctime), number(stat.st_ctime_nsec)),
        }
    }
}

impl<'a> Changes<'a> {
    pub(super) fn new(workspace: &'a Workspace) -> Self {
        Self { workspace, all: Vec::new(), bytes: 0, size: AnswerSize::default() }
    }

    /// Adds the part of a diff about one file.
    pub(super) fn add_diff(&mut self, diff: &FileDiff<'_>, bounds: &Bounds) -> Outcome<()> {
        bounds.check()?;
        let place = Place::new(&diff.path)?;
        let places = diff.places();
        let refused = |why: &str| cannot("patch", place.as_path(), &io::Error::other(why));
        if let Operation::Create { executable } = diff.operation {
            self.check_absent(&place)?;
            let mode = if executable { NEW_MODE | 0o111 } else { NEW_MODE };
            let after = Some(diff.apply(b"", bounds)?);
            return self.add(Change { place, before: None, after, mode, places });
        }
        let (before, mode) = self.read(&place)?;
        let after = diff.apply(&before.content, bounds)?;
        let deletes = diff.operation == Operation::Delete;
        if deletes && !after.is_empty() {
            return Err(refused("the diff removes it, but not all of its content"));
        }
        let after = (!deletes).then_some(after);
        self.add(Change { place, before: Some(before), after, mode, places })
    }

    /// Adds the replacement of a text.
    pub(super) fn add_replacement(&mut self, place: Place, request: &Replace) -> Outcome<()> {
        let (before, mode) = self.read(&place)?;
        let (search, replacement) = (request.search.as_bytes(), request.replacement.as_bytes());
        let replaced = replace(&before.content, search, replacement, request.all);
        let (after, places) =
            replaced.map_err(|why| cannot("patch", place.as_path(), &io::Error::other(why)))?;
        self.add(Change { place, before: Some(before), after: Some(after), mode, places })
    }

    fn add(&mut self, change: Change) -> Outcome<()> {
        let path = change.place.as_path();
        if self.all.iter().any(|other| other.place == change.place) {
            return Err(cannot("patch", path, &io::Error::other("the diff has it more than once")));
        }
        let (before, after) = (change.before.as_ref().map(|before| &before.content), change.after.as_ref());
        self.bytes += before.map_or(0, Vec::len) as u64 + after.map_or(0, Vec::len) as u64;
        if self.bytes > TOTAL_MAX || !self.size.add(&[change.place.to_file_path().as_bytes()]) {
            return Err(other(format!("the files of the patch are larger than {} MiB", TOTAL_MAX >> 20)));
        }
        self.all.push(change);
        Ok(())
    }

    fn check_absent(&self, place: &Place) -> Outcome<()> {
        let found = match self.workspace.parent(place) {
            Ok(parent) => parent.entry().map(|entry| entry.is_some()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        let checked = found.and_then(|found| {
            if found { Err(io::Error::other("the diff creates it, but it exists")) } else { Ok(()) }
        });
        checked.map_err(|error| cannot("patch", place.as_path(), &error))
    }

    fn read(&self, place: &Place) -> Outcome<(Before, u32)> {
        let read = self.workspace.parent(place).and_then(|parent| {
            let (file, stat) = parent.file()?;
            let mut content = Vec::new();
            file.take(PATCHED_FILE_MAX + 1).read_to_end(&mut content)?;
            if content.len() as u64 > PATCHED_FILE_MAX {
                let why = format!("it is larger than {} MiB", PATCHED_FILE_MAX >> 20);
                return Err(io::Error::other(why));
            }
            Ok((Before { content, version: Version::of(&stat) }, stat.st_mode & 0o777))
        });
        read.map_err(|error| cannot("patch", place.as_path(), &error))
    }

    /// Makes all changes. If `check` is true, changes nothing and only returns the result.
    pub(super) fn carry_out(self, check: bool) -> Outcome<FileEvent> {
        if !check {
            self.write()?;
        }
        let patched = |change: &Change| PatchedFile {
            path: change.place.to_file_path(),
            change: change.kind(),
            places: change.places,
        };
        Ok(FileEvent::Patched { files: self.all.iter().map(patched).collect() })
    }

    fn write(&self) -> Outcome<()> {
        let mut made = MadeDirectories::default();
        // Most failures, such as a full disk, happen in this step, before any file has changed.
        let staged: Outcome<Vec<Ready>> =
            self.all.iter().map(|change| change.stage(self.workspace, &mut made)).collect();
        let mut done: Vec<(&Change, &Parent)> = Vec::new();
        let mut staged = staged?;
        for (change, ready) in self.all.iter().zip(&mut staged) {
            match change.put_in_place(ready) {
                Ok(()) => done.push((change, ready.parent())),
                Err(error) => return Err(restore(change, &error, &done)),
            }
        }
        made.keep();
        Ok(())
    }
}

/// A prepared change. Only the final rename or removal is missing.
enum Ready {
    Write(Staged),
    Remove(Parent),
}

impl Ready {
    fn parent(&self) -> &Parent {
        match self {
            Self::Write(staged) => staged.target(),
            Self::Remove(parent) => parent,
        }
    }
}

impl Change {
    fn kind(&self) -> FileChange {
        match (&self.before, &self.after) {
            (None, _) => FileChange::Created,
            (Some(_), Some(_)) => FileChange::Changed,
            (Some(_), None) => FileChange::Deleted,
        }
    }

    fn stage(&self, workspace: &Workspace, made: &mut MadeDirectories) -> Outcome<Ready> {
        let staged = match &self.after {
            Some(content) => workspace
                .make_parent(&self.place, made)
                .and_then(|parent| stage(parent, content, self.mode))
                .map(Ready::Write),
            None => workspace.parent(&self.place).map(Ready::Remove),
        };
        staged.map_err(|error| cannot("patch", self.place.as_path(), &error))
    }

    fn put_in_place(&self, ready: &mut Ready) -> io::Result<()> {
        let now = ready.parent().entry()?.as_ref().map(Version::of);
        if now.as_ref() != self.before.as_ref().map(|before| &before.version) {
            return Err(io::Error::other("it was changed meanwhile"));
        }
        match ready {
            Ready::Write(staged) => staged.put_in_place(self.before.is_some()),
            Ready::Remove(parent) => {
                unlinkat(&parent.directory, &parent.name, AtFlags::empty())?;
                sync(&parent.directory);
                Ok(())
            }
        }
    }

    /// Restores the previous state of a file.
    fn undo(&self, parent: &Parent) -> io::Result<()> {
        let Some(before) = &self.before else {
            return match unlinkat(&parent.directory, &parent.name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            };
        };
        let target = Parent { directory: parent.directory.try_clone()?, name: parent.name.clone() };
        stage(target, &before.content, self.mode)?.put_in_place(true)
    }
}

fn stage(parent: Parent, content: &[u8], mode: u32) -> io::Result<Staged> {
    let mut staged = Staged::create(parent)?;
    staged.file.write_all(content)?;
    staged.finish(mode)?;
    Ok(staged)
}

/// Restores the files that were changed before an error. Returns the failure to report.
fn restore(failed: &Change, error: &io::Error, done: &[(&Change, &Parent)]) -> Failure {
    let mut failure = cannot("patch", failed.place.as_path(), error);
    for (change, parent) in done.iter().rev() {
        if let Err(error) = change.undo(parent) {
            let path = change.place.as_path();
            failure.message.push_str(&format!("; {path:?} stays changed: {error}"));
        }
    }
    failure
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::bounds::TIME;
    use super::super::hunks;
    use super::*;

    const DIFF: &str = "--- a/changed\n+++ b/changed\n@@ -1 +1 @@\n-old\n+new\n\
                        --- /dev/null\n+++ b/x/made\n@@ -0,0 +1 @@\n+made\n\
                        --- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
                        --- a/last\n+++ b/last\n@@ -1 +1 @@\n-old\n+new\n";

    #[test]
    fn an_error_halfway_restores_the_files_before_it() {
        let root = tempfile::tempdir().expect("root");
        let top = root.path().join("workspace");
        fs::create_dir(&top).expect("workspace");
        for (name, content) in [("changed", "old\n"), ("gone", "gone\n"), ("last", "old\n")] {
            fs::write(top.join(name), content).expect("written");
        }
        let workspace = Workspace::open(root.path()).expect("workspace");
        let (bounds, _client) = Bounds::new(TIME);
        let mut changes = Changes::new(&workspace);
        for file in hunks::parse(DIFF.as_bytes()).expect("parsed") {
            changes.add_diff(&file, &bounds).expect("fits");
        }
        // The agent replaces the last file after the check.
        fs::remove_file(top.join("last")).expect("removed");
        fs::create_dir(top.join("last")).expect("made");
        let failure = changes.carry_out(false).expect_err("the last change fails");
        assert!(failure.message.contains("\"last\": it was changed meanwhile"), "{failure:?}");
        let get = |name: &str| fs::read_to_string(top.join(name)).expect("content");
        assert_eq!((get("changed"), get("gone")), ("old\n".to_owned(), "gone\n".to_owned()));
        assert_eq!(
            fs::read_dir(&top).expect("directory").count(),
            3,
            "neither `x` nor a temporary file stays"
        );
    }
}
