//! Scans every object of a push that the upstream does not have yet.
//!
//! ```text
//! quarantine ─┐                              ┌─► all reachable? ─► commits, tags, trees, blobs
//!             ├─► minus objects of upstream ─┘   (else refused)    through one `cat-file --batch`
//! reachable ──┘
//! ```
//! Memory use is limited to a window of the current object and an index of new trees.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::time::Duration;

use bottle_contract::secret_files::{is_secret_file, is_secret_folder};
use bottle_scan::{Finding, Report, Scanner, Severity};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::archives::split;
use crate::blob_scan::{LineFinding, Lines, Views};
use crate::excerpt::excerpt;
use crate::findings::{Found, Location, MOST_FINDINGS, PushFindings};
use crate::git::{Git, GitError, ReservedFds};
use crate::new_objects::{Kind, MOST_OBJECTS};
use crate::refs::Update;
use crate::tree_index::{Id, TreeIndex, entries, id_from_bytes, id_from_hex};

/// The time limit for one git command that lists the objects of a push. After it, the push is refused.
pub(crate) const LISTED_WITHIN: Duration = Duration::from_secs(300);

/// The time limit for scanning all objects of a push. After it, the push is refused.
const READ_WITHIN: Duration = Duration::from_secs(3600);

/// The maximum size of a commit, tag or tree, in bytes. A push with a larger one is refused.
const MOST_BUFFERED: u64 = 32 << 20;

/// The maximum number of the upstream's commits (parents of pushed commits) whose file names count as known.
/// A file name that only other commits contain is reported again.
const MOST_PARENTS: usize = 64;

/// The maximum number of files and folders in a push whose names match a rule. A push with more is refused.
const MOST_NAMED: usize = 10_000;

/// The number of bytes of a blob that are read in one step.
const PIECE: usize = 64 << 10;

/// The number of object ids that are written to `git cat-file` in one step.
const IDS_AT_ONCE: usize = 1000;

/// The capacity of the pipe from `git cat-file` to the scan, in bytes.
const PIPE: usize = 1 << 20;

/// Why a push cannot be scanned. Its `Display` text is a part of a sentence for the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// git failed, or its output is incomplete.
    #[error("cannot {0}")]
    Output(&'static str),
    #[error("cannot read {0} again")]
    Again(String),
    #[error("scanning the push takes too long; push less at once")]
    Timeout,
    #[error("the push contains more than {MOST_OBJECTS} objects; push less at once")]
    Objects,
    #[error("the push contains an object of unknown type")]
    UnknownType,
    #[error(
        "the push contains objects that none of its refs reaches, such as {0}; push without them (`git gc` and push \
         again)"
    )]
    Unreachable(String),
    #[error("{0} is too large for a commit, tag or tree")]
    TooLarge(String),
    #[error("{0} is too large to scan when unpacked")]
    Bomb(String),
    #[error(
        "{0} is a Git LFS pointer, which the git gate does not support; commit the file itself, or leave it out"
    )]
    LfsPointer(String),
    #[error("{0} contains too much that looks like a secret; leave it out")]
    Findings(String),
    #[error("it has too many files that hold secrets by their name")]
    SecretFiles,
    #[error("too many names of its files look like secrets")]
    FlaggedNames,
}

/// Scans the objects of a push. On an error, `findings` contains the findings up to that point.
pub(crate) async fn read_push(
    mirror: &Git,
    quarantine: &str,
    updates: &[Update],
    scanner: &Scanner,
    fds: &ReservedFds,
    findings: &mut PushFindings,
) -> Result<(), ReadError> {
    let reader = Reader { mirror, quarantine, scanner, fds };
    tokio::time::timeout(READ_WITHIN, reader.scan(updates, findings)).await.map_err(|_| ReadError::Timeout)?
}

pub(crate) struct Reader<'a> {
    pub(crate) mirror: &'a Git,
    pub(crate) quarantine: &'a str,
    scanner: &'a Scanner,
    pub(crate) fds: &'a ReservedFds,
}

impl Reader<'_> {
    async fn scan(&self, updates: &[Update], findings: &mut PushFindings) -> Result<(), ReadError> {
        let new = self.new_objects(updates).await?;
        let mut index = TreeIndex::default();
        self.scan_objects(&new, &mut index, findings).await?;
        self.report_names(updates, &mut index, findings).await?;
        self.report_secret_files(updates, &mut index, findings).await?;
        if !findings.found.is_empty() {
            self.mark_ignored(updates, findings).await?;
        }
        Ok(())
    }

    /// Returns a [`Git`] that sees the objects of this push's quarantine and of the mirror.
    pub(crate) fn with_quarantine(&self) -> Git {
        with_quarantine(self.mirror, self.quarantine)
    }

    /// Scans all new objects with one `git cat-file` process. The process receives ids while its output is
    /// read.
    async fn scan_objects(
        &self,
        new: &[(Kind, String)],
        index: &mut TreeIndex,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let mut running =
            self.with_quarantine().spawn(self.fds, &["cat-file", "--batch", "--buffer"], true)?;
        let (stdin, stdout) = (running.child.stdin.take(), running.child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(ReadError::Output("read the objects of the push"));
        };
        // If the kernel refuses the size, the processes only wait more often for each other.
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE);
        let new_ids: HashSet<Id> = new.iter().filter_map(|(_, id)| id_from_hex(id)).collect();
        let feed = async {
            for ids in new.chunks(IDS_AT_ONCE) {
                let lines: String = ids.iter().flat_map(|(_, id)| [id.as_str(), "\n"]).collect();
                stdin.write_all(lines.as_bytes()).await?;
            }
            stdin.flush().await?;
            drop(stdin);
            Ok::<_, io::Error>(())
        };
        let mut stdout = BufReader::with_capacity(PIECE, stdout);
        let scan = async {
            for (kind, id) in new {
                let size = header(&mut stdout, id).await?;
                let mut content = (&mut stdout).take(size);
                match kind {
                    Kind::Blob => self.scan_blob(id, &mut content, index, findings).await?,
                    _ => self.scan_buffered(*kind, id, size, &mut content, &new_ids, index, findings).await?,
                }
                if content.limit() > 0 {
                    return Err(ReadError::Output("read an object of the push to its end"));
                }
                let mut end = [0];
                stdout.read_exact(&mut end).await?;
            }
            Ok(())
        };
        let (fed, scanned) = tokio::join!(feed, scan);
        scanned?;
        Ok(fed?)
    }

    /// Scans a commit, tag or tree after buffering it completely.
    #[allow(clippy::too_many_arguments, reason = "one object and the state so far")]
    async fn scan_buffered(
        &self,
        kind: Kind,
        id: &str,
        size: u64,
        content: &mut (impl AsyncRead + Unpin),
        new: &HashSet<Id>,
        index: &mut TreeIndex,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        if size > MOST_BUFFERED {
            return Err(ReadError::TooLarge(id.to_owned()));
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).await?;
        match kind {
            Kind::Tree => {
                index.width = id.len() / 2;
                self.scan_tree(id, &bytes, new, index)?;
            }
            _ => {
                let word = if kind == Kind::Tag { "tag" } else { "commit" };
                if let Some(root) = tree_of(&bytes)
                    && let (Some(root), Some(commit)) = (id_from_hex(root), id_from_hex(id))
                {
                    index.roots.entry(root).or_insert(commit);
                }
                let commit = (kind == Kind::Commit).then(|| id.to_owned());
                self.scan_text(&bytes, word, commit.as_ref(), findings)?;
                // git also accepts messages in UTF-16 and UTF-32.
                if bytes.contains(&0) {
                    bytes.retain(|byte| *byte != 0);
                    self.scan_text(&bytes, word, commit.as_ref(), findings)?;
                }
            }
        }
        Ok(())
    }

    /// Scans the text of a commit or tag.
    fn scan_text(
        &self,
        bytes: &[u8],
        word: &str,
        commit: Option<&String>,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        for finding in blocking(self.scanner.scan(bytes), word)? {
            let at = usize::try_from(finding.span.start).unwrap_or(usize::MAX);
            let end = usize::try_from(finding.span.end).unwrap_or(usize::MAX).min(bytes.len());
            let location = format!("the {word}'s {}", section(bytes, at));
            let value = bytes.get(at..end).unwrap_or_default();
            let excerpt = excerpt_of(bytes, at..end, self.scanner);
            let location = Location { excerpt, ..Location::new(commit.cloned(), location) };
            findings.add(Found::from_scan(&finding, location, value));
        }
        Ok(())
    }

    /// Scans the names in a tree, and adds its entries to the index.
    fn scan_tree(
        &self,
        id: &str,
        bytes: &[u8],
        new: &HashSet<Id>,
        index: &mut TreeIndex,
    ) -> Result<(), ReadError> {
        let Some(own) = id_from_hex(id) else { return Ok(()) };
        let (mut names, mut ends, mut text) = (Vec::new(), Vec::new(), Vec::new());
        for (name, child, is_folder) in entries(bytes, index.width) {
            if !index.is_first_seen(name, child) {
                continue;
            }
            let child = id_from_bytes(child);
            // The rules for names apply to every type of entry (file, symlink, submodule), even if the
            // upstream already has the content.
            if is_folder && is_secret_folder(name) {
                index.secret_folders.entry((name.into(), child)).or_insert(own);
            } else if !is_folder && is_secret_file(b"", name) {
                index.secret_files.entry((Box::default(), name.into(), child)).or_insert(own);
            }
            if index.secret_folders.len() + index.secret_files.len() > MOST_NAMED {
                return Err(ReadError::SecretFiles);
            }
            if new.contains(&child) {
                index.parents.entry(child).or_insert_with(|| (own, name.into()));
            }
            text.extend_from_slice(name);
            text.push(b'\n');
            names.push(name);
            ends.push(text.len() as u64);
        }
        for finding in blocking(self.scanner.scan(&text), "a folder")? {
            let at = ends.partition_point(|end| *end <= finding.span.start);
            let Some(name) = names.get(at) else { continue };
            index.flagged_names.entry((*name).into()).or_insert((own, finding));
            if index.flagged_names.len() > MOST_FINDINGS {
                return Err(ReadError::FlaggedNames);
            }
        }
        Ok(())
    }

    /// Reports the names with a finding that the upstream does not have yet.
    async fn report_names(
        &self,
        updates: &[Update],
        index: &mut TreeIndex,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let mut named = std::mem::take(&mut index.flagged_names);
        if named.is_empty() {
            return Ok(());
        }
        let git = self.with_quarantine();
        let listed = self.reachable(&["--boundary"], updates).await?;
        for parent in listed.lines().filter_map(|line| line.strip_prefix('-')).take(MOST_PARENTS) {
            let arguments = ["ls-tree", "-r", "-t", "-z", "--name-only", parent];
            let listed = git.run(self.fds, &arguments, LISTED_WITHIN).await?;
            for path in listed.stdout.split(|byte| *byte == 0) {
                named.remove(split(path).1);
            }
        }
        for (name, (tree, finding)) in named {
            // For a known secret, the length of the name is left out too. Names are scanned together, and the
            // length would reveal where the match starts.
            let location = match finding.secret {
                Some(_) => "the name of a file".to_owned(),
                None => format!("the name of a file, {} characters long", name.len()),
            };
            findings.add(Found::from_scan(&finding, Location::new(index.commit(&tree), location), &name));
        }
        Ok(())
    }

    /// Reports files whose names indicate secrets, unless the upstream has the same content under that name.
    async fn report_secret_files(
        &self,
        updates: &[Update],
        index: &mut TreeIndex,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let mut files = std::mem::take(&mut index.secret_files);
        for ((folder, tree), parent) in std::mem::take(&mut index.secret_folders) {
            for (id, path) in self.list_tree(&hex::encode(&tree[..index.width]), &[]).await? {
                if is_secret_file(&folder, &path) && !is_secret_file(b"", &path) {
                    files.entry((folder.clone(), path.into(), id)).or_insert(parent);
                }
            }
        }
        if files.is_empty() {
            return Ok(());
        }
        let boundary = self.reachable(&["--boundary"], updates).await?;
        for parent in boundary.lines().filter_map(|line| line.strip_prefix('-')).take(MOST_PARENTS) {
            for (id, path) in self.list_tree(parent, &["-r"]).await? {
                let (folder, name) = split(&path);
                files.remove(&(Box::default(), name.into(), id));
                files.remove(&(folder.into(), name.into(), id));
            }
            if files.is_empty() {
                break;
            }
        }
        for ((folder, name, id), tree) in files {
            let (commit, mut path) = index.path(&tree);
            for part in [folder, name].iter().filter(|part| !part.is_empty()) {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
            let id = hex::encode(&id[..index.width]);
            let words = "a file that holds secrets by its name";
            findings.add(Found::from_name(
                "secret-file",
                words,
                Location::new(commit, display_path(&path, &id)),
                id.as_bytes(),
            ));
        }
        Ok(())
    }

    /// Lists the objects and paths in a tree, without folders.
    async fn list_tree(&self, tree: &str, options: &[&str]) -> Result<Vec<(Id, Vec<u8>)>, ReadError> {
        let arguments = [&["ls-tree", "-z"], options, &[tree]].concat();
        let output = self.with_quarantine().run(self.fds, &arguments, LISTED_WITHIN).await?;
        if !output.success {
            return Err(ReadError::Output("list the folders of the push"));
        }
        let lines = output.stdout.split(|byte| *byte == 0).filter_map(|line| {
            let tab = line.iter().position(|byte| *byte == b'\t')?;
            let mut words = std::str::from_utf8(&line[..tab]).ok()?.split(' ');
            let (kind, id) = (words.nth(1)?, words.next()?);
            (kind != "tree").then_some((id_from_hex(id)?, line[tab + 1..].to_vec()))
        });
        Ok(lines.collect())
    }

    /// Scans a blob of any size as a stream.
    async fn scan_blob(
        &self,
        id: &str,
        content: &mut (impl AsyncRead + Unpin),
        index: &TreeIndex,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let (commit, path) = id_from_hex(id).map_or((None, Vec::new()), |own| index.path(&own));
        let shown = display_path(&path, id);
        let location = |inside: &str| Location::new(commit.clone(), format!("{shown}{inside}"));
        let path = String::from_utf8_lossy(&path);
        let path = Some(&*path).filter(|path| !path.is_empty());
        for (rule, _) in path.into_iter().flat_map(|path| self.scanner.of_name(path)) {
            let words = format!("a file whose name matches your rule `{rule}`");
            findings.add(Found::from_name(rule, &words, location(""), id.as_bytes()));
        }
        let mut views = Views::new(self.scanner, path);
        let mut piece = vec![0; PIECE];
        let mut first = true;
        loop {
            let read = content.read(&mut piece).await?;
            if read == 0 {
                break;
            }
            if first && piece[..read].starts_with(b"version https://git-lfs.github.com/spec/") {
                return Err(ReadError::LfsPointer(shown));
            }
            views.feed(&piece[..read]);
            first = false;
            // Scanning uses CPU time, so other tasks get a chance to run.
            tokio::task::yield_now().await;
        }
        let report = views.finish();
        if let Some(file) = report.file {
            let words = format!("contains {file:?}, a file that holds secrets by its name");
            findings.add(Found::from_name("secret-file", &words, location(""), id.as_bytes()));
        }
        if report.bomb {
            return Err(ReadError::Bomb(shown));
        }
        let (plain, wide) = (blocking(report.plain, &shown)?, blocking(report.wide, &shown)?);
        let unpacked = blocking(report.unpacked, &shown)?;
        let mut values = HashSet::new();
        for (hits, wide) in [(plain, false), (wide, true)] {
            for (in_line, finding) in self.find_lines(id, &hits, wide).await?.into_iter().zip(&hits) {
                // The view without zeros repeats the findings of the unchanged bytes.
                if !wide || !values.contains(&in_line.value()) {
                    values.insert(in_line.value());
                    let excerpt = in_line.excerpt.clone();
                    let location = Location { line: in_line.line, excerpt, ..location("") };
                    let marked = in_line.marked.then_some("gitleaks:allow");
                    findings.add(Found { marked, ..Found::from_scan(finding, location, &in_line.value()) });
                }
            }
        }
        for finding in unpacked {
            let value = [id.as_bytes(), finding.rule.as_bytes()].concat();
            findings.add(Found::from_scan(&finding, location(" (packed)"), &value));
        }
        Ok(())
    }

    /// Reads a blob a second time to determine the lines of its findings, in the unchanged bytes or in the
    /// view without zeros.
    async fn find_lines(
        &self,
        id: &str,
        findings: &[Finding],
        wide: bool,
    ) -> Result<Vec<LineFinding>, ReadError> {
        if findings.is_empty() {
            return Ok(Vec::new());
        }
        let mut running = self.with_quarantine().spawn(self.fds, &["cat-file", "blob", id], false)?;
        let stdout = running.child.stdout.take();
        let mut stdout = stdout.ok_or_else(|| ReadError::Again(id.to_owned()))?;
        let mut lines = Lines::new(findings.iter().take(MOST_FINDINGS + 1), self.scanner);
        let mut piece = vec![0; PIECE];
        loop {
            let read = stdout.read(&mut piece).await?;
            if read == 0 {
                break;
            }
            if wide {
                let narrow: Vec<u8> = piece[..read].iter().copied().filter(|byte| *byte != 0).collect();
                lines.feed(&narrow);
            } else {
                lines.feed(&piece[..read]);
            }
            tokio::task::yield_now().await;
        }
        Ok(lines.finish())
    }

    /// Marks the findings that `.gitleaksignore` in a pushed commit lists as `[commit:]path:rule:line`.
    async fn mark_ignored(&self, updates: &[Update], findings: &mut PushFindings) -> Result<(), ReadError> {
        for update in updates.iter().filter(|update| !update.deletes()) {
            let file = format!("{}:.gitleaksignore", update.new);
            let arguments = ["cat-file", "blob", &file];
            let shown = self.with_quarantine().run(self.fds, &arguments, LISTED_WITHIN).await?;
            if !shown.success || shown.stdout.len() > 1 << 20 {
                continue;
            }
            let text = String::from_utf8_lossy(&shown.stdout);
            let ignored: HashSet<&str> = text.lines().map(str::trim).collect();
            for found in findings.found.iter_mut().filter(|found| found.marked.is_none()) {
                let short = format!("{}:{}:{}", found.location, found.rule, found.line.unwrap_or(0));
                let long = format!("{}:{short}", found.commit.as_deref().unwrap_or_default());
                if ignored.contains(short.as_str()) || ignored.contains(long.as_str()) {
                    found.marked = Some(".gitleaksignore");
                }
            }
        }
        Ok(())
    }
}

/// Returns a [`Git`] that sees the objects of a quarantine and, as its alternate, of the mirror.
pub(crate) fn with_quarantine(mirror: &Git, quarantine: &str) -> Git {
    let objects = mirror.mirror.join("objects");
    mirror.with_env([
        ("GIT_OBJECT_DIRECTORY".to_owned(), quarantine.to_owned()),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES".to_owned(), objects.to_string_lossy().into_owned()),
    ])
}

/// The findings in `report` that block a push. An incomplete report is an error, unless it contains a known
/// secret, which blocks the push anyway.
fn blocking(report: Report, what: &str) -> Result<Vec<Finding>, ReadError> {
    if report.more && report.findings.iter().all(|finding| finding.secret.is_none()) {
        return Err(ReadError::Findings(what.to_owned()));
    }
    let mut findings = report.findings;
    findings.retain(|finding| finding.severity == Severity::Block);
    Ok(findings)
}

/// A path in a form that is safe for a terminal, or the object id if there is no path.
fn display_path(path: &[u8], id: &str) -> String {
    if path.is_empty() {
        return format!("the object {id}");
    }
    bottle_contract::terminal::inert(&String::from_utf8_lossy(path).replace(['\n', '\t'], "?"))
}

/// The id of a commit's tree.
fn tree_of(commit: &[u8]) -> Option<&str> {
    let line = commit.strip_prefix(b"tree ")?.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok()
}

/// Names the section of a commit or tag in which the byte at `at` lies.
fn section(bytes: &[u8], at: usize) -> &'static str {
    let head = bytes.windows(2).position(|window| window == b"\n\n").unwrap_or(bytes.len());
    if at > head {
        return "message";
    }
    let line = bytes[..at.min(bytes.len())].rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let begin = at.min(bytes.len()) - line.len();
    match bytes.get(begin..).unwrap_or_default() {
        line if line.starts_with(b"author ") => "author",
        line if line.starts_with(b"committer ") => "committer",
        line if line.starts_with(b"tagger ") => "tagger",
        _ => "head",
    }
}

/// The line of a commit or tag in which a finding begins, without secrets.
fn excerpt_of(bytes: &[u8], finding: Range<usize>, scanner: &Scanner) -> Option<String> {
    let begin = bytes.get(..finding.start)?.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = bytes[begin..].split(|byte| *byte == b'\n').next()?;
    excerpt(line, finding.start - begin..finding.end.saturating_sub(begin), [], scanner)
}

/// Reads a line of the form `id type size`, and returns the size.
async fn header(stdout: &mut (impl AsyncBufReadExt + Unpin), id: &str) -> Result<u64, ReadError> {
    let mut line = String::new();
    stdout.take(256).read_line(&mut line).await?;
    let size = line.strip_prefix(id).and_then(|rest| rest.trim().rsplit(' ').next()?.parse().ok());
    size.ok_or(ReadError::Output("read an object of the push"))
}
