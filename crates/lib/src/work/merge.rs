//! Merges a bottle's work with the files of a directory on the host, for `bottle apply`.
//!
//! ```text
//!  base ─┬─ the directory's files ───┐
//!        └─ the workspace's files ─┴─► result ──► edits that make the result of the directory's files
//! ```
//! The merge happens in the temporary repository. The directory changes only when the edits are applied. All files are
//! checked before the first file is changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_repository::changes::Version as Entry;
use bottle_repository::conversion::Pointer;
use bottle_repository::nested::first_git_directory;
use bottle_repository::{Blobs, Directory, Edit, EditError, Edits, FastImport, FileMode, StoredFile};

use super::ObjectId;
use super::directory::{Found, import_file, is_inside, leads_inside, path_of};
use super::host::git_failed;
use super::scratch::{Base, Content, FILES, Form, Scratch, Text};
use super::start::Began;
use super::workspace::MAX_FILE;
use crate::failure::Failure;
use crate::text::one_line;

/// The references for the directory's files, and for the result.
const OURS: &str = "refs/bottle/ours";
const RESULT: &str = "refs/bottle/result";

/// The prefixes of paths in a patch.
const PREFIXES: [&str; 2] = ["--src-prefix=a/", "--dst-prefix=b/"];

/// The maximum length of a link's target in bytes. The rest of a longer target is ignored.
const MAX_LINK: usize = 4096;

/// The files of a tree, by path.
type Files = HashMap<Vec<u8>, Entry>;

/// A merge that is not applied yet.
pub struct Merge {
    /// The changed files and lines of the directory, as `git diff --stat` shows them.
    pub stat: String,
    /// The paths of the files that change.
    pub changed: Vec<PathBuf>,
    /// The files of the user that the merge deletes.
    pub deletions: Deletions,
    /// The paths that both the user and the agent changed, without a conflict.
    pub merged: Vec<PathBuf>,
    /// The number of changed files of the bottle that the directory already contains.
    pub already: usize,
    /// The files that cannot be merged.
    pub conflicts: Vec<Conflict>,
    edits: Edits,
}

/// The files of the user that a merge deletes.
#[derive(Debug, Default)]
pub struct Deletions {
    /// The paths of the deleted files.
    pub paths: Vec<PathBuf>,
    /// The number of deleted files whose content is in no other file of the bottle. A renamed file is not counted.
    pub lost: usize,
    /// The number of files in the user's last commit. Without a commit, the number of files that the bottle received at
    /// its start.
    pub tracked: usize,
}

impl Deletions {
    fn of(versions: &[(Vec<u8>, Version)], ours: &Files, to: &Files) -> Self {
        let is_deleted = |(path, version): &&(Vec<u8>, Version)| {
            matches!(version, Version::Theirs) && !to.contains_key(path)
        };
        let there: HashSet<&String> = to.values().map(|(_, object)| object).collect();
        let mut deletions = Self::default();
        for (path, _) in versions.iter().filter(is_deleted) {
            let Some((_, object)) = ours.get(path) else { continue };
            deletions.paths.push(path_of(path.clone()));
            deletions.lost += usize::from(!there.contains(object));
        }
        deletions
    }

    /// Whether more than a third of the tracked files would be lost.
    pub fn are_many(&self) -> bool {
        self.lost * 3 > self.tracked
    }
}

/// A file that cannot be merged.
pub struct Conflict {
    /// The path, relative to the directory.
    pub path: PathBuf,
    /// Why the file cannot be merged.
    pub why: &'static str,
    /// Whether the result contains the file with conflict markers. Otherwise the file is not changed.
    pub marked: bool,
}

/// The version of a file in the result.
enum Version {
    /// The version in the user's directory.
    Ours,
    /// The version in the bottle.
    Theirs,
    /// A mode, and a content that was merged from both versions.
    Mixed(String, Vec<u8>),
}

/// The output of `git diff --stat`, with a note if it is incomplete.
fn shown_stat(text: &Text) -> String {
    let mut shown = String::from_utf8_lossy(&text.bytes).into_owned();
    if text.cut {
        // The last line can be incomplete, and the sum is missing.
        shown.truncate(shown.rfind('\n').map_or(0, |end| end + 1));
        shown += " … and more files";
    }
    shown
}

impl Scratch<'_> {
    /// Merges the imported workspace with the files of `directory`. `tip` is the last commit of the workspace.
    /// `applied` is the tree of the files that an earlier merge applied. With `markers`, the result contains text files
    /// with conflicts, with conflict markers in the text.
    ///
    /// # Errors
    /// Returns an error if a path or link of the workspace leads outside of the directory, or git fails.
    pub(super) async fn merge(
        &self,
        (base, began): (&Base, &Began),
        tip: Option<&ObjectId>,
        applied: Option<&ObjectId>,
        directory: &Path,
        markers: bool,
    ) -> Result<Merge, Failure> {
        let reference = self.listed(&base.tree).await?;
        let mut start = began.start.raw(&reference);
        let mut from = match applied {
            Some(applied) => self.listed(applied).await?,
            None => start.clone(),
        };
        let mut to = self.listed(&self.tree_of_reference(FILES).await?).await?;
        began.with_contents(&mut from);
        began.with_contents(&mut to);
        let all: BTreeSet<&Vec<u8>> = start.keys().chain(from.keys()).chain(to.keys()).collect();
        let is_changed = |path: &&Vec<u8>| {
            let theirs = to.get(*path);
            start.get(*path) != theirs || from.get(*path) != theirs
        };
        let paths: Vec<Vec<u8>> = all.into_iter().filter(is_changed).cloned().collect();
        self.check(&paths, &to, began, tip).await?;
        require_no_git_directory(directory, &paths, &to, began)?;
        // A file that the bottle did not receive at its start cannot be the base of a file that the agent created at
        // the same path.
        for path in
            paths.iter().filter(|path| began.start.files.get(*path).is_some_and(|file| !file.is_given))
        {
            if start.remove(path) == from.get(path).cloned() {
                from.remove(path);
            }
        }
        let deleted = paths.iter().filter(|path| !to.contains_key(*path)).cloned().collect();
        let mut found = self.import_directory(directory, &paths, deleted, &began.pointers).await?;
        let ours = self.listed(&self.tree_of_reference(OURS).await?).await?;
        let as_at_start = self.as_at_start(began, &ours).await?;
        for (path, found) in paths.iter().zip(&mut found) {
            // If the base has another version of the file than the commit at the start, the user has merged a commit
            // that changes the file. The file is then not treated as unchanged since the start.
            let is_base = began.start.is_in(&reference, path) && as_at_start.contains(path);
            if *found == Found::Imported && is_base {
                *found = Found::AsAtStart;
            }
        }
        let mut merge = Merging {
            scratch: self,
            markers,
            began,
            start,
            from,
            ours,
            to,
            versions: Vec::new(),
            result: Outcome::default(),
        };
        for (path, found) in paths.into_iter().zip(found) {
            merge.file(path, &found).await?;
        }
        let Merging { versions, result, to, ours, .. } = merge;
        let deletions = Deletions::of(&versions, &ours, &to);
        self.write_result(&versions, &ours, &to)?;
        let stat = match self.content(Form::Stat, PREFIXES, OURS, RESULT).await? {
            Content::Text(text) => shown_stat(&text),
            Content::File(_) => String::new(),
        };
        let edits = self.edits(&ours).await?;
        let changed = edits.paths().map(Path::to_owned).collect();
        let Outcome { merged, already, conflicts } = result;
        Ok(Merge { stat, changed, deletions, merged, already, conflicts, edits })
    }

    /// Returns the edits that change the directory's files to the files of the result.
    async fn edits(&self, ours: &Files) -> Result<Edits, Failure> {
        let result = self.listed(&self.tree_of_reference(RESULT).await?).await?;
        let stored = |entry: Option<&Entry>| {
            let file = |(mode, object): &Entry| {
                Some(StoredFile { mode: FileMode::parse(mode)?, object: object.clone() })
            };
            // Submodules do not reach this code, because `check` has refused them.
            entry.map(|entry| file(entry).ok_or_else(|| Failure::failed("cannot apply a file of this type")))
        };
        let mut edits = Vec::new();
        for path in self.changed(OURS, RESULT).await? {
            let (before, after) =
                (stored(ours.get(&path)).transpose()?, stored(result.get(&path)).transpose()?);
            edits.push(Edit { path: path_of(path), before, after });
        }
        let renamed = self.renamed(OURS, RESULT).await?;
        Ok(Edits::new(edits, renamed.into_iter().map(|(old, new)| (path_of(old), path_of(new)))))
    }

    /// Checks that [`Self::apply`] can change the directory, and changes nothing.
    ///
    /// # Errors
    /// When the directory cannot be changed, for example because a file has changed since the merge.
    pub fn check_apply(&self, merge: &Merge, top: &Path) -> Result<(), Failure> {
        self.edit(top, |directory, blobs| merge.edits.check(directory, blobs))
    }

    /// Changes the files of the directory. The caller calls [`Self::check_apply`] first.
    ///
    /// # Errors
    /// When a file cannot be written. The files that were already changed are then changed back.
    pub fn apply(&self, merge: &Merge, top: &Path) -> Result<(), Failure> {
        self.edit(top, |directory, blobs| merge.edits.apply(directory, blobs))
    }

    /// Reverts [`Self::apply`].
    ///
    /// # Errors
    /// When a file has changed since [`Self::apply`], or cannot be written.
    pub fn revert_apply(&self, merge: &Merge, top: &Path) -> Result<(), Failure> {
        let reversed = merge.edits.reversed();
        self.edit(top, |directory, blobs| reversed.apply(directory, blobs))
    }

    fn edit(
        &self,
        top: &Path,
        edit: impl FnOnce(&Directory, &mut Blobs) -> Result<(), EditError>,
    ) -> Result<(), Failure> {
        let failed = |error| Failure::path("change", top, error);
        let directory = Directory::open(top).map_err(failed)?;
        let mut blobs = Blobs::start(&self.store.git()).map_err(failed)?;
        edit(&directory, &mut blobs).map_err(|error| {
            let hint = match error.is_undone() {
                true => "nothing was changed; if a file has changed in the meantime, apply again",
                false => "other files may have been changed; `bottle apply` again applies the rest",
            };
            let cause = one_line(&error.to_string());
            Failure::state(format!("cannot change {}: {cause}", top.display())).hint(hint)
        })
    }

    /// Refuses paths and new links that lead outside of the directory, or into a git directory.
    async fn check(
        &self,
        paths: &[Vec<u8>],
        to: &Files,
        began: &Began,
        tip: Option<&ObjectId>,
    ) -> Result<(), Failure> {
        for path in paths {
            let Some((mode, object)) = to.get(path) else { continue };
            let place = path_of(path.clone());
            let Some(why) = self.refusal(&place, mode, object).await? else { continue };
            let pull = match self.is_committed(tip, &place, object).await? {
                true => "bottle pull",
                false => "bottle pull --uncommitted",
            };
            let shown = one_line(&place.display().to_string());
            return Err(Failure::state(format!("cannot apply {shown}: {why}"))
                .about(shown)
                .hint(not_applied(began, pull)));
        }
        Ok(())
    }

    /// Why the file at `place` must not be applied. `None` if it can be applied.
    async fn refusal(&self, place: &Path, mode: &str, object: &str) -> Result<Option<&'static str>, Failure> {
        if !is_inside(place) {
            return Ok(Some("its path is not allowed"));
        }
        if mode == "160000" {
            return Ok(Some("it is a submodule"));
        }
        if mode == "120000" {
            let target = self.read(&["cat-file", "blob", object], MAX_LINK).await?.bytes;
            if !leads_inside(place, Path::new(OsStr::from_bytes(&target))) {
                return Ok(Some("it is a link out of the directory"));
            }
        }
        Ok(None)
    }

    /// Whether the last commit of the workspace contains this object at the path `place`.
    async fn is_committed(
        &self,
        tip: Option<&ObjectId>,
        place: &Path,
        object: &str,
    ) -> Result<bool, Failure> {
        let Some(tip) = tip else { return Ok(false) };
        let name = format!("{}:{}", tip.as_str(), place.display());
        Ok(self.object(&name).await?.is_some_and(|found| found.as_str() == object))
    }

    /// Imports the directory's files at these paths, and points [`OURS`] at the imported files.
    async fn import_directory(
        &self,
        directory: &Path,
        paths: &[Vec<u8>],
        deleted: BTreeSet<Vec<u8>>,
        pointers: &HashMap<Vec<u8>, Pointer>,
    ) -> Result<Vec<Found>, Failure> {
        let (git, directory, paths) = (self.store.git(), directory.to_owned(), paths.to_vec());
        let known = paths.iter().filter_map(|path| Some((path.clone(), pointers.get(path)?.clone())));
        let pointers: HashMap<Vec<u8>, Pointer> = known.collect();
        let shown = directory.clone();
        let importing = tokio::task::spawn_blocking(move || {
            let mut import = FastImport::start(git.command(), OURS)?;
            let directory = Directory::open(&directory)?;
            let each =
                paths.iter().map(|path| import_file(&directory, path, (&deleted, &pointers), &mut import));
            let found = each.collect::<io::Result<Vec<_>>>()?;
            import.end()?;
            Ok(found)
        });
        let imported = importing.await.map_err(io::Error::other).and_then(|imported| imported);
        imported.map_err(|error| Failure::path("read", &shown, error))
    }

    /// Merges the changes from `base` to `theirs` into `ours`. `sides` contains the objects of `ours`, `base` and
    /// `theirs`, in this order. Returns the merged text, and whether it has conflict markers. Returns `None` for files
    /// that are not text.
    async fn merge_file(&self, sides: [Option<&str>; 3]) -> Result<Option<(Vec<u8>, bool)>, Failure> {
        let mut command = self.store.git().command();
        command.args(["merge-file", "-p", "-q", "-L", "yours", "-L", "start", "-L", "bottle"]);
        for (side, name) in sides.into_iter().zip(["ours", "base", "theirs"]) {
            let content = match side {
                Some(object) => {
                    let limit = usize::try_from(MAX_FILE).unwrap_or(usize::MAX);
                    self.read(&["cat-file", "blob", object], limit).await?.bytes
                }
                None => Vec::new(),
            };
            let path = self.store.path().join(name);
            fs::write(&path, content).map_err(|error| Failure::cannot("merge a file", error))?;
            command.arg(path);
        }
        let most = usize::try_from(MAX_FILE * 3).unwrap_or(usize::MAX);
        let merged = self.store.git().run_command(command, &[], None, most).await.map_err(git_failed)?;
        // The exit code of `git merge-file` is the number of conflicts, at most 127.
        Ok(match merged.code {
            _ if merged.stdout.cut => None,
            Some(0) => Some((merged.stdout.bytes, false)),
            Some(1..=127) => Some((merged.stdout.bytes, true)),
            _ => None,
        })
    }

    fn write_result(&self, versions: &[(Vec<u8>, Version)], ours: &Files, to: &Files) -> Result<(), Failure> {
        let write = || {
            let mut import = FastImport::start(self.store.git().command(), RESULT)?;
            for (path, version) in versions {
                match version {
                    Version::Ours => ours.get(path).map_or(Ok(()), |entry| import.link(path, entry))?,
                    Version::Theirs => to.get(path).map_or(Ok(()), |entry| import.link(path, entry))?,
                    Version::Mixed(mode, content) => {
                        import.file(path, mode, content.len() as u64, &mut content.as_slice())?;
                    }
                }
            }
            import.end()
        };
        write().map_err(|error| Failure::cannot("merge the files", error))
    }
}

/// Refuses changes in a directory that git recognizes as a git directory because of its content, either before or after
/// the changes. When the user or a shell prompt runs git in such a directory, git uses the configuration in this
/// directory.
fn require_no_git_directory(
    directory: &Path,
    paths: &[Vec<u8>],
    to: &Files,
    began: &Began,
) -> Result<(), Failure> {
    // Paths are compared in lower case, because file systems of macOS do not distinguish upper and lower case.
    let folded = |path: &Path| path.as_os_str().as_bytes().to_ascii_lowercase();
    let above = |path: &Vec<u8>| path_of(path.clone()).ancestors().map(folded).collect::<Vec<_>>();
    let made: HashSet<Vec<u8>> = to.keys().flat_map(above).collect();
    let here = Directory::open(directory).map_err(|error| Failure::path("read", directory, error))?;
    let has = |path: &Path| made.contains(&folded(path)) || matches!(here.stat(path), Ok(Some(_)));
    let changed: Vec<PathBuf> =
        paths.iter().filter(|path| to.contains_key(*path)).cloned().map(path_of).collect();
    let Some(place) = first_git_directory(changed.iter().map(PathBuf::as_path), has) else { return Ok(()) };
    let name = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let shown = one_line(&name.display().to_string());
    Err(Failure::state(format!(
        "cannot apply {shown}: git would take it for a git directory, and obey its configuration"
    ))
    .about(shown)
    .hint(not_applied(began, "bottle pull --uncommitted")))
}

/// Returns the hint about how to get the files that were not applied.
fn not_applied(began: &Began, pull: &str) -> String {
    if began.is_without_repository() {
        "nothing was changed; `bottle cp` copies it out".to_owned()
    } else {
        format!("nothing was changed; `{pull}` fetches it into a branch")
    }
}

#[derive(Default)]
struct Outcome {
    merged: Vec<PathBuf>,
    already: usize,
    conflicts: Vec<Conflict>,
}

struct Merging<'a, 'b> {
    scratch: &'a Scratch<'b>,
    markers: bool,
    began: &'a Began,
    /// The files at the start of the bottle.
    start: Files,
    /// The files that were last applied. If no files were applied, the files at the start of the bottle.
    from: Files,
    ours: Files,
    to: Files,
    versions: Vec<(Vec<u8>, Version)>,
    result: Outcome,
}

impl Merging<'_, '_> {
    /// Decides which version of one file is in the result.
    async fn file(&mut self, path: Vec<u8>, found: &Found) -> Result<(), Failure> {
        let (base, ours, theirs) = (self.from.get(&path), self.ours.get(&path), self.to.get(&path));
        let version = if let Found::Blocked(why) = found {
            self.conflict(&path, why, false);
            Version::Ours
        } else if ours == theirs || (base == theirs && ours != self.start.get(&path)) {
            // If the two versions differ here, the user changed the file after it was applied, and the agent did not.
            self.result.already += 1;
            Version::Ours
        } else if theirs.is_some_and(|theirs| self.began.has_no_content(&path, theirs)) {
            self.conflict(
                &path,
                "the agent put it back to the start, and its content then is not kept",
                false,
            );
            Version::Ours
        } else if ours == base || ours == self.start.get(&path) || *found == Found::AsAtStart {
            Version::Theirs
        } else if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let (base, ours, theirs) = (base.cloned(), ours.clone(), theirs.clone());
            self.both(&path, base, ours, theirs).await?
        } else {
            let why = if theirs.is_none() {
                "you changed it, the agent deleted it"
            } else {
                "you deleted it, the agent changed it"
            };
            self.conflict(&path, why, false);
            Version::Ours
        };
        self.versions.push((path, version));
        Ok(())
    }

    /// Merges a file that exists in both versions and that both the user and the agent changed.
    async fn both(
        &mut self,
        path: &[u8],
        base: Option<Entry>,
        ours: Entry,
        theirs: Entry,
    ) -> Result<Version, Failure> {
        let is_file = |entry: &Entry| entry.0.starts_with("100");
        let is_known = |base: &Entry| !self.began.has_no_content(path, base);
        if self.began.unknown.contains(path) && !base.as_ref().is_some_and(is_known) {
            self.conflict(
                path,
                "you and the agent changed it, and its content at the start is not kept",
                false,
            );
            return Ok(Version::Ours);
        }
        let why =
            if base.is_some() { "you and the agent changed it" } else { "you and the agent created it" };
        if !is_file(&ours) || !is_file(&theirs) || base.as_ref().is_some_and(|base| !is_file(base)) {
            self.conflict(path, why, false);
            return Ok(Version::Ours);
        }
        let mode = if base.as_ref().is_some_and(|base| base.0 == ours.0) { &theirs.0 } else { &ours.0 };
        let sides =
            [Some(&ours), base.as_ref(), Some(&theirs)].map(|side| side.map(|(_, object)| object.as_str()));
        Ok(match self.scratch.merge_file(sides).await? {
            Some((text, false)) => {
                self.result.merged.push(path_of(path.to_vec()));
                Version::Mixed(mode.clone(), text)
            }
            Some((text, true)) => {
                self.conflict(path, why, self.markers);
                if self.markers { Version::Mixed(mode.clone(), text) } else { Version::Ours }
            }
            None => {
                self.conflict(path, why, false);
                Version::Ours
            }
        })
    }

    fn conflict(&mut self, path: &[u8], why: &'static str, marked: bool) {
        self.result.conflicts.push(Conflict { path: path_of(path.to_vec()), why, marked });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::patch_tests::{commit, host};
    use super::*;

    /// The content of each file of a directory, with the mode or the target of a link.
    fn files(directory: &Path) -> BTreeMap<PathBuf, String> {
        let described = |entry: fs::DirEntry| {
            let path = entry.path();
            let text = match path.read_link() {
                Ok(target) => format!("-> {}", target.display()),
                Err(_) => {
                    let mode = path.metadata().expect("metadata").permissions().mode() & 0o111;
                    format!("{mode:o} {:?}", fs::read(&path).expect("read"))
                }
            };
            (path, text)
        };
        fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| described(entry.expect("an entry")))
            .collect()
    }

    #[tokio::test]
    async fn reverts_what_it_applied() {
        let home = tempfile::tempdir().expect("directory");
        let host = host(home.path());
        let scratch = Scratch::create(&host, None, None).expect("a repository");
        let file = |path: &str, mode: &'static str, text: &str| (path.to_owned(), (mode, text.into()));
        let start =
            [file("code", "100644", "one\n"), file("gone", "100755", "x"), file("b", "100644", "a\0b")];
        let end = [
            file("code", "100755", "one\r\ntwo"),
            file("new", "100644", "y"),
            file("link", "120000", "code"),
        ];
        commit(&scratch, OURS, &start.into_iter().collect());
        commit(&scratch, RESULT, &end.into_iter().collect());
        let directory = home.path().join("files");
        fs::create_dir(&directory).expect("created");
        let ours = scratch.tree_of_reference(OURS).await.expect("a tree");
        let edits = scratch.edits(&scratch.listed(&ours).await.expect("files")).await.expect("edits");
        let merge = Merge {
            stat: String::new(),
            changed: Vec::new(),
            deletions: Deletions::default(),
            merged: Vec::new(),
            already: 0,
            conflicts: Vec::new(),
            edits,
        };
        for (name, text) in [("code", "one\n"), ("gone", "x"), ("b", "a\0b"), ("other", "mine")] {
            fs::write(directory.join(name), text).expect("written");
        }
        fs::set_permissions(directory.join("gone"), fs::Permissions::from_mode(0o755)).expect("set");
        let before = files(&directory);
        scratch.check_apply(&merge, &directory).expect("it can be applied");
        assert_eq!(files(&directory), before);
        scratch.apply(&merge, &directory).expect("applied");
        assert_eq!(fs::read(directory.join("code")).expect("read"), b"one\r\ntwo");
        assert!(directory.join("link").is_symlink() && !directory.join("gone").exists());
        scratch.revert_apply(&merge, &directory).expect("reverted");
        assert_eq!(files(&directory), before);
        fs::write(directory.join("code"), "changed\n").expect("written");
        let refused = scratch.check_apply(&merge, &directory).expect_err("a changed file");
        assert!(refused.hint.is_some_and(|hint| hint.starts_with("nothing was changed")));
    }

    /// Points [`FILES`] at a commit whose tree has a single entry that git refuses to check out.
    async fn forge(scratch: &Scratch<'_>, mode: &str, kind: &str, object: &str, name: &str) {
        let entry = format!("{mode} {kind} {object}\t{name}\0");
        let git = scratch.store.git();
        let tree = git.run_with(&["mktree", "-z", "--missing"], entry.as_bytes(), 100).await.expect("git");
        let tree = ObjectId::from_bytes(&tree.stdout.bytes).expect("a tree");
        for reference in [FILES, OURS, RESULT] {
            scratch.expect(&["update-ref", "-d", reference]).await.expect("deleted");
        }
        let text = format!("commit {FILES}\ncommitter a <> 0 +0000\ndata 0\nM 040000 {tree} \n");
        let made = git.run_with(&["fast-import", "--quiet"], text.as_bytes(), 100).await.expect("git");
        assert!(made.succeeded(), "{name:?}: {}", made.error_text());
    }

    #[tokio::test]
    async fn applies_no_path_that_leads_outside() {
        let home = tempfile::tempdir().expect("a directory");
        let host = host(home.path());
        let scratch = Scratch::create(&host, None, None).expect("a repository");
        let directory = home.path().join("files");
        fs::create_dir(&directory).expect("created");
        std::os::unix::fs::symlink(home.path(), directory.join("out")).expect("a link");
        let blob = async |text: &str| {
            let arguments = ["hash-object", "-w", "--stdin"];
            let written = scratch.store.git().run_with(&arguments, text.as_bytes(), 100).await.expect("git");
            ObjectId::from_bytes(&written.stdout.bytes).expect("an id").to_string()
        };
        let inside = scratch.store.git();
        let text = blob("evil").await;
        let tree = format!("100644 blob {text}\tx\0");
        let tree = inside.run_with(&["mktree", "-z"], tree.as_bytes(), 100).await.expect("git");
        let tree = ObjectId::from_bytes(&tree.stdout.bytes).expect("a tree").to_string();
        let base = Base {
            commit: None,
            tree: scratch.tree_of(None).await.expect("a tree"),
            prefix: String::new(),
            is_own: false,
        };
        let before = files(&directory);
        let began = Began::default();
        let merge = async || scratch.merge((&base, &began), None, None, &directory, false).await;
        for name in ["..", ".git", ".GIT", "git~1", "GIT~1", ".g\u{200c}it", ".git ", ".git.", ".git::$DATA"]
        {
            for (mode, kind, object) in [("040000", "tree", &tree), ("100644", "blob", &text)] {
                forge(&scratch, mode, kind, object, name).await;
                let error = merge().await.err().expect(name);
                assert!(error.message.ends_with("its path is not allowed"), "{name:?}: {}", error.message);
            }
        }
        for target in ["/etc/passwd", "../x", "a/../../x", ".git/config", ".GIT"] {
            forge(&scratch, "120000", "blob", &blob(target).await, "li\nnk").await;
            let error = merge().await.err().expect(target);
            assert!(
                error.message.ends_with("it is a link out of the directory"),
                "{target}: {}",
                error.message
            );
            assert!(!error.message.contains('\n'), "{}", error.message);
        }
        forge(&scratch, "160000", "commit", &"1".repeat(40), "module").await;
        assert!(merge().await.err().expect("a submodule").message.ends_with("it is a submodule"));
        // The bottle has a directory at the path of a link of the user.
        forge(&scratch, "040000", "tree", &tree, "out").await;
        assert_eq!(merge().await.expect("merged").conflicts.len(), 1);
        assert_eq!(files(&directory), before);
        assert!(!home.path().join("x").exists());
        forge(&scratch, "100755", "blob", &text, "a\n\"b\u{1b}").await;
        let merged = merge().await.expect("merged");
        scratch.check_apply(&merged, &directory).expect("checked");
        scratch.apply(&merged, &directory).expect("applied");
        assert_eq!(fs::read(directory.join("a\n\"b\u{1b}")).expect("read"), b"evil");
    }

    /// Git uses the configuration in a directory that contains the entries of a git directory, even if the bottle
    /// created only some of these entries.
    #[tokio::test]
    async fn applies_no_git_directory_of_another_name() {
        let home = tempfile::tempdir().expect("a directory");
        let host = host(home.path());
        let directory = home.path().join("files");
        for made in ["mine/refs", "mine/objects"] {
            fs::create_dir_all(directory.join(made)).expect("created");
        }
        for (files, refused) in [
            (&["a/HEAD", "a/config", "a/objects/x", "a/refs/x"][..], Some("a")),
            (&["head", "config", "Objects/x", "refs/x"], Some(".")),
            (&["a/HEAD", "a/commondir"], Some("a")),
            (&["mine/HEAD"], Some("mine")),
            (&["a/HEAD", "a/config", "objects/x", "mine/config"], None),
        ] {
            let scratch = Scratch::create(&host, None, None).expect("a repository");
            let tree = scratch.tree_of(None).await.expect("a tree");
            let base = Base { commit: None, tree, prefix: String::new(), is_own: false };
            let file = |path: &&str| ((*path).to_owned(), ("100644", "x".into()));
            commit(&scratch, FILES, &files.iter().map(file).collect());
            let merged = scratch.merge((&base, &Began::default()), None, None, &directory, false).await;
            let expected = refused.map(|place| {
                format!(
                    "cannot apply {place}: git would take it for a git directory, and obey its configuration"
                )
            });
            assert_eq!(merged.err().map(|error| error.message), expected, "{files:?}");
        }
    }

    #[test]
    fn a_list_of_changes_that_is_cut_off_says_so() {
        let text = |bytes: &str, cut| shown_stat(&Text { bytes: bytes.into(), cut });
        assert_eq!(text(" a | 1 +\n 1 file changed\n", false), " a | 1 +\n 1 file changed\n");
        assert_eq!(text(" a | 1 +\n b | ", true), " a | 1 +\n … and more files");
    }

    /// A file appears in a directory after the check.
    #[tokio::test]
    async fn changes_nothing_if_a_file_cannot_be_written() {
        let home = tempfile::tempdir().expect("a directory");
        let host = host(home.path());
        let scratch = Scratch::create(&host, None, None).expect("a repository");
        let file = |path: &str| (path.to_owned(), ("100644", "x".into()));
        commit(&scratch, FILES, &["a", "d/x"].map(file).into_iter().collect());
        let directory = home.path().join("files");
        fs::create_dir(&directory).expect("created");
        let tree = scratch.tree_of(None).await.expect("a tree");
        let base = Base { commit: None, tree, prefix: String::new(), is_own: false };
        let began = Began::default();
        let merge = scratch.merge((&base, &began), None, None, &directory, false).await.expect("merged");
        scratch.check_apply(&merge, &directory).expect("checked");
        fs::write(directory.join("d"), "mine").expect("written");
        let before = files(&directory);
        let error = scratch.apply(&merge, &directory).expect_err("a file is in its place");
        assert_eq!(
            error.message,
            format!("cannot change {}: something else is in the place of d/x", directory.display())
        );
        assert!(error.hint.is_some_and(|hint| hint.starts_with("nothing was changed")));
        assert_eq!(files(&directory), before);
    }
}
