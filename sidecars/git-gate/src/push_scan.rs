//! Scans every object of a push that the upstream does not have yet.
//!
//! ```text
//! quarantine ─┐                              ┌─► all reachable? ─► their new paths ─► commits, tags, trees, blobs
//!             ├─► minus objects of upstream ─┘   (else refused)                       through one `cat-file --batch`
//! reachable ──┘
//! ```
//! The scan keeps only a window of the current object and an index of new trees in memory.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

use bottle_scan::{Detector, Finding, Scanner};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::archives::{Archives, split};
use crate::blob_scan::{LineFinding, Lines, Views};
use crate::content_checks::{StrayReturns, is_lfs_pointer};
use crate::encoding;
use crate::excerpt::excerpt;
use crate::findings::{Found, Location, MOST_FINDINGS, PushFindings};
use crate::git::{Git, ReservedFds};
use crate::new_objects::Kind;
use crate::new_paths::{NewPaths, Place, SecretFile};
use crate::push_limits::{LISTED_WITHIN, LONGEST_PATH};
use crate::push_reader::Reader;
use crate::read_error::{ReadError, blocking, display_path};
use crate::refs::Update;
use crate::tree_index::{EntryKind, Id, TreeIndex, entries, id_from_bytes, id_from_hex};

/// The time limit for scanning all objects of a push. When the limit is reached, the push is refused.
const READ_WITHIN: Duration = Duration::from_secs(3600);

/// The maximum size of a commit, tag or tree, in bytes. A push with a larger commit, tag or tree is refused.
const MOST_BUFFERED: u64 = 32 << 20;

/// The maximum number of parents of the pushed commits for which the gate lists the files that the upstream already
/// has. A file name that only other commits of the upstream contain is reported again.
const MOST_PARENTS: usize = 64;

/// The number of bytes of a blob that are read in one step.
const PIECE: usize = 64 << 10;

/// The number of bytes at the beginning of a file that are searched for a Git LFS pointer.
const LFS_POINTER: usize = 1024;

/// The number of object ids that are written to `git cat-file` in one step.
const IDS_AT_ONCE: usize = 1000;

/// The capacity of the pipe from `git cat-file` to the scan, in bytes.
const PIPE: usize = 1 << 20;

/// The scanner for the contents of a push.
#[derive(Clone, Copy)]
pub(crate) struct Detectors<'a> {
    pub(crate) scanner: &'a Scanner,
    /// Whether the user has rules, which can depend on the path of a file.
    pub(crate) has_rules: bool,
}

/// An object to scan.
struct ToScan<'n> {
    kind: Kind,
    id: &'n str,
    /// The place of the object, which contains the path for the user's rules. `None` if the place is unknown.
    place: Option<Place>,
    /// Whether only the user's rules apply. Only the user's rules apply if the object is also scanned under another
    /// path, or if the upstream already has the object.
    again: bool,
}

/// The state of the scan of a push's objects.
struct Scan<'n> {
    /// The ids of all new objects.
    new: &'n HashSet<Id>,
    /// The files that git reads as `.gitmodules`.
    gitmodules: HashSet<Id>,
    index: TreeIndex,
}

/// Scans the objects of a push and adds the results to `findings`. After an error, `findings` contains the findings
/// before the error.
pub(crate) async fn read_push(
    mirror: &Git,
    quarantine: &str,
    updates: &[Update],
    Detectors { scanner, has_rules }: Detectors<'_>,
    fds: &ReservedFds,
    findings: &mut PushFindings,
) -> Result<(), ReadError> {
    let reader = Reader { mirror, quarantine, scanner, has_rules, fds };
    tokio::time::timeout(READ_WITHIN, reader.scan(updates, findings)).await.map_err(|_| ReadError::Timeout)?
}

impl Reader<'_> {
    async fn scan(&self, updates: &[Update], findings: &mut PushFindings) -> Result<(), ReadError> {
        let new = self.new_objects(updates).await?;
        let new_ids: HashSet<Id> = new.iter().filter_map(|(_, id)| id_from_hex(id)).collect();
        let width = updates.iter().map(|update| update.new.len() / 2).max().unwrap_or_default();
        let mut paths = NewPaths::new(self.scanner, self.has_rules, &new_ids, width);
        self.new_entries(&new, updates, |entry| paths.add(entry, findings)).await?;
        paths.scan_paths(findings)?;
        let NewPaths { mut first, again, secret_files, gitmodules, .. } = paths;
        let again: Vec<(String, Place)> =
            again.into_iter().map(|(id, place)| (hex::encode(&id[..width]), place)).collect();
        let own = new.iter().map(|(kind, id)| {
            let place = id_from_hex(id).and_then(|id| first.remove(&id));
            ToScan { kind: *kind, id, place, again: false }
        });
        let others = again.iter().map(|(id, place)| ToScan {
            kind: Kind::Blob,
            id,
            place: Some(place.clone()),
            again: true,
        });
        let objects: Vec<ToScan<'_>> = own.chain(others).collect();
        let index = TreeIndex::new(width);
        let mut scan = Scan { new: &new_ids, gitmodules, index };
        self.scan_objects(&objects, &mut scan, findings).await?;
        self.scan_gitlinks(&scan.index, findings)?;
        self.report_names(updates, &mut scan.index, findings).await?;
        self.report_secret_files(updates, secret_files, width, findings).await?;
        if !findings.found.is_empty() {
            self.mark_ignored(updates, findings).await?;
        }
        Ok(())
    }

    /// Scans all objects with one `git cat-file` process. The ids are written to the process while its output is read.
    async fn scan_objects(
        &self,
        objects: &[ToScan<'_>],
        scan: &mut Scan<'_>,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let mut running =
            self.with_quarantine().spawn(self.fds, &["cat-file", "--batch", "--buffer"], true)?;
        let (stdin, stdout) = (running.child.stdin.take(), running.child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(ReadError::Output("read the objects of the push"));
        };
        // An error is ignored: with a smaller pipe, the two processes merely wait for each other more often.
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE);
        let feed = async {
            for some in objects.chunks(IDS_AT_ONCE) {
                let lines: String = some.iter().flat_map(|object| [object.id, "\n"]).collect();
                // The error is ignored: if git does not read all of its input, an object is missing in its output, and
                // reading the output fails.
                let _ = stdin.write_all(lines.as_bytes()).await;
            }
            drop(stdin);
            Ok::<_, ReadError>(())
        };
        let mut stdout = BufReader::with_capacity(PIECE, stdout);
        let scanned = async {
            for object in objects {
                let size = header(&mut stdout, object.id).await?;
                let mut content = (&mut stdout).take(size);
                match object.kind {
                    Kind::Blob => self.scan_blob(object, &mut content, &scan.gitmodules, findings).await?,
                    _ => self.scan_buffered(object, size, &mut content, scan, findings).await?,
                }
                if content.limit() > 0 {
                    return Err(ReadError::Output("read an object of the push to its end"));
                }
                let mut end = [0];
                stdout.read_exact(&mut end).await?;
            }
            Ok(())
        };
        // `try_join!` ends both futures at the first error: if nobody reads git's output, git stops reading its input.
        tokio::try_join!(feed, scanned).map(drop)
    }

    /// Buffers a commit, tag or tree completely, and scans it.
    async fn scan_buffered(
        &self,
        object: &ToScan<'_>,
        size: u64,
        content: &mut (impl AsyncRead + Unpin),
        scan: &mut Scan<'_>,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let id = object.id;
        if size > MOST_BUFFERED {
            return Err(ReadError::TooLarge(id.to_owned()));
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).await?;
        if object.kind == Kind::Tree {
            return self.scan_tree(id, &bytes, scan, findings);
        }
        let word = if object.kind == Kind::Tag { "tag" } else { "commit" };
        if let Some(encoding) = encoding::unreadable(&bytes) {
            return Err(ReadError::Encoding(format!("the {word} {id}"), encoding));
        }
        if let Some(root) = tree_of(&bytes)
            && let (Some(root), Some(commit)) = (id_from_hex(root), id_from_hex(id))
        {
            scan.index.roots.entry(root).or_insert(commit);
        }
        let commit = (object.kind == Kind::Commit).then(|| id.to_owned());
        self.scan_text(&bytes, word, commit.as_ref(), findings)?;
        let packed = Location::new(commit.clone(), format!("the {word}'s text (packed)"));
        self.scan_packed(&bytes, &packed, findings)?;
        // git also accepts messages in UTF-16 and UTF-32, so the text is scanned again without zero bytes.
        if bytes.contains(&0) {
            bytes.retain(|byte| *byte != 0);
            self.scan_text(&bytes, word, commit.as_ref(), findings)?;
        }
        Ok(())
    }

    /// Scans the archives in an object that is not a file.
    fn scan_packed(
        &self,
        bytes: &[u8],
        location: &Location,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let mut archives = Archives::new(self.scanner, None);
        archives.feed(bytes);
        let report = archives.finish();
        if report.bomb {
            return Err(ReadError::Bomb(location.location.clone()));
        }
        report.report(location, findings)
    }

    /// Scans the commit ids of submodules, once as joined bytes and once as joined hexadecimal digits, because a secret
    /// may be split over several ids.
    fn scan_gitlinks(&self, index: &TreeIndex, findings: &mut PushFindings) -> Result<(), ReadError> {
        let (bytes, what) = (index.gitlinks(), "the commit ids of submodules");
        let location = Location::new(None, what.to_owned());
        for text in [bytes, hex::encode(bytes).as_bytes()] {
            for finding in blocking(self.scanner.scan(text), what)? {
                let value = &text[finding.span.within(text.len())];
                findings.add(Found::from_scan(&finding, location.clone(), value));
            }
        }
        self.scan_packed(bytes, &location, findings)
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

    /// Scans the names in a tree, and adds the entries of the tree to the index.
    fn scan_tree(
        &self,
        id: &str,
        bytes: &[u8],
        scan: &mut Scan<'_>,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let Some(own) = id_from_hex(id) else { return Ok(()) };
        let index = &mut scan.index;
        let (mut names, mut ends, mut text) = (Vec::new(), Vec::new(), Vec::new());
        for (mode, name, child) in entries(bytes, index.width) {
            let kind = EntryKind::parse(mode).ok_or_else(|| ReadError::mode(mode, name))?;
            if name.len() > LONGEST_PATH {
                return Err(ReadError::LongPath);
            }
            if !index.is_first_seen(kind, name, child)? {
                continue;
            }
            if kind == EntryKind::Tree && scan.new.contains(&id_from_bytes(child)) {
                index.parents.entry(id_from_bytes(child)).or_insert(own);
            }
            text.extend_from_slice(name);
            text.push(b'\n');
            names.push(name);
            ends.push(text.len() as u64);
        }
        for finding in blocking(self.scanner.scan(&text), "a directory")? {
            let at = ends.partition_point(|end| *end <= finding.span.start);
            let Some(name) = names.get(at) else { continue };
            index.flag_name(own, name, finding);
            if index.flagged_names.len() > MOST_FINDINGS {
                return Err(ReadError::FlaggedNames);
            }
        }
        let packed = Location::new(index.commit(&own), "the names of files (packed)".to_owned());
        self.scan_packed(&text, &packed, findings)
    }

    /// Reports each name with a finding, unless the upstream already has this name.
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
        for (name, (tree, flagged)) in named {
            for finding in flagged {
                // The location of a known secret omits the length of the name. All names of a tree are scanned
                // together, so the length would reveal in which name the match starts.
                let location = match finding.secret {
                    Some(_) => "the name of a file".to_owned(),
                    None => format!("the name of a file, {} characters long", name.len()),
                };
                findings.add(Found::from_scan(&finding, Location::new(index.commit(&tree), location), &name));
            }
        }
        Ok(())
    }

    /// Reports files with names that indicate secrets, unless the upstream already has the same content under the same
    /// name.
    async fn report_secret_files(
        &self,
        updates: &[Update],
        mut files: HashMap<SecretFile, Place>,
        width: usize,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        if files.is_empty() {
            return Ok(());
        }
        let boundary = self.reachable(&["--boundary"], updates).await?;
        for parent in boundary.lines().filter_map(|line| line.strip_prefix('-')).take(MOST_PARENTS) {
            for (id, path) in self.list_tree(parent, &["-r"]).await? {
                let (directory, name) = split(&path);
                files.remove(&(directory.into(), name.into(), id));
            }
            if files.is_empty() {
                break;
            }
        }
        for ((_, _, id), place) in files {
            let id = hex::encode(&id[..width]);
            let words = "a file that holds secrets by its name";
            findings.add(Found::from_name("secret-file", words, place.location(&id, ""), id.as_bytes()));
        }
        Ok(())
    }

    /// Returns the ids and paths of the entries in a tree, without directories.
    async fn list_tree(&self, tree: &str, options: &[&str]) -> Result<Vec<(Id, Vec<u8>)>, ReadError> {
        let arguments = [&["ls-tree", "-z"], options, &[tree]].concat();
        let output = self.with_quarantine().run(self.fds, &arguments, LISTED_WITHIN).await?;
        if !output.success {
            return Err(ReadError::Output("list the directories of the push"));
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
        object: &ToScan<'_>,
        content: &mut (impl AsyncRead + Unpin),
        gitmodules: &HashSet<Id>,
        findings: &mut PushFindings,
    ) -> Result<(), ReadError> {
        let ToScan { id, ref place, again, .. } = *object;
        let location = |inside: &str| match place {
            Some(place) => place.location(id, inside),
            None => Location::new(None, format!("{}{inside}", display_path(b"", id))),
        };
        let shown = location("").location;
        let path = place.as_ref().map(|place| String::from_utf8_lossy(&place.path));
        let path = path.as_deref();
        let mut returns =
            id_from_hex(id).filter(|id| gitmodules.contains(id)).map(|_| StrayReturns::default());
        let mut begin = Vec::new();
        let mut views = Views::new(self.scanner, path);
        let mut piece = vec![0; PIECE];
        loop {
            let read = content.read(&mut piece).await?;
            if read == 0 {
                break;
            }
            begin.extend(piece[..read].iter().take(LFS_POINTER - begin.len()));
            returns.iter_mut().for_each(|returns| returns.feed(&piece[..read]));
            views.feed(&piece[..read]);
            // Scanning is CPU-bound, so the task yields to other tasks after each piece.
            tokio::task::yield_now().await;
        }
        if returns.is_some_and(|returns| returns.found()) {
            return Err(ReadError::StrayReturn(shown));
        }
        let mut report = views.finish();
        if again {
            report.keep_only(|finding| finding.detector == Detector::ScannerRules);
        } else {
            if is_lfs_pointer(&begin) {
                return Err(ReadError::LfsPointer(shown));
            }
            if let Some(file) = &report.unpacked.file {
                let words = format!("contains {file:?}, a file that holds secrets by its name");
                findings.add(Found::from_name("secret-file", &words, location(""), id.as_bytes()));
            }
            if report.unpacked.bomb {
                return Err(ReadError::Bomb(shown));
            }
        }
        let (plain, wide) = (blocking(report.plain, &shown)?, blocking(report.wide, &shown)?);
        let mut values = HashSet::new();
        for (hits, wide) in [(plain, false), (wide, true)] {
            for (in_line, finding) in self.find_lines(id, &hits, wide).await?.into_iter().zip(&hits) {
                // The scan without zero bytes repeats findings of the scan of the unchanged bytes. Repeated findings
                // are dropped.
                if values.insert((finding.rule.clone(), in_line.value())) || !wide {
                    let excerpt = in_line.excerpt.clone();
                    let location = Location { line: in_line.line, excerpt, ..location("") };
                    let marked = in_line.marked.then_some("gitleaks:allow");
                    findings.add(Found { marked, ..Found::from_scan(finding, location, &in_line.value()) });
                }
            }
        }
        report.unpacked.report(&location(" (packed)"), findings)
    }

    /// Reads a blob a second time to determine the lines of its findings. If `wide` is true, the findings refer to the
    /// bytes of the blob without zero bytes.
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

/// Returns the id of a commit's tree.
fn tree_of(commit: &[u8]) -> Option<&str> {
    let line = commit.strip_prefix(b"tree ")?.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok()
}

/// Returns the name of the section of a commit or tag that contains the byte at `at`.
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

/// Returns the line of a commit or tag in which a finding begins, with secrets masked.
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
