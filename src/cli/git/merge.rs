//! Merges a bottle's work with the files of a folder on the host, for `bottle apply`.
//!
//! ```text
//!  base ─┬─ the folder's files ───┐
//!        └─ the workspace's files ─┴─► result ──► a patch from the folder's files to the result
//! ```
//! Everything happens in the temporary repository. The folder changes only when git applies the patch: git checks all
//! files before it changes the first one.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bottle_repository::Directory;
use rustix::fs::FileType;

use super::ObjectId;
use super::folder::{Found, import_file, is_inside, leads_inside, path_of};
use super::host::git_failed;
use super::scratch::{Base, Content, FILES, Form, Scratch};
use super::workspace::{Entry, FastImport, MAX_FILE};
use crate::cli::error::CliError;
use crate::cli::output::inert;

/// The references for the folder's files, and for the result.
const OURS: &str = "refs/bottle/ours";
const RESULT: &str = "refs/bottle/result";

/// The prefixes of paths in a patch.
const PREFIXES: [&str; 2] = ["--src-prefix=a/", "--dst-prefix=b/"];

/// The maximum length of a link's target in bytes; the rest is ignored.
const MAX_LINK: usize = 4096;

/// The files of a tree, by path.
type Files = HashMap<Vec<u8>, Entry>;

/// A merge that was not applied.
pub(crate) struct Merge {
    /// The changed files and lines of the folder, as `git diff --stat` shows them.
    pub(crate) stat: String,
    /// The paths that change.
    pub(crate) changed: Vec<PathBuf>,
    /// Those of them that both sides changed, without a conflict.
    pub(crate) merged: Vec<PathBuf>,
    /// The number of files of the bottle that the folder already has.
    pub(crate) already: usize,
    pub(crate) conflicts: Vec<Conflict>,
    patch: File,
}

/// A file that cannot be merged.
pub(crate) struct Conflict {
    pub(crate) path: PathBuf,
    pub(crate) why: &'static str,
    /// Whether the result has the file with conflict markers. Otherwise it stays as it is.
    pub(crate) marked: bool,
}

/// The version of a file in the result.
enum Version {
    /// As the folder has it.
    Ours,
    /// As the bottle has it.
    Theirs,
    /// A content made of both, with a mode.
    Mixed(String, Vec<u8>),
}

impl Scratch<'_> {
    /// Merges the imported workspace with the files of `folder`. `tip` is the last commit of the workspace. `applied` are
    /// the files of the workspace that an earlier merge applied. With `markers`, text with conflicts is part of the
    /// result, with conflict markers.
    ///
    /// # Errors
    /// Returns an error if a path or link of the workspace leads outside of the folder, or git fails.
    pub(super) async fn merge(
        &self,
        base: &Base,
        tip: Option<&ObjectId>,
        applied: Option<&ObjectId>,
        folder: &Path,
        markers: bool,
    ) -> Result<Merge, CliError> {
        let start = self.listed(&base.tree).await?;
        let from = self.listed(applied.unwrap_or(&base.tree)).await?;
        let to = self.listed(&self.tree_of_reference(FILES).await?).await?;
        let all: BTreeSet<&Vec<u8>> = start.keys().chain(from.keys()).chain(to.keys()).collect();
        let is_changed = |path: &&Vec<u8>| {
            let theirs = to.get(*path);
            start.get(*path) != theirs || from.get(*path) != theirs
        };
        let paths: Vec<Vec<u8>> = all.into_iter().filter(is_changed).cloned().collect();
        self.check(&paths, &to, tip).await?;
        let deleted = paths.iter().filter(|path| !to.contains_key(*path)).cloned().collect();
        let found = self.import_folder(folder, &paths, deleted).await?;
        let ours = self.listed(&self.tree_of_reference(OURS).await?).await?;
        let mut merge = Merging {
            scratch: self,
            markers,
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
        self.write_result(&versions, &ours, &to)?;
        let Content::File(patch) = self.content(Form::Patch, PREFIXES, OURS, RESULT).await? else {
            return Err(CliError::failed("git made no patch"));
        };
        let stat = match self.content(Form::Stat, PREFIXES, OURS, RESULT).await? {
            Content::Text(text) => String::from_utf8_lossy(&text.bytes).into_owned(),
            Content::File(_) => String::new(),
        };
        let changed = self.changed(OURS, RESULT).await?.into_iter().map(path_of).collect();
        let Outcome { merged, already, conflicts } = result;
        Ok(Merge { stat, changed, merged, already, conflicts, patch })
    }

    /// Changes the folder. Git checks each file before it changes the first one.
    ///
    /// # Errors
    /// Returns an error if git refuses the patch, for example because a file has changed since the merge.
    pub(crate) async fn apply(&self, merge: &Merge, folder: &Path) -> Result<(), CliError> {
        self.run_apply(&merge.patch, folder, &[]).await
    }

    /// Checks that [`Self::apply`] can change the folder.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) async fn check_apply(&self, merge: &Merge, folder: &Path) -> Result<(), CliError> {
        self.run_apply(&merge.patch, folder, &["--check"]).await
    }

    /// Reverts [`Self::apply`].
    ///
    /// # Errors
    /// Returns an error if git refuses it, for example because a file has changed since then.
    pub(crate) async fn revert_apply(&self, folder: &Path) -> Result<(), CliError> {
        // `git apply --reverse` creates deleted files with another mode than they had.
        let Content::File(patch) = self.content(Form::Patch, PREFIXES, RESULT, OURS).await? else {
            return Err(CliError::failed("git made no patch"));
        };
        self.run_apply(&patch, folder, &[]).await
    }

    async fn run_apply(&self, patch: &File, folder: &Path, options: &[&str]) -> Result<(), CliError> {
        let failed = |error| CliError::path("change", folder, error);
        let mut command = self.store.git().command();
        // The attributes of the temporary repository apply, so that git writes the bytes of the files.
        command.env("GIT_DIR", self.store.path()).env("GIT_WORK_TREE", folder).current_dir(folder);
        // Each clone of the file continues where the last one stopped.
        let patch = patch.try_clone().and_then(|mut patch| patch.rewind().map(|()| patch));
        command.stdin(Stdio::from(patch.map_err(failed)?));
        let arguments = [&["apply", "--whitespace=nowarn"], options, &["-"]].concat();
        let output = self.store.git().run_command(command, &arguments, None, 0).await.map_err(git_failed)?;
        if output.succeeded() {
            return Ok(());
        }
        Err(CliError::state(format!("cannot change {}: {}", folder.display(), inert(&output.error_text())))
            .hint("nothing was changed; if a file has changed in the meantime, apply again"))
    }

    /// Refuses paths and new links that lead outside of the folder, or into a git directory.
    async fn check(&self, paths: &[Vec<u8>], to: &Files, tip: Option<&ObjectId>) -> Result<(), CliError> {
        for path in paths {
            let Some((mode, object)) = to.get(path) else { continue };
            let place = path_of(path.clone());
            let Some(why) = self.refusal(&place, mode, object).await? else { continue };
            let pull = match self.is_committed(tip, &place, object).await? {
                true => "bottle pull",
                false => "bottle pull --uncommitted",
            };
            return Err(CliError::state(format!("cannot apply {}: {why}", place.display()))
                .about(place.display())
                .hint(format!("nothing was changed; `{pull}` fetches it into a branch")));
        }
        Ok(())
    }

    /// Why this path is not applied. `None` if it is.
    async fn refusal(
        &self,
        place: &Path,
        mode: &str,
        object: &str,
    ) -> Result<Option<&'static str>, CliError> {
        if !is_inside(place) {
            return Ok(Some("its path is not allowed"));
        }
        if mode == "160000" {
            return Ok(Some("it is a submodule"));
        }
        if mode == "120000" {
            let target = self.read(&["cat-file", "blob", object], MAX_LINK).await?.bytes;
            if !leads_inside(place, Path::new(OsStr::from_bytes(&target))) {
                return Ok(Some("it is a link out of the folder"));
            }
        }
        Ok(None)
    }

    /// Whether the last commit of the workspace has this object at this path.
    async fn is_committed(
        &self,
        tip: Option<&ObjectId>,
        place: &Path,
        object: &str,
    ) -> Result<bool, CliError> {
        let Some(tip) = tip else { return Ok(false) };
        let name = format!("{}:{}", tip.as_str(), place.display());
        Ok(self.object(&name).await?.is_some_and(|found| found.as_str() == object))
    }

    /// Imports the files of the folder at these paths, and points [`OURS`] at them.
    async fn import_folder(
        &self,
        folder: &Path,
        paths: &[Vec<u8>],
        deleted: BTreeSet<Vec<u8>>,
    ) -> Result<Vec<Found>, CliError> {
        let (git, folder, paths) = (self.store.git(), folder.to_owned(), paths.to_vec());
        let shown = folder.clone();
        let importing = tokio::task::spawn_blocking(move || {
            let mut import = FastImport::start(git.command(), OURS)?;
            let folder = Directory::open(&folder)?;
            require_attribute_files(&folder, &paths)?;
            let each = paths.iter().map(|path| import_file(&folder, path, &deleted, &mut import));
            let found = each.collect::<io::Result<Vec<_>>>()?;
            import.end()?;
            Ok(found)
        });
        let imported = importing.await.map_err(io::Error::other).and_then(|imported| imported);
        imported.map_err(|error| CliError::path("read", &shown, error))
    }

    /// Merges the changes between `base` and `theirs` into `ours`. Returns the text, and whether it has conflict
    /// markers; none for files that are no text.
    async fn merge_file(&self, sides: [Option<&str>; 3]) -> Result<Option<(Vec<u8>, bool)>, CliError> {
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
            fs::write(&path, content).map_err(|error| CliError::cannot("merge a file", error))?;
            command.arg(path);
        }
        let most = usize::try_from(MAX_FILE * 3).unwrap_or(usize::MAX);
        let merged = self.store.git().run_command(command, &[], None, most).await.map_err(git_failed)?;
        // The exit code is the number of conflicts, at most 127.
        Ok(match merged.code {
            _ if merged.stdout.cut => None,
            Some(0) => Some((merged.stdout.bytes, false)),
            Some(1..=127) => Some((merged.stdout.bytes, true)),
            _ => None,
        })
    }

    fn write_result(
        &self,
        versions: &[(Vec<u8>, Version)],
        ours: &Files,
        to: &Files,
    ) -> Result<(), CliError> {
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
        write().map_err(|error| CliError::cannot("merge the files", error))
    }
}

/// Fails if an attribute file that git opens when it changes these paths is a named pipe or a device. Its content has no
/// effect.
fn require_attribute_files(folder: &Directory, paths: &[Vec<u8>]) -> io::Result<()> {
    let mut parents: BTreeSet<PathBuf> = BTreeSet::new();
    for path in paths {
        parents.extend(Path::new(OsStr::from_bytes(path)).ancestors().skip(1).map(Path::to_owned));
    }
    for parent in parents {
        let file = parent.join(".gitattributes");
        // A directory that is missing, or is a link, has none.
        let Ok(Some(found)) = folder.stat(&file) else { continue };
        let kind = FileType::from_raw_mode(found.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Directory) {
            return Err(io::Error::other(format!("{} is not a regular file", file.display())));
        }
    }
    Ok(())
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
    /// The files at the start.
    start: Files,
    /// The files that were last applied, otherwise those at the start.
    from: Files,
    ours: Files,
    to: Files,
    versions: Vec<(Vec<u8>, Version)>,
    result: Outcome,
}

impl Merging<'_, '_> {
    /// Decides the version of one file.
    async fn file(&mut self, path: Vec<u8>, found: &Found) -> Result<(), CliError> {
        let (base, ours, theirs) = (self.from.get(&path), self.ours.get(&path), self.to.get(&path));
        let version = if let Found::Blocked(why) = found {
            self.conflict(&path, why, false);
            Version::Ours
        } else if ours == theirs || (base == theirs && ours != self.start.get(&path)) {
            // The second case is a file that the user changed after it was applied.
            self.result.already += 1;
            Version::Ours
        } else if ours == base || ours == self.start.get(&path) {
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

    /// Merges a file that both sides have and changed.
    async fn both(
        &mut self,
        path: &[u8],
        base: Option<Entry>,
        ours: Entry,
        theirs: Entry,
    ) -> Result<Version, CliError> {
        let is_file = |entry: &Entry| entry.0.starts_with("100");
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

    /// The content of each file of a folder, with the mode or the target of a link.
    fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
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
        fs::read_dir(folder).expect("a folder").map(|entry| described(entry.expect("an entry"))).collect()
    }

    #[tokio::test]
    async fn reverts_what_it_applied() {
        let home = tempfile::tempdir().expect("folder");
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
        let content = scratch.content(Form::Patch, PREFIXES, OURS, RESULT).await.expect("a patch");
        let Content::File(patch) = content else { panic!("no file") };
        let changed = Vec::new();
        let merge = Merge {
            stat: String::new(),
            changed,
            merged: Vec::new(),
            already: 0,
            conflicts: Vec::new(),
            patch,
        };
        let folder = home.path().join("files");
        fs::create_dir(&folder).expect("created");
        for (name, text) in [("code", "one\n"), ("gone", "x"), ("b", "a\0b"), ("other", "mine")] {
            fs::write(folder.join(name), text).expect("written");
        }
        fs::set_permissions(folder.join("gone"), fs::Permissions::from_mode(0o755)).expect("set");
        let before = files(&folder);
        scratch.check_apply(&merge, &folder).await.expect("it can be applied");
        assert_eq!(files(&folder), before);
        scratch.apply(&merge, &folder).await.expect("applied");
        assert_eq!(fs::read(folder.join("code")).expect("read"), b"one\r\ntwo");
        assert!(folder.join("link").is_symlink() && !folder.join("gone").exists());
        scratch.revert_apply(&folder).await.expect("reverted");
        assert_eq!(files(&folder), before);
        fs::write(folder.join("code"), "changed\n").expect("written");
        assert!(scratch.check_apply(&merge, &folder).await.is_err());
    }
}
