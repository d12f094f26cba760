//! Lists the files of a workspace that differ from its base, and packs their content in the base.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::SystemTime;

use bottle_channel::Channel;
use bottle_repository::Git;
use tar::{Builder, EntryType, Header};

use super::Work;
use super::scratch::{FILES, MAX_LISTING};
use super::workspace::{Entry, LeftOut};
use crate::cli::error::CliError;

/// The maximum length of the target of a symlink in bytes, as in Linux.
const MAX_TARGET: u64 = 4096;

/// The maximum length of the line before an object's content in bytes.
const MAX_HEAD: u64 = 200;

/// A file that differs from the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// The path from the workspace on.
    path: Vec<u8>,
    /// Its mode and content in the base. None if it was created since.
    before: Option<Entry>,
}

impl Change {
    /// The path from the workspace on.
    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Whether the file is not in the base.
    pub(crate) fn is_new(&self) -> bool {
        self.before.is_none()
    }
}

impl Work<'_> {
    /// Imports the workspace's files, and lists those that differ from the base, sorted by path.
    ///
    /// # Errors
    /// Returns an error if the import or git fails, or if too many files differ.
    pub(crate) async fn changes(&self, channel: &Channel) -> Result<(Vec<Change>, LeftOut), CliError> {
        let left_out = self.import(channel).await?;
        let arguments =
            ["diff-tree", "-r", "-z", "--raw", "--no-renames", self.base.tree.as_str(), FILES, "--"];
        let listed = self.scratch.read(&arguments, MAX_LISTING).await?;
        if listed.cut {
            return Err(CliError::failed("cannot compare: too many files differ"));
        }
        let mut changes =
            parse(&listed.bytes).ok_or_else(|| CliError::failed("cannot compare: git's list is damaged"))?;
        if self.root.is_folder() {
            let folder = format!("{}/", self.root.name).into_bytes();
            changes.iter_mut().for_each(|change| change.path = [&folder, &change.path[..]].concat());
        }
        Ok((changes, left_out))
    }

    /// Returns a function that writes the changed files as an archive, with the content and mode that they have in the
    /// base. Created files are left out.
    pub(crate) fn restoring(
        &self,
        changes: &[Change],
    ) -> impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + use<> {
        let restored: Vec<(Vec<u8>, Entry)> =
            changes.iter().filter_map(|change| Some((change.path.clone(), change.before.clone()?))).collect();
        let git = self.scratch.store.git();
        move |out| pack(&git, &restored, out)
    }
}

/// Parses the output of `git diff-tree --raw -z`: `:MODE MODE OBJECT OBJECT STATUS`, and the path.
fn parse(bytes: &[u8]) -> Option<Vec<Change>> {
    let mut parts = bytes.split(|byte| *byte == 0);
    let mut changes = Vec::new();
    while let Some(head) = parts.next().filter(|head| !head.is_empty()) {
        let mut words = std::str::from_utf8(head).ok()?.strip_prefix(':')?.split(' ');
        let (mode, object) = (words.next()?, words.nth(1)?);
        let path = parts.next()?.to_vec();
        let before = (mode != "000000").then(|| (mode.to_owned(), object.to_owned()));
        changes.push(Change { path, before });
    }
    changes.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Some(changes)
}

/// Writes files of a repository as an archive.
fn pack(git: &Git, files: &[(Vec<u8>, Entry)], out: &mut dyn Write) -> io::Result<()> {
    let mut archive = Builder::new(out);
    let mut objects = Objects::start(git.command())?;
    // Build tools compare the times of files, so a restored file gets the time of a change.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    for (path, (mode, object)) in files {
        let path = Path::new(OsStr::from_bytes(path));
        let mut content = objects.open(object)?;
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
        objects.close()?;
    }
    archive.finish()
}

/// A running `git cat-file --batch`. Dropping the value kills the process.
struct Objects {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Objects {
    fn start(mut git: Command) -> io::Result<Self> {
        git.args(["cat-file", "--batch"]);
        git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = git.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, requests, answers: BufReader::new(answers) })
    }

    /// Returns the content of a file, which the caller reads to its end before [`Self::close`].
    fn open(&mut self, object: &str) -> io::Result<Take<&mut BufReader<ChildStdout>>> {
        writeln!(self.requests, "{object}")?;
        // The answer is `OBJECT blob SIZE`, or `OBJECT missing`.
        let mut head = String::new();
        (&mut self.answers).take(MAX_HEAD).read_line(&mut head)?;
        let mut words = head.trim_end().split(' ').skip(1);
        let size = words.next().filter(|kind| *kind == "blob").and_then(|_| words.next()?.parse().ok());
        let size = size.ok_or_else(|| io::Error::other(format!("the repository lacks the file {object}")))?;
        Ok((&mut self.answers).take(size))
    }

    /// Reads the line feed behind the content.
    fn close(&mut self) -> io::Result<()> {
        self.answers.read_exact(&mut [0])
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Both calls do nothing if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_list_of_changes() {
        let (none, one, two) = ("0".repeat(40), "1".repeat(40), "2".repeat(40));
        let list = format!(
            ":100644 000000 {one} {none} D\0b\nc\0:000000 100755 {none} {two} A\0a\0:120000 100644 {one} {two} T\0z\0"
        );
        let changes = parse(list.as_bytes()).expect("parsed");
        let shown: Vec<_> = changes.iter().map(|change| (change.path(), change.before.clone())).collect();
        let entry = |mode: &str| Some((mode.to_owned(), one.clone()));
        assert_eq!(
            shown,
            [(Path::new("a"), None), (Path::new("b\nc"), entry("100644")), (Path::new("z"), entry("120000"))]
        );
        assert_eq!(parse(b""), Some(Vec::new()));
        for damaged in ["100644 100644 1 2 M\0a\0", ":100644 100644 1 2 M", ":100644\0a\0"] {
            assert_eq!(parse(damaged.as_bytes()), None, "{damaged:?}");
        }
    }
}
