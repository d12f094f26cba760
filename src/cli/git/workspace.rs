//! Imports the files of a workspace into a repository. The files come from the guest's archive and are not
//! written to a folder.
//!
//! The content is imported unchanged: attributes, filters and the index of the bottle's repository have no
//! effect.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bottle_guest::archive::{Member, Members, What};
use bottle_repository::Git;

use super::ObjectId;
use super::ignored::{FILE_NAME, Ignored, MAX_FILE as MAX_IGNORE_FILE};

/// The maximum size of a compared file in bytes, because git keeps a whole file in memory. A larger file is
/// listed as not compared.
pub(super) const MAX_FILE: u64 = 64 << 20;

/// The maximum total size of all compared files, in bytes. A file that exceeds it is listed as not compared.
const MAX_TOTAL: u64 = 4 << 30;

/// The maximum number of skipped paths that are listed individually. Further paths are only counted.
const MAX_LISTED: usize = 20;

/// The maximum number of bytes kept of git's standard error. The rest is dropped.
const MAX_STDERR: u64 = 2000;

/// A file of a commit: its mode and object id, as git prints them.
pub(super) type Entry = (String, String);

/// The files and rules that are known before the import.
pub(super) struct Baseline {
    /// The files of the known commits, by path.
    pub(super) tracked: HashMap<Vec<u8>, Entry>,
    /// The files of these commits that the user's sparse checkout leaves out. A workspace without them has not deleted
    /// them.
    pub(super) sparse: HashSet<Vec<u8>>,
    pub(super) ignored: Ignored,
}

/// Files that were not compared, for a message to the user. The bottle chose their paths.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// Paths that only ignore rules in the bottle match, each with its number of files.
    pub(crate) ignored: Vec<(PathBuf, u64)>,
    /// The number of further files that only ignore rules in the bottle match.
    pub(crate) more_ignored: u64,
    /// Paths that were left out for another reason, each with the reason.
    pub(crate) places: Vec<(PathBuf, &'static str)>,
    /// The number of further paths that were left out for another reason.
    pub(crate) more: u64,
}

/// Imports a workspace from the guest's archive as a commit, and points `reference` at it.
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
    for path in importer.submodules.iter().chain(&importer.baseline.sparse) {
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
        if path.as_os_str().is_empty() || member.what == What::Folder {
            return Ok(());
        }
        if self.is_in_git_dir(&path) || self.is_in_submodule(&path) {
            return Ok(());
        }
        let bytes = path.as_os_str().as_bytes();
        self.baseline.sparse.remove(bytes);
        if bytes.contains(&0) {
            self.leave_out(&path, "its name is invalid");
            return Ok(());
        }
        let tracked = self.baseline.tracked.get(bytes);
        let size = member.content.size();
        let room = MAX_TOTAL.saturating_sub(self.bytes);
        let mut rules = None;
        if member.what == What::File
            && path.file_name().is_some_and(|name| name == FILE_NAME)
            && size <= room.min(MAX_IGNORE_FILE as u64)
        {
            let mut text = Vec::new();
            member.content.read_to_end(&mut text)?;
            let folder = path.parent().unwrap_or(Path::new(""));
            self.baseline.ignored.inside.add(folder, &String::from_utf8_lossy(&text));
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
            What::Folder | What::HardLink(_) | What::Other(_) => {
                self.leave_out(&path, "it is not a file, folder or link");
                Ok(())
            }
        }
    }

    /// Whether the path is in a git directory, either the workspace's own or a nested repository's. The other
    /// files of a nested repository are compared.
    fn is_in_git_dir(&mut self, path: &Path) -> bool {
        let is_git = |part: &Component<'_>| part.as_os_str().eq_ignore_ascii_case(".git");
        let Some(at) = path.components().position(|part| is_git(&part)) else { return false };
        if at > 0 || !path.starts_with(".git") {
            let top: PathBuf = path.components().take(at + 1).collect();
            self.leave_out(&top, "it is a nested repository");
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

    fn leave_out(&mut self, place: &Path, why: &'static str) {
        if self.named.contains(place) {
            return;
        }
        if self.named.len() < MAX_LISTED {
            self.named.insert(place.to_owned());
            self.left_out.places.push((place.to_owned(), why));
        } else {
            self.left_out.more += 1;
        }
    }
}

/// Makes a commit that has the files of `parent`, except that the folder `prefix` has the content of `tree`. Points
/// `reference` at it. `prefix` may be the root.
///
/// # Errors
/// Returns an error if git fails.
pub(super) fn commit_folder(
    git: Command,
    reference: &str,
    parent: &ObjectId,
    (prefix, tree): (&str, &ObjectId),
) -> io::Result<()> {
    let mut import = FastImport::start(git, reference)?;
    writeln!(import.input()?, "from {}", parent.as_str())?;
    let entry = ("040000".to_owned(), tree.as_str().to_owned());
    import.link(prefix.trim_end_matches('/').as_bytes(), &entry)?;
    import.end()
}

/// Makes a commit with the content of `tree` in a folder, and points `reference` at it.
///
/// # Errors
/// Returns an error if git fails.
pub(super) fn commit_in_folder(
    git: Command,
    reference: &str,
    (folder, tree): (&str, &ObjectId),
) -> io::Result<()> {
    let mut import = FastImport::start(git, reference)?;
    import.link(folder.as_bytes(), &("040000".to_owned(), tree.as_str().to_owned()))?;
    import.end()
}

/// A running `git fast-import` process. Dropping the value before the end kills the process.
pub(super) struct FastImport {
    child: Child,
    input: Option<BufWriter<std::process::ChildStdin>>,
}

impl FastImport {
    pub(super) fn start(mut git: Command, reference: &str) -> io::Result<Self> {
        git.args(["-c", "core.compression=1", "fast-import", "--quiet", "--done"]);
        git.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = git.spawn()?;
        let mut input = child.stdin.take().map(BufWriter::new);
        if let Some(input) = &mut input {
            write!(input, "commit {reference}\ncommitter bottle <> 0 +0000\ndata 0\n")?;
        }
        Ok(Self { child, input })
    }

    fn input(&mut self) -> io::Result<&mut BufWriter<std::process::ChildStdin>> {
        self.input.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    pub(super) fn file(
        &mut self,
        path: &[u8],
        mode: &str,
        size: u64,
        content: &mut impl Read,
    ) -> io::Result<()> {
        let input = self.input()?;
        write!(input, "M {mode} inline ")?;
        input.write_all(&quoted(path))?;
        write!(input, "\ndata {size}\n")?;
        if io::copy(&mut content.take(size), input)? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        input.write_all(b"\n")
    }

    /// Adds a path with the mode and object id that it has in a commit.
    pub(super) fn link(&mut self, path: &[u8], (mode, object): &Entry) -> io::Result<()> {
        let input = self.input()?;
        write!(input, "M {mode} {object} ")?;
        input.write_all(&quoted(path))?;
        input.write_all(b"\n")
    }

    pub(super) fn end(mut self) -> io::Result<()> {
        let ended = self.input().and_then(|input| {
            input.write_all(b"done\n")?;
            input.flush()
        });
        self.input = None;
        let mut stderr = Vec::new();
        if let Some(errors) = self.child.stderr.take() {
            errors.take(MAX_STDERR).read_to_end(&mut stderr)?;
        }
        if self.child.wait()?.success() {
            return ended;
        }
        Err(io::Error::other(format!("git failed: {}", String::from_utf8_lossy(&stderr).trim())))
    }
}

impl Drop for FastImport {
    fn drop(&mut self) {
        // Both calls do nothing if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Quotes a path with arbitrary bytes for git's streams and files.
pub(super) fn quoted(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in path {
        match byte {
            b'\n' => quoted.extend(b"\\n"),
            b'"' | b'\\' => quoted.extend([b'\\', *byte]),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ignore files count towards the limit like other files.
    #[test]
    fn bounds_the_total_size_including_ignore_files() {
        let folder = tempfile::tempdir().expect("folder");
        let git = || {
            let mut git = Command::new("git");
            git.arg("-C").arg(folder.path());
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
        let baseline =
            Baseline { tracked: HashMap::new(), sparse: HashSet::new(), ignored: Ignored::default() };
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
