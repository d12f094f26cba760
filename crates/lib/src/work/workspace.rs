//! Imports the files of a workspace into a repository. The files come from the guest's archive and are not
//! written to a directory.
//!
//! The content is imported unchanged: attributes, filters and the index of the bottle's repository have no
//! effect.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use bottle_guest::archive::{Member, Members, What};
use bottle_repository::changes::Version as Entry;
use bottle_repository::conversion::Pointer;
use bottle_repository::ignore_rules::IGNORE_FILE;
use bottle_repository::ignored::{Ignored, MAX_FILE as MAX_IGNORE_FILE};
use bottle_repository::{FastImport, Git};

use super::ObjectId;
use crate::text::{counted, shown};

/// The maximum size of a compared file in bytes. The limit is needed because git keeps a whole file in memory. A larger
/// file is listed as not compared.
pub(super) const MAX_FILE: u64 = 64 << 20;

/// The maximum total size of all compared files, in bytes. A file that would exceed this limit is listed as not
/// compared.
const MAX_TOTAL: u64 = 4 << 30;

/// The maximum number of skipped paths that are listed individually. Further paths are only counted.
const MAX_LISTED: usize = 20;

/// Why a git directory in the workspace is left out.
const NESTED: &str = "it is a nested repository";

/// Why the files of a nested repository that was in the workspace at the start are left out.
const NESTED_FILES: &str = "it is a repository of its own; `bottle cp` brings its files";

/// The files and rules that are known before the import.
pub(super) struct Baseline {
    /// The files at the start, and the files of the known commits, by path.
    pub(super) tracked: HashMap<Vec<u8>, Entry>,
    /// The tracked files that the workspace did not receive at the start, such as the files that a sparse checkout
    /// leaves out. If such a file is missing in the workspace, it is not treated as deleted.
    pub(super) not_given: HashSet<Vec<u8>>,
    /// The directories that were nested repositories at the start. A file in such a directory is compared only if a
    /// known tree contains the file. The agent cannot add directories to this list to hide files.
    pub(super) nested: HashSet<Vec<u8>>,
    /// The tracked files whose content at the start is known only as a pointer, with the pointer.
    pub(super) pointers: HashMap<Vec<u8>, Pointer>,
    /// The temporary git directory, in which contents are stored temporarily.
    pub(super) scratch: PathBuf,
    pub(super) ignored: Ignored,
}

/// Files that were not compared, for a message to the user. The agent chose the paths of these files.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Paths that match only ignore rules of the bottle, each with its number of files.
    pub ignored: Vec<(PathBuf, u64)>,
    /// The number of further files that match only ignore rules of the bottle.
    pub more_ignored: u64,
    /// Paths that were left out for another reason, each with the reason.
    pub places: Vec<(PathBuf, Cow<'static, str>)>,
    /// The number of further paths that were left out for another reason.
    pub more: u64,
}

/// Imports a workspace from the guest's archive as a commit, and points `reference` at this commit.
///
/// # Errors
/// Returns an error if the archive is truncated, or git fails.
pub(super) fn import(
    git: &Git,
    reference: &str,
    baseline: Baseline,
    archive: &mut dyn Read,
) -> io::Result<LeftOut> {
    let submodules = baseline.tracked.iter().filter(|(_, (mode, _))| mode == "160000");
    let submodules = submodules.map(|(path, _)| path.clone()).collect();
    let mut import = FastImport::start(git.command(), reference)?;
    let mut importer =
        Importer { baseline, submodules, left_out: LeftOut::default(), named: HashSet::new(), bytes: 0 };
    let mut archive = tar::Archive::new(archive);
    let mut members = Members::new(archive.entries()?);
    while let Some(mut member) = members.next()? {
        importer.member(&mut member, &mut import)?;
    }
    for path in importer.submodules.iter().chain(&importer.baseline.not_given) {
        importer.baseline.tracked.get(path).map_or(Ok(()), |entry| import.link(path, entry))?;
    }
    import.end()?;
    let (ignored, more_ignored) = importer.baseline.ignored.left_out();
    Ok(LeftOut { ignored: ignored.into_iter().collect(), more_ignored, ..importer.left_out })
}

struct Importer {
    baseline: Baseline,
    submodules: HashSet<Vec<u8>>,
    left_out: LeftOut,
    named: HashSet<PathBuf>,
    bytes: u64,
}

impl Importer {
    fn member(&mut self, member: &mut Member<'_, impl Read>, import: &mut FastImport) -> io::Result<()> {
        let Ok(place) = member.place() else {
            self.leave_out(&member.name, "its path is outside the workspace");
            return Ok(());
        };
        // The first component of the path is the workspace itself.
        let path: PathBuf = place.components().skip(1).collect();
        if path.as_os_str().is_empty() || member.what == What::Directory {
            return Ok(());
        }
        if self.is_left_to_the_user(&path) {
            return Ok(());
        }
        if self.is_in_git_dir(&path) || self.is_in_submodule(&path) || self.is_in_nested(&path) {
            return Ok(());
        }
        let bytes = path.as_os_str().as_bytes();
        self.baseline.not_given.remove(bytes);
        if bytes.contains(&0) {
            self.leave_out(&path, "its name is invalid");
            return Ok(());
        }
        let tracked = self.baseline.tracked.get(bytes);
        let size = member.content.size();
        let room = MAX_TOTAL.saturating_sub(self.bytes);
        let mut rules = None;
        if member.what == What::File
            && path.file_name().is_some_and(|name| name == IGNORE_FILE)
            && size <= room.min(MAX_IGNORE_FILE as u64)
        {
            let mut text = Vec::new();
            member.content.read_to_end(&mut text)?;
            let directory = path.parent().unwrap_or(Path::new(""));
            self.baseline.ignored.inside.add(directory, &String::from_utf8_lossy(&text));
            rules = Some(text);
        }
        let can_import = matches!(member.what, What::File | What::Link(_));
        if can_import && tracked.is_none() && self.baseline.ignored.excludes(&path) {
            return Ok(());
        }
        match &member.what {
            What::File => {
                let mode = if member.mode & 0o100 == 0 { "100644" } else { "100755" };
                if let Some(text) = rules {
                    self.bytes += size;
                    return import.file(bytes, mode, size, &mut text.as_slice());
                }
                let pointer = self.baseline.pointers.get(bytes).filter(|pointer| pointer.size == size);
                // If the mode has changed, the pointer must not replace the file, so the file's content is imported.
                let unchanged = tracked.filter(|(tracked, _)| tracked == mode);
                if let Some((pointer, entry)) = pointer.zip(unchanged) {
                    if size > MAX_FILE || size > room {
                        if Pointer::of(&mut member.content)? == *pointer {
                            return import.link(bytes, entry);
                        }
                    } else {
                        let (mut content, found) = spooled(&self.baseline.scratch, &mut member.content)?;
                        if found == *pointer {
                            return import.link(bytes, entry);
                        }
                        self.bytes += size;
                        return import.file(bytes, mode, size, &mut content);
                    }
                }
                if size > MAX_FILE || size > room {
                    // The file keeps its committed version and is listed as not compared. Otherwise the diff
                    // would show it as deleted.
                    tracked.map_or(Ok(()), |entry| import.link(bytes, entry))?;
                    self.leave_out(
                        &path,
                        if size > MAX_FILE { "it is too large" } else { "the size limit is reached" },
                    );
                    return Ok(());
                }
                self.bytes += size;
                import.file(bytes, mode, size, &mut member.content)
            }
            What::Link(target) => {
                let target = target.as_os_str().as_bytes();
                import.file(bytes, "120000", target.len() as u64, &mut { target })
            }
            What::Directory | What::HardLink(_) | What::Other(_) => {
                // The committed version is kept, so that an entry that cannot be compared is not treated as deleted.
                tracked.map_or(Ok(()), |entry| import.link(bytes, entry))?;
                self.leave_out(&path, "it is not a file, directory or link");
                Ok(())
            }
        }
    }

    /// Whether the user's own ignore rules exclude the path, for example the path of a repository in `node_modules`. An
    /// excluded path is never compared, whatever its type.
    fn is_left_to_the_user(&mut self, path: &Path) -> bool {
        let is_known = self.baseline.tracked.contains_key(path.as_os_str().as_bytes())
            || path.ancestors().any(|place| self.submodules.contains(place.as_os_str().as_bytes()));
        !is_known && self.baseline.ignored.excludes_by_own(path)
    }

    /// Whether the path is in a git directory, either that of the workspace's repository or that of a nested
    /// repository. The other files of a nested repository are compared.
    fn is_in_git_dir(&mut self, path: &Path) -> bool {
        let is_git = |part: &Component<'_>| part.as_os_str().eq_ignore_ascii_case(".git");
        let Some(at) = path.components().position(|part| is_git(&part)) else { return false };
        if at > 0 || !path.starts_with(".git") {
            let top: PathBuf = path.components().take(at + 1).collect();
            let tree = top.parent().unwrap_or(&top);
            let is_known = self.baseline.nested.contains(tree.as_os_str().as_bytes());
            match is_known {
                true => self.leave_out(tree, NESTED_FILES),
                false => self.leave_out(&top, NESTED),
            }
        }
        true
    }

    /// Whether the path is inside a submodule of a commit. A submodule has a separate history.
    fn is_in_submodule(&mut self, path: &Path) -> bool {
        let top = path.ancestors().find(|place| self.submodules.contains(place.as_os_str().as_bytes()));
        if let Some(top) = top {
            self.leave_out(top, "it is a submodule");
        }
        top.is_some()
    }

    /// Whether the path is in a repository that was nested in the workspace at the start, and no known tree contains
    /// the path.
    fn is_in_nested(&mut self, path: &Path) -> bool {
        if self.baseline.nested.is_empty() || self.baseline.tracked.contains_key(path.as_os_str().as_bytes())
        {
            return false;
        }
        let is_nested = |place: &&Path| self.baseline.nested.contains(place.as_os_str().as_bytes());
        let top = path.ancestors().find(is_nested);
        if let Some(top) = top {
            self.leave_out(top, NESTED_FILES);
        }
        top.is_some()
    }

    fn leave_out(&mut self, place: &Path, why: &'static str) {
        if self.named.contains(place) {
            return;
        }
        if self.named.len() < MAX_LISTED {
            self.named.insert(place.to_owned());
            self.left_out.places.push((place.to_owned(), why.into()));
        } else {
            self.left_out.more += 1;
        }
    }
}

impl LeftOut {
    /// Adds a path that was left out.
    pub(super) fn add(&mut self, path: PathBuf, why: impl Into<Cow<'static, str>>) {
        if self.places.len() < MAX_LISTED {
            self.places.push((path, why.into()));
        } else {
            self.more += 1;
        }
    }

    /// Returns warnings about the files that were left out. The user must see these warnings, because an agent can
    /// cause files to be left out. `directory` is the name of the root that contains the files, if the workspace has
    /// several roots. `verb` names the operation that left the files out, such as `compared`.
    pub fn warnings(&self, directory: &str, verb: &str) -> Vec<String> {
        let name = |path: &PathBuf| shown(&Path::new(directory).join(path));
        let files = |count: u64| counted(count, "file");
        let ignored = self.ignored.iter().map(|(path, count)| format!("{} ({})", name(path), files(*count)));
        let mut ignored: Vec<String> = ignored.collect();
        if self.more_ignored > 0 {
            ignored.push(format!("{} more", files(self.more_ignored)));
        }
        let mut warnings = Vec::new();
        if !ignored.is_empty() {
            let ignored = ignored.join(", ");
            warnings.push(format!("left out by ignore rules that exist only in the bottle: {ignored}"));
        }
        let places = self.places.iter();
        warnings.extend(places.map(|(path, why)| format!("{} was not {verb}: {why}", name(path))));
        if self.more > 0 {
            warnings.push(format!("{} more paths were not {verb}", self.more));
        }
        warnings
    }
}

/// Makes a commit with the content of `tree` in a directory, and points `reference` at this commit.
///
/// # Errors
/// Returns an error if git fails.
pub(super) fn commit_in_directory(
    git: Command,
    reference: &str,
    (directory, tree): (&str, &ObjectId),
) -> io::Result<()> {
    let mut import = FastImport::start(git, reference)?;
    import.link(directory.as_bytes(), &("040000".to_owned(), tree.as_str().to_owned()))?;
    import.end()
}

/// Stores the bytes of a file in an unnamed temporary file, and computes their hash and size.
fn spooled(directory: &Path, content: &mut impl Read) -> io::Result<(File, Pointer)> {
    let mut file = tempfile::tempfile_in(directory)?;
    io::copy(content, &mut file)?;
    file.rewind()?;
    let pointer = Pointer::of(&mut file)?;
    file.rewind()?;
    Ok((file, pointer))
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Only a repository that existed at the start is treated as nested, because an agent could hide changes in a new
    /// repository.
    #[test]
    fn a_repository_that_the_agent_makes_hides_no_files() {
        let directory = tempfile::tempdir().expect("directory");
        let git = || {
            let mut git = Command::new("git");
            git.arg("-C").arg(directory.path());
            git
        };
        assert!(git().args(["init", "-q", "--bare"]).status().expect("git").success());
        let mut builder = tar::Builder::new(Vec::new());
        let names =
            ["known/.git/HEAD", "known/new", "known/sub/new", "known/tracked", "made/.git/HEAD", "made/new"];
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(1);
            builder.append_data(&mut header, format!("w/{name}"), &b"x"[..]).expect("append");
        }
        let archive = builder.into_inner().expect("archive");
        let entry = ("100644".to_owned(), "0".repeat(40));
        let baseline = Baseline {
            tracked: [(b"known/tracked".to_vec(), entry)].into(),
            not_given: HashSet::new(),
            nested: [b"known".to_vec()].into(),
            pointers: HashMap::new(),
            scratch: directory.path().to_owned(),
            ignored: Ignored::default(),
        };
        let program = bottle_repository::Program::find(&std::env::var_os("PATH").expect("set")).expect("git");
        let stored = tempfile::tempdir().expect("directory");
        let store =
            bottle_repository::Store::create(&program, stored, bottle_repository::StoreKind::default());
        let store = store.expect("a store");
        let left_out =
            import(&store.git(), "refs/heads/files", baseline, &mut archive.as_slice()).expect("imported");
        let listed = store
            .git()
            .command()
            .args(["ls-tree", "-r", "--name-only", "refs/heads/files"])
            .stdout(Stdio::piped())
            .output();
        let listed = String::from_utf8(listed.expect("git").stdout).expect("text");
        assert_eq!(listed, "known/tracked\nmade/new\n");
        let places: Vec<_> = left_out.places.iter().map(|(path, _)| path.as_path()).collect();
        assert_eq!(places, [Path::new("known"), Path::new("made/.git")]);
    }

    /// Ignore files count towards the limit like other files.
    #[test]
    fn bounds_the_total_size_including_ignore_files() {
        let directory = tempfile::tempdir().expect("directory");
        let git = || {
            let mut git = Command::new("git");
            git.arg("-C").arg(directory.path());
            git
        };
        assert!(git().args(["init", "-q", "--bare"]).status().expect("git").success());
        let mut builder = tar::Builder::new(Vec::new());
        for name in ["w/a/.gitignore", "w/b/.gitignore", "w/c/.gitignore", "w/long", "w/short"] {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            let content = if name == "w/short" { &b"four"[..] } else { &[b'#'; 20] };
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, content).expect("append");
        }
        let archive = builder.into_inner().expect("archive");
        let baseline = Baseline {
            tracked: HashMap::new(),
            not_given: HashSet::new(),
            nested: HashSet::new(),
            pointers: HashMap::new(),
            scratch: directory.path().to_owned(),
            ignored: Ignored::default(),
        };
        let (submodules, named) = (HashSet::new(), HashSet::new());
        let bytes = MAX_TOTAL - 45;
        let mut importer = Importer { baseline, submodules, left_out: LeftOut::default(), named, bytes };
        let mut import = FastImport::start(git(), "refs/heads/files").expect("git");
        let mut archive = tar::Archive::new(archive.as_slice());
        let mut members = Members::new(archive.entries().expect("entries"));
        while let Some(mut member) = members.next().expect("a member") {
            importer.member(&mut member, &mut import).expect("taken");
        }
        import.end().expect("git");
        let left_out: Vec<_> = importer.left_out.places.iter().map(|(path, _)| path.as_path()).collect();
        assert_eq!(left_out, [Path::new("c/.gitignore"), Path::new("long")]);
        assert_eq!(importer.bytes, MAX_TOTAL - 1);
    }
}
