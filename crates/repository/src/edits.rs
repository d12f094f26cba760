//! Changes files beneath a directory that other processes may change at the same time. Either all files are changed, or
//! none.
//!
//! All accesses go through descriptors and follow no link, so no file outside of the directory changes. A file is
//! replaced atomically by a new file with the same permissions. A file that differs from the version that the edit
//! expects is not replaced.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, Stat};
use rustix::io::Errno;

use crate::blobs::Blobs;
use crate::{Directory, FileId, KeptPermissions};

/// The maximum depth of empty directories that are removed to make room for a file.
const MAX_EMPTY_LEVELS: usize = 128;

/// The number of bytes that are compared in one step.
const COMPARED: usize = 64 << 10;

/// The type of a file, as git stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileMode {
    /// A regular file, which has mode 100644.
    Regular,
    /// An executable file, which has mode 100755.
    Executable,
    /// Mode 120000. The content of the file is the target of the link.
    Link,
}

impl FileMode {
    /// Returns the type with this mode in a git tree. `None` for a directory or a submodule.
    #[must_use]
    pub fn parse(mode: &str) -> Option<Self> {
        match mode {
            "100644" => Some(Self::Regular),
            "100755" => Some(Self::Executable),
            "120000" => Some(Self::Link),
            _ => None,
        }
    }

    /// Returns the type of an entry of a directory. `None` if git does not store such entries.
    fn of(status: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Symlink => Some(Self::Link),
            FileType::RegularFile if status.st_mode & 0o100 != 0 => Some(Self::Executable),
            FileType::RegularFile => Some(Self::Regular),
            _ => None,
        }
    }
}

/// A file whose content is an object of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// The type of the file.
    pub mode: FileMode,
    /// The object id of the file's content.
    pub object: String,
}

/// The change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The path beneath the directory.
    pub path: PathBuf,
    /// The file that is expected at this path. `None` if no file may exist.
    pub before: Option<StoredFile>,
    /// The new file. `None` if the file is deleted.
    pub after: Option<StoredFile>,
}

impl Edit {
    fn reversed(&self) -> Self {
        Self { path: self.path.clone(), before: self.after.clone(), after: self.before.clone() }
    }
}

/// A set of changes of files.
#[derive(Debug, Default)]
pub struct Edits {
    /// The edits, sorted by path.
    list: Vec<Edit>,
    /// The old path of each renamed file. The key is the new path.
    renamed: BTreeMap<PathBuf, PathBuf>,
}

/// Why files were not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file is not in the state that the edit expects.
    #[error("{} has changed in the meantime", .0.display())]
    Changed(PathBuf),
    /// A directory in the path is a file or a link, or a directory with files has the path of the file.
    #[error("something else is in the place of {}", .0.display())]
    Occupied(PathBuf),
    /// A system call failed.
    #[error("cannot change {}: {error}", path.display())]
    System {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
    /// A file could not be changed, and another file that was already changed could not be changed back.
    #[error("{error}; {} was changed already, and could not be changed back: {undo}", path.display())]
    NotUndone {
        /// The error because of which the changes had to be undone.
        error: Box<EditError>,
        /// The path of a file that was changed.
        path: PathBuf,
        /// Why this file could not be changed back.
        undo: Box<EditError>,
    },
}

impl EditError {
    /// Whether all files are unchanged after this error.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        !matches!(self, Self::NotUndone { .. })
    }
}

impl Edits {
    /// Creates the set from edits with different paths. `renamed` contains the old and the new path of each file that
    /// keeps its permissions at its new path.
    #[must_use]
    pub fn new(mut list: Vec<Edit>, renamed: impl IntoIterator<Item = (PathBuf, PathBuf)>) -> Self {
        list.sort_by(|one, other| one.path.cmp(&other.path));
        Self { list, renamed: renamed.into_iter().map(|(old, new)| (new, old)).collect() }
    }

    /// Returns the changed paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.list.iter().map(|edit| edit.path.as_path())
    }

    /// Returns the edits that undo these edits.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let renamed = self.renamed.iter().map(|(new, old)| (old.clone(), new.clone())).collect();
        Self { list: self.list.iter().map(Edit::reversed).collect(), renamed }
    }

    /// Checks that all files are in the state that the edits expect. Changes nothing.
    ///
    /// # Errors
    /// Returns [`EditError::Changed`], [`EditError::Occupied`] or [`EditError::System`].
    pub fn check(&self, directory: &Directory, blobs: &mut Blobs) -> Result<(), EditError> {
        self.checked(directory, blobs).map(drop)
    }

    /// Changes all files. A new file gets the permissions of the file that it replaces, or of the file from which it
    /// was renamed.
    ///
    /// # Errors
    /// Returns an [`EditError`] of any kind. No file is then changed, except after [`EditError::NotUndone`].
    pub fn apply(&self, directory: &Directory, blobs: &mut Blobs) -> Result<(), EditError> {
        let found = self.checked(directory, blobs)?;
        let paths: Vec<PathBuf> = self.paths().map(Path::to_owned).collect();
        let kept = KeptPermissions::read(directory, &paths, self.renamed.clone())
            .map_err(|error| EditError::System { path: directory.path().to_owned(), error })?;
        let mut room = Room { directory, blobs, kept: &kept };
        // Deletions come before writes, because a deleted file can become a directory, and a directory can become a
        // file. The files in a directory are deleted before a file at the path of this directory is written.
        let deletions = self.list.iter().rev().filter(|edit| edit.after.is_none());
        let writes = self.list.iter().filter(|edit| edit.after.is_some());
        let mut done: Vec<&Edit> = Vec::new();
        for edit in deletions.chain(writes) {
            if let Err(error) = room.edit(edit, found.get(edit.path.as_path())) {
                return Err(room.undo(&done, error));
            }
            done.push(edit);
        }
        kept.restore_directories(directory)
            .map_err(|error| EditError::System { path: directory.path().to_owned(), error })
            .map_err(|error| room.undo(&done, error))
    }

    /// Checks the files that the edits expect, and returns the status of each file.
    fn checked(&self, directory: &Directory, blobs: &mut Blobs) -> Result<HashMap<&Path, Stat>, EditError> {
        let mut found = HashMap::new();
        let mut deleted: HashSet<FileId> = HashSet::new();
        for edit in &self.list {
            let Some(before) = &edit.before else { continue };
            let status = as_expected(directory, &edit.path, before, blobs)?;
            if edit.after.is_none() {
                deleted.insert(FileId::of(&status));
            }
            found.insert(edit.path.as_path(), status);
        }
        for edit in self.list.iter().filter(|edit| edit.before.is_none()) {
            check_free(directory, &edit.path, &deleted)?;
        }
        Ok(found)
    }
}

/// Checks that the file at a path equals the stored file, and returns its status.
fn as_expected(
    directory: &Directory,
    path: &Path,
    expected: &StoredFile,
    blobs: &mut Blobs,
) -> Result<Stat, EditError> {
    let changed = || EditError::Changed(path.to_owned());
    let failed = |error: io::Error| EditError::System { path: path.to_owned(), error };
    let status = stat(directory, path).map_err(failed)?.ok_or_else(changed)?;
    if FileMode::of(&status) != Some(expected.mode) {
        return Err(changed());
    }
    let mut content = blobs.open(&expected.object).map_err(failed)?;
    let is_equal = match expected.mode {
        FileMode::Link => {
            let target = target(directory, path).map_err(failed)?;
            is_equal(&mut { target.as_os_str().as_bytes() }, &mut content)
        }
        _ => match directory.file(path).map_err(|error| failed(io::Error::other(error)))? {
            Some(mut file) => is_equal(&mut file, &mut content),
            None => Ok(false),
        },
    };
    // The rest of the content belongs to the response for this object, so it is read too.
    io::copy(&mut content, &mut io::sink()).and_then(|_| blobs.close()).map_err(failed)?;
    if is_equal.map_err(failed)? { Ok(status) } else { Err(changed()) }
}

/// Checks that no file exists at a path, or that the deletions remove it.
fn check_free(directory: &Directory, path: &Path, deleted: &HashSet<FileId>) -> Result<(), EditError> {
    let failed = |error: io::Error| EditError::System { path: path.to_owned(), error };
    let mut place = PathBuf::new();
    for name in path {
        place.push(name);
        let Some(found) = stat(directory, &place).map_err(failed)? else { return Ok(()) };
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        if !is_directory && deleted.contains(&FileId::of(&found)) {
            return Ok(());
        }
        if !is_directory {
            return Err(match place == path {
                true => EditError::Changed(place),
                false => EditError::Occupied(path.to_owned()),
            });
        }
    }
    // If the path is a directory, the directory is removed later, provided that it is then empty.
    Ok(())
}

/// Returns the status of a path, without following a link. `None` if the path does not exist.
fn stat(directory: &Directory, path: &Path) -> io::Result<Option<Stat>> {
    match directory.stat(path) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => Ok(None),
        found => found,
    }
}

fn target(directory: &Directory, path: &Path) -> io::Result<PathBuf> {
    let (parent, name) = split(path)?;
    let parent = directory.directory(parent)?.ok_or(io::ErrorKind::NotFound)?;
    Ok(parent.link(Path::new(name))?.unwrap_or_default())
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    Ok(path.parent().zip(path.file_name()).ok_or(Errno::INVAL)?)
}

/// Whether two contents have the same bytes.
fn is_equal(one: &mut impl Read, other: &mut impl Read) -> io::Result<bool> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    loop {
        first.clear();
        second.clear();
        one.take(COMPARED as u64).read_to_end(&mut first)?;
        other.take(COMPARED as u64).read_to_end(&mut second)?;
        if first != second {
            return Ok(false);
        }
        if first.is_empty() {
            return Ok(true);
        }
    }
}

/// The parameters of all changes.
struct Room<'a> {
    directory: &'a Directory,
    blobs: &'a mut Blobs,
    kept: &'a KeptPermissions,
}

impl Room<'_> {
    /// Undoes the edits `done` after the error `error`.
    fn undo(&mut self, done: &[&Edit], error: EditError) -> EditError {
        let done: Vec<Edit> = done.iter().copied().map(Edit::reversed).collect();
        // New files are deleted before old files are written, because a new file can block the path of a deleted old
        // file.
        let (deletions, writes): (Vec<&Edit>, Vec<&Edit>) =
            done.iter().partition(|edit| edit.after.is_none());
        for edit in deletions.into_iter().rev().chain(writes) {
            let undone = match &edit.before {
                Some(before) => as_expected(self.directory, &edit.path, before, self.blobs)
                    .and_then(|status| self.edit(edit, Some(&status))),
                None => self.edit(edit, None),
            };
            if let Err(undo) = undone {
                return EditError::NotUndone {
                    error: error.into(),
                    path: edit.path.clone(),
                    undo: undo.into(),
                };
            }
        }
        match self.kept.restore_directories(self.directory) {
            Ok(()) => error,
            Err(undo) => {
                let path = self.directory.path().to_owned();
                let undo = EditError::System { path: path.clone(), error: undo }.into();
                EditError::NotUndone { error: error.into(), path, undo }
            }
        }
    }

    /// Changes one file. `found` is the status that the file had when its content was checked.
    fn edit(&mut self, edit: &Edit, found: Option<&Stat>) -> Result<(), EditError> {
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOTDIR | Errno::LOOP | Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY) => {
                EditError::Occupied(edit.path.clone())
            }
            _ => EditError::System { path: edit.path.clone(), error },
        };
        let (parent, name) = split(&edit.path).map_err(failed)?;
        let Some(after) = &edit.after else {
            let parent = self.directory.directory(parent).map_err(failed)?;
            let parent = parent.ok_or_else(|| EditError::Changed(edit.path.clone()))?;
            require_same(&parent, name, found, &edit.path)?;
            parent.remove_file(name).map_err(failed)?;
            return remove_empty_parents(self.directory, &edit.path).map_err(failed);
        };
        let parent = make_directory(self.directory, parent).map_err(failed)?;
        let new = self.write(&parent, &edit.path, after).map_err(failed)?;
        let placed = require_same(&parent, name, found, &edit.path)
            .and_then(|()| place(&parent, &new, name, found.is_some()).map_err(failed));
        if placed.is_err() {
            // If the removal fails too, only the first error is reported.
            let _ = parent.remove_file(&new);
        }
        placed
    }

    /// Writes a file next to its final path, and returns its temporary name.
    fn write(&mut self, parent: &Directory, path: &Path, file: &StoredFile) -> io::Result<OsString> {
        let new = OsString::from(format!(".bottle-{:016x}", rand::random::<u64>()));
        let mut content = self.blobs.open(&file.object)?;
        if file.mode == FileMode::Link {
            let mut target = Vec::new();
            content.read_to_end(&mut target)?;
            self.blobs.close()?;
            parent.new_link(&new, Path::new(OsStr::from_bytes(&target)))?;
            return Ok(new);
        }
        let kept = self.kept.of_file(path);
        // A file that replaces another file is first accessible only to its owner, and then gets the old permissions.
        // The content of a private file is therefore never readable by others. For a new file, the user's umask
        // decides, as in git.
        let mode = match (kept.is_some(), file.mode) {
            (true, FileMode::Executable) => 0o700,
            (true, _) => 0o600,
            (false, FileMode::Executable) => 0o777,
            (false, _) => 0o666,
        };
        let mut written = parent.new_file_with(&new, Mode::from_raw_mode(mode))?;
        let all = io::copy(&mut content, &mut written).and_then(|_| self.blobs.close());
        let all =
            all.and_then(|()| written.flush()).and_then(|()| kept.map_or(Ok(()), |kept| kept.give(&written)));
        if all.is_err() {
            let _ = parent.remove_file(&new);
        }
        all.map(|()| new)
    }
}

/// Fails unless the entry is the file whose content was checked, and has not changed since the check.
fn require_same(
    parent: &Directory,
    name: &OsStr,
    found: Option<&Stat>,
    path: &Path,
) -> Result<(), EditError> {
    let now = parent
        .entry_stat(name)
        .map_err(|error| EditError::System { path: path.to_owned(), error })?
        .filter(|now| found.is_some() || FileType::from_raw_mode(now.st_mode) != FileType::Directory);
    let same = |(now, found): (&Stat, &Stat)| {
        FileId::of(now) == FileId::of(found)
            && (now.st_size, now.st_mode) == (found.st_size, found.st_mode)
            && (now.st_mtime, now.st_mtime_nsec) == (found.st_mtime, found.st_mtime_nsec)
            && (now.st_ctime, now.st_ctime_nsec) == (found.st_ctime, found.st_ctime_nsec)
    };
    let is_same = match (&now, found) {
        (None, None) => true,
        (now, found) => now.as_ref().zip(found).is_some_and(same),
    };
    if is_same { Ok(()) } else { Err(EditError::Changed(path.to_owned())) }
}

/// Renames a new file to its final name.
fn place(parent: &Directory, new: &OsStr, name: &OsStr, replaces: bool) -> io::Result<()> {
    if replaces {
        return parent.rename(new, parent, name);
    }
    parent.remove_empty(Path::new(name), MAX_EMPTY_LEVELS)?;
    match rustix::fs::renameat_with(parent, new, parent, name, RenameFlags::NOREPLACE) {
        // The file system does not support this rename operation.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match parent.entry_stat(name)? {
            Some(_) => Err(Errno::EXIST.into()),
            None => parent.rename(new, parent, name),
        },
        placed => Ok(placed?),
    }
}

/// Opens a directory. If it does not exist, creates it and its missing parents.
fn make_directory(directory: &Directory, path: &Path) -> io::Result<Directory> {
    let mut found = directory.try_clone()?;
    for name in path {
        match found.new_directory(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        found = found.directory(Path::new(name))?.ok_or(io::ErrorKind::NotFound)?;
    }
    Ok(found)
}

/// Removes the empty directories above a deleted file, up to `directory` itself.
fn remove_empty_parents(directory: &Directory, path: &Path) -> io::Result<()> {
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        let (parent, name) = split(above)?;
        let Some(parent) = directory.directory(parent)? else { continue };
        match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            // A directory that cannot be removed stays, as in git.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY | Errno::ACCESS | Errno::PERM) => break,
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{ObjectFormat, ObjectId, Program, Store, StoreKind};

    /// A test directory of the user, and a store with the contents of files.
    struct Scene {
        top: tempfile::TempDir,
        store: Store,
    }

    impl Scene {
        fn new() -> Self {
            let top = tempfile::tempdir().expect("a directory");
            fs::create_dir(top.path().join("files")).expect("made");
            let path = std::env::var_os("PATH").expect("PATH");
            let program = Program::find(&path).expect("git");
            let kind = StoreKind { format: ObjectFormat::Sha1, partial: false };
            let place = tempfile::tempdir_in(top.path()).expect("a directory");
            let store = Store::create(&program, place, kind).expect("a store");
            Self { top, store }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.top.path().join("files").join(path)
        }

        fn directory(&self) -> Directory {
            Directory::open(&self.path("")).expect("opened")
        }

        fn blobs(&self) -> Blobs {
            Blobs::start(&self.store.git()).expect("git")
        }

        fn write(&self, path: &str, text: &str, mode: u32) {
            fs::create_dir_all(self.path(path).parent().expect("a parent")).expect("made");
            fs::write(self.path(path), text).expect("written");
            fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).expect("set");
        }

        async fn stored(&self, mode: FileMode, text: &str) -> StoredFile {
            let arguments = ["hash-object", "-w", "--stdin"];
            let written = self.store.git().run_with(&arguments, text.as_bytes(), 100).await.expect("git");
            let object = ObjectId::from_bytes(&written.stdout.bytes).expect("an id").to_string();
            StoredFile { mode, object }
        }

        async fn edit(&self, path: &str, before: Option<&str>, after: Option<&str>) -> Edit {
            let mut sides = [None, None];
            for (side, text) in sides.iter_mut().zip([before, after]) {
                let Some(text) = text else { continue };
                let (mode, text) = match text.split_at(text.len().min(2)) {
                    ("x ", text) => (FileMode::Executable, text),
                    ("->", text) => (FileMode::Link, text),
                    _ => (FileMode::Regular, text),
                };
                *side = Some(self.stored(mode, text).await);
            }
            let [before, after] = sides;
            Edit { path: path.into(), before, after }
        }

        /// Lists every entry with its mode and content, but without the mode of links.
        fn shown(&self) -> Vec<String> {
            let mut shown = Vec::new();
            let mut open = vec![self.path("")];
            while let Some(directory) = open.pop() {
                for entry in fs::read_dir(directory).expect("a directory") {
                    let path = entry.expect("an entry").path();
                    let name = path.strip_prefix(self.path("")).expect("inside").display().to_string();
                    let found = path.symlink_metadata().expect("metadata");
                    let mode = found.permissions().mode() & 0o7777;
                    shown.push(match found.file_type() {
                        kind if kind.is_symlink() => {
                            format!("{name} -> {}", path.read_link().expect("a link").display())
                        }
                        kind if kind.is_dir() => {
                            open.push(path);
                            format!("{name}/ {mode:o}")
                        }
                        _ => format!("{name} {mode:o} {}", fs::read_to_string(&path).expect("text")),
                    });
                }
            }
            shown.sort();
            shown
        }
    }

    #[tokio::test]
    async fn changes_files_of_every_type_and_changes_them_back() {
        let scene = Scene::new();
        scene.write("private", "one", 0o600);
        scene.write("script", "one", 0o640);
        scene.write("gone/deep/file", "x", 0o644);
        scene.write("gone/stays", "x", 0o644);
        scene.write("file", "x", 0o644);
        scene.write("sub/one", "x", 0o644);
        scene.write("old", "text", 0o600);
        fs::create_dir_all(scene.path("empty/in")).expect("made");
        symlink("private", scene.path("link")).expect("a link");
        fs::set_permissions(scene.path("gone/deep"), fs::Permissions::from_mode(0o700)).expect("set");
        let before = scene.shown();
        let edits = vec![
            scene.edit("private", Some("one"), Some("two")).await,
            scene.edit("script", Some("one"), Some("x two")).await,
            scene.edit("gone/deep/file", Some("x"), None).await,
            // A file becomes a directory, and a directory becomes a file.
            scene.edit("file", Some("x"), None).await,
            scene.edit("file/below", None, Some("new")).await,
            scene.edit("sub/one", Some("x"), None).await,
            scene.edit("sub", None, Some("->private")).await,
            scene.edit("link", Some("->private"), Some("no link")).await,
            scene.edit("old", Some("text"), None).await,
            scene.edit("new/name", None, Some("text")).await,
        ];
        let edits = Edits::new(edits, [("old".into(), "new/name".into())]);
        let (directory, mut blobs) = (scene.directory(), scene.blobs());
        edits.check(&directory, &mut blobs).expect("as expected");
        assert_eq!(scene.shown(), before, "a check changes nothing");
        edits.apply(&directory, &mut blobs).expect("applied");
        let mut after = scene.shown();
        // The modes of new entries are not compared, because the umask of this process decides them.
        after.retain(|entry| !["file/", "new/", "link"].iter().any(|new| entry.starts_with(new)));
        assert_eq!(
            after,
            [
                "empty/ 755",
                "empty/in/ 755",
                "gone/ 755",
                "gone/stays 644 x",
                "private 600 two",
                "script 750 two",
                "sub -> private"
            ]
        );
        let text = |path: &str| fs::read_to_string(scene.path(path)).expect("text");
        assert_eq!((text("file/below"), text("link")), ("new".into(), "no link".into()));
        let renamed = scene.path("new/name").metadata().expect("metadata").permissions().mode();
        assert_eq!((text("new/name"), renamed & 0o777), ("text".into(), 0o600));
        edits.reversed().apply(&directory, &mut blobs).expect("reversed");
        let kept = |entry: &String| !entry.starts_with("gone/deep") && !entry.starts_with("script");
        let (back, before): (Vec<_>, Vec<_>) =
            (scene.shown().into_iter().filter(kept).collect(), before.into_iter().filter(kept).collect());
        assert_eq!(back, before);
        assert_eq!(text("gone/deep/file"), "x");
    }

    #[tokio::test]
    async fn changes_no_file_that_is_not_as_expected() {
        let scene = Scene::new();
        scene.write("a", "mine", 0o644);
        scene.write("sub/file", "x", 0o644);
        fs::create_dir_all(scene.path("empty/in")).expect("made");
        symlink("sub", scene.path("link")).expect("a link");
        let before = scene.shown();
        let (directory, mut blobs) = (scene.directory(), scene.blobs());
        for (path, expected, new, is_occupied) in [
            ("a", Some("other"), Some("new"), false),
            ("a", Some("mind"), None, false),
            ("a", Some("x mine"), Some("new"), false),
            ("a", Some("->mine"), Some("new"), false),
            ("a", None, Some("new"), false),
            ("a/b", None, Some("new"), true),
            ("link/new", None, Some("new"), true),
            ("link/file", Some("x"), Some("new"), false),
            ("none", Some("x"), None, false),
            ("link", Some("sub"), Some("new"), false),
        ] {
            let edits = Edits::new(vec![scene.edit(path, expected, new).await], []);
            let error = edits.check(&directory, &mut blobs).expect_err(path);
            match is_occupied {
                true => assert!(matches!(error, EditError::Occupied(_)), "{path}: {error}"),
                false => assert!(matches!(error, EditError::Changed(_)), "{path}: {error}"),
            }
            assert!(edits.apply(&directory, &mut blobs).is_err(), "{path}");
        }
        assert_eq!(scene.shown(), before);
        // An empty directory is replaced by a file. A directory with a file is not replaced.
        let edits = Edits::new(vec![scene.edit("empty", None, Some("new")).await], []);
        edits.apply(&directory, &mut blobs).expect("applied");
        let edits = Edits::new(vec![scene.edit("sub", None, Some("new")).await], []);
        assert!(matches!(edits.apply(&directory, &mut blobs), Err(EditError::Occupied(_))));
        assert!(scene.path("sub/file").exists());
    }

    #[tokio::test]
    async fn a_failure_leaves_everything_as_it_was() {
        let scene = Scene::new();
        scene.write("a", "one", 0o600);
        scene.write("b/c", "one", 0o644);
        scene.write("full/file", "mine", 0o644);
        let before = scene.shown();
        let edits = vec![
            scene.edit("a", Some("one"), Some("two")).await,
            scene.edit("b/c", Some("one"), None).await,
            scene.edit("b", None, Some("two")).await,
            // The check does not search a directory at the path of a new file.
            scene.edit("full", None, Some("two")).await,
        ];
        let error =
            Edits::new(edits, []).apply(&scene.directory(), &mut scene.blobs()).expect_err("occupied");
        assert!(matches!(&error, EditError::Occupied(path) if path == Path::new("full")), "{error}");
        assert!(error.is_undone());
        assert_eq!(scene.shown(), before);
    }

    #[tokio::test]
    async fn a_directory_that_becomes_a_link_leads_nowhere() {
        let scene = Scene::new();
        let outside = scene.top.path().join("outside");
        fs::create_dir(&outside).expect("made");
        fs::create_dir(scene.path("dir")).expect("made");
        let mut edits = Vec::new();
        for number in 0..200 {
            edits.push(scene.edit(&format!("dir/{number}"), None, Some("text")).await);
        }
        let edits = Edits::new(edits, []);
        let (directory, mut blobs) = (scene.directory(), scene.blobs());
        let is_done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let _ = fs::rename(scene.path("dir"), scene.path("aside"));
                    let _ = symlink(&outside, scene.path("dir"));
                    let _ = fs::remove_file(scene.path("dir"));
                    let _ = fs::rename(scene.path("aside"), scene.path("dir"));
                }
            });
            for _ in 0..20 {
                if edits.apply(&directory, &mut blobs).is_ok() {
                    let _ = edits.reversed().apply(&directory, &mut blobs);
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
    }
}
