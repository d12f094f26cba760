//! Reads every object of a push that is new to the upstream.
//!
//! ```text
//! quarantine ─┐                             ┌─► is all of it reached? ─► commits, tags, trees, blobs
//!             ├─► − what upstream is known to have (else it is hidden)   through one `cat-file --batch`
//! reached ────┘
//! ```
//! Nothing is held but a window of the object that is read, and of new trees who is in whom.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;

use bottle_scan::{Finding, Report, Scanner, Severity};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::blob::{Lines, Placed, Views};
use crate::findings::{Found, MOST_FINDINGS, Place, Reading};
use crate::git::{Git, Passage, Running};
use crate::names;
use crate::new_objects::Kind;
use crate::packed::split;
use crate::refs::Update;
use crate::tree_index::{Family, Id, entries, id_from, id_of};

/// Listing objects; a large push has many.
pub(crate) const LISTED_WITHIN: Duration = Duration::from_secs(300);

/// Reading all of them.
const READ_WITHIN: Duration = Duration::from_secs(3600);

/// A commit, tag or tree is never this large.
const MOST_BUFFERED: u64 = 32 << 20;

/// Commits of upstream, right below what is pushed, whose names are looked through.
const MOST_PARENTS: usize = 64;

/// Files and folders of a push that are judged by their names.
const MOST_NAMED: usize = 10_000;

/// Bytes of a blob that are read at once.
const PIECE: usize = 64 << 10;

/// Objects whose names are written at once.
const ASKED_AT_ONCE: usize = 1000;

/// Bytes that git may be ahead.
const IN_PIPE: usize = 1 << 20;

/// Reads a push. The error is a sentence for the agent; `reading` then has what was found before it.
pub(crate) async fn read(
    mirror: &Git,
    quarantine: &str,
    updates: &[Update],
    scanner: &Scanner,
    passage: &Passage,
    reading: &mut Reading,
) -> Result<(), String> {
    let work = Reader { mirror, quarantine, scanner, passage };
    tokio::time::timeout(READ_WITHIN, work.all(updates, reading))
        .await
        .map_err(|_| "the push could not be read in time; push less at once".to_owned())?
}

pub(crate) struct Reader<'a> {
    pub(crate) mirror: &'a Git,
    pub(crate) quarantine: &'a str,
    scanner: &'a Scanner,
    pub(crate) passage: &'a Passage,
}

impl Reader<'_> {
    async fn all(&self, updates: &[Update], reading: &mut Reading) -> Result<(), String> {
        let new = self.new_objects(updates).await?;
        let mut family = Family::default();
        self.objects(&new, &mut family, reading).await?;
        self.tell_names(updates, &mut family, reading).await?;
        self.tell_files(updates, &mut family, reading).await?;
        if !reading.found.is_empty() {
            self.mark_ignored(updates, reading).await?;
        }
        Ok(())
    }

    /// Git that sees the quarantine and the mirror.
    pub(crate) fn both(&self) -> Git {
        both(self.mirror, self.quarantine)
    }

    /// One process for all of them, fed while it is read.
    async fn objects(
        &self,
        new: &[(Kind, String)],
        family: &mut Family,
        reading: &mut Reading,
    ) -> Result<(), String> {
        let child = self.passage.spawn(&[], |_| {
            let mut command = self.both().command("git");
            command.args(["cat-file", "--batch", "--buffer"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command
        });
        let mut running = Running::new(child.map_err(|error| error.to_string())?);
        let (stdin, stdout) = (running.child.stdin.take(), running.child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err("the objects of the push cannot be read".to_owned());
        };
        // Where it may not become so large, it stays as it is, and the two wait for one another more often.
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, IN_PIPE);
        let new_ids: HashSet<Id> = new.iter().filter_map(|(_, id)| id_of(id)).collect();
        let feed = async {
            for ids in new.chunks(ASKED_AT_ONCE) {
                let lines: String = ids.iter().flat_map(|(_, id)| [id.as_str(), "\n"]).collect();
                stdin.write_all(lines.as_bytes()).await?;
            }
            stdin.flush().await?;
            drop(stdin);
            Ok::<_, std::io::Error>(())
        };
        let mut stdout = BufReader::with_capacity(PIECE, stdout);
        let take = async {
            for (kind, id) in new {
                let size = header(&mut stdout, id).await?;
                let mut content = (&mut stdout).take(size);
                match kind {
                    Kind::Blob => self.blob(id, &mut content, family, reading).await?,
                    _ => self.held(*kind, id, size, &mut content, &new_ids, family, reading).await?,
                }
                if content.limit() > 0 {
                    return Err("the objects of the push cannot be read to their end".to_owned());
                }
                let mut end = [0];
                stdout.read_exact(&mut end).await.map_err(|error| error.to_string())?;
            }
            Ok(())
        };
        let (fed, taken) = tokio::join!(feed, take);
        taken?;
        fed.map_err(|error| error.to_string())
    }

    /// A commit, tag or tree.
    #[allow(clippy::too_many_arguments, reason = "one object and what is known so far")]
    async fn held(
        &self,
        kind: Kind,
        id: &str,
        size: u64,
        content: &mut (impl AsyncRead + Unpin),
        new: &HashSet<Id>,
        family: &mut Family,
        reading: &mut Reading,
    ) -> Result<(), String> {
        if size > MOST_BUFFERED {
            return Err(format!("{id} is too large for what it is"));
        }
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
        match kind {
            Kind::Tree => {
                family.width = id.len() / 2;
                self.tree(id, &bytes, new, family)?;
            }
            _ => {
                let word = if kind == Kind::Tag { "tag" } else { "commit" };
                if let Some(root) = tree_of(&bytes)
                    && let (Some(root), Some(commit)) = (id_of(root), id_of(id))
                {
                    family.roots.entry(root).or_insert(commit);
                }
                let commit = (kind == Kind::Commit).then(|| id.to_owned());
                self.said(&bytes, word, commit.as_ref(), reading)?;
                // Wide characters, which git takes in a message too.
                if bytes.contains(&0) {
                    bytes.retain(|byte| *byte != 0);
                    self.said(&bytes, word, commit.as_ref(), reading)?;
                }
            }
        }
        Ok(())
    }

    /// What stands in a commit or tag.
    fn said(
        &self,
        bytes: &[u8],
        word: &str,
        commit: Option<&String>,
        reading: &mut Reading,
    ) -> Result<(), String> {
        for finding in blocking(self.scanner.scan(bytes), word)? {
            let at = usize::try_from(finding.span.start).unwrap_or(usize::MAX);
            let end = usize::try_from(finding.span.end).unwrap_or(usize::MAX).min(bytes.len());
            let place = format!("the {word}'s {}", part(bytes, at));
            let value = bytes.get(at..end).unwrap_or_default();
            reading.add(Found::by_scanner(&finding, Place::new(commit.cloned(), place), value));
        }
        Ok(())
    }

    fn tree(&self, id: &str, bytes: &[u8], new: &HashSet<Id>, family: &mut Family) -> Result<(), String> {
        let Some(own) = id_of(id) else { return Ok(()) };
        let (mut names, mut ends, mut text) = (Vec::new(), Vec::new(), Vec::new());
        for (name, child, is_folder) in entries(bytes, family.width) {
            if !family.is_news(name, child) {
                continue;
            }
            let child = id_from(child);
            // Whatever the entry is otherwise: a file, a link, a submodule; and whether upstream has its content.
            if is_folder && names::is_place(name) {
                family.places.entry((name.into(), child)).or_insert(own);
            } else if !is_folder && names::rule(b"", name).is_some() {
                family.files.entry((Box::default(), name.into(), child)).or_insert(own);
            }
            if family.places.len() + family.files.len() > MOST_NAMED {
                return Err("it has more files that hold secrets by their name than can be told".to_owned());
            }
            if new.contains(&child) {
                family.parents.entry(child).or_insert_with(|| (own, name.into()));
            }
            text.extend_from_slice(name);
            text.push(b'\n');
            names.push(name);
            ends.push(text.len() as u64);
        }
        for finding in blocking(self.scanner.scan(&text), "a folder")? {
            let index = ends.partition_point(|end| *end <= finding.span.start);
            let Some(name) = names.get(index) else { continue };
            family.named.entry((*name).into()).or_insert((own, finding));
            if family.named.len() > MOST_FINDINGS {
                return Err("the names of its files look like more secrets than can be told".to_owned());
            }
        }
        Ok(())
    }

    /// The names in which something was found, but for those that upstream has already.
    async fn tell_names(
        &self,
        updates: &[Update],
        family: &mut Family,
        reading: &mut Reading,
    ) -> Result<(), String> {
        let mut named = std::mem::take(&mut family.named);
        if named.is_empty() {
            return Ok(());
        }
        let git = self.both();
        let listed = self.reached(&["--boundary"], updates).await?;
        for parent in listed.lines().filter_map(|line| line.strip_prefix('-')).take(MOST_PARENTS) {
            let arguments = ["ls-tree", "-r", "-t", "-z", "--name-only", parent];
            let there = git.plain(self.passage, &arguments, LISTED_WITHIN).await;
            for path in there.map_err(|error| error.to_string())?.output.split(|byte| *byte == 0) {
                named.remove(split(path).1);
            }
        }
        for (name, (tree, finding)) in named {
            // Of a known secret not even this: names are looked at together, and it is where the match begins.
            let place = match finding.secret {
                Some(_) => "the name of a file".to_owned(),
                None => format!("the name of a file, {} characters long", name.len()),
            };
            reading.add(Found::by_scanner(&finding, Place::new(family.commit(&tree), place), &name));
        }
        Ok(())
    }

    /// The files that hold secrets by their name, but for those that upstream has already under it.
    async fn tell_files(
        &self,
        updates: &[Update],
        family: &mut Family,
        reading: &mut Reading,
    ) -> Result<(), String> {
        let mut files = std::mem::take(&mut family.files);
        for ((folder, tree), parent) in std::mem::take(&mut family.places) {
            for (id, path) in self.listed(&hex::encode(&tree[..family.width]), &[]).await? {
                if names::rule(&folder, &path).is_some() && names::rule(b"", &path).is_none() {
                    files.entry((folder.clone(), path.into(), id)).or_insert(parent);
                }
            }
        }
        if files.is_empty() {
            return Ok(());
        }
        let boundary = self.reached(&["--boundary"], updates).await?;
        for parent in boundary.lines().filter_map(|line| line.strip_prefix('-')).take(MOST_PARENTS) {
            for (id, path) in self.listed(parent, &["-r"]).await? {
                let (folder, name) = split(&path);
                files.remove(&(Box::default(), name.into(), id));
                files.remove(&(folder.into(), name.into(), id));
            }
            if files.is_empty() {
                break;
            }
        }
        for ((folder, name, id), tree) in files {
            let (commit, mut path) = family.path(&tree);
            for part in [folder, name].iter().filter(|part| !part.is_empty()) {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
            let id = hex::encode(&id[..family.width]);
            let words = "a file that holds secrets by its name";
            reading.add(Found::by_name(
                "secret-file",
                words,
                Place::new(commit, shown(&path, &id)),
                id.as_bytes(),
            ));
        }
        Ok(())
    }

    /// What is in a tree but folders: objects and paths.
    async fn listed(&self, tree: &str, options: &[&str]) -> Result<Vec<(Id, Vec<u8>)>, String> {
        let arguments = [&["ls-tree", "-z"], options, &[tree]].concat();
        let there = self.both().plain(self.passage, &arguments, LISTED_WITHIN).await;
        let there = there.map_err(|error| error.to_string())?;
        if !there.good {
            return Err("the folders of the push cannot be listed".to_owned());
        }
        let lines = there.output.split(|byte| *byte == 0).filter_map(|line| {
            let tab = line.iter().position(|byte| *byte == b'\t')?;
            let mut words = std::str::from_utf8(&line[..tab]).ok()?.split(' ');
            let (kind, id) = (words.nth(1)?, words.next()?);
            (kind != "tree").then_some((id_of(id)?, line[tab + 1..].to_vec()))
        });
        Ok(lines.collect())
    }

    /// A blob of any size, streamed.
    async fn blob(
        &self,
        id: &str,
        content: &mut (impl AsyncRead + Unpin),
        family: &Family,
        reading: &mut Reading,
    ) -> Result<(), String> {
        let (commit, path) = id_of(id).map_or((None, Vec::new()), |own| family.path(&own));
        let shown = shown(&path, id);
        let place = |inside: &str| Place::new(commit.clone(), format!("{shown}{inside}"));
        let mut views = Views::new(self.scanner);
        let mut piece = vec![0; PIECE];
        let mut first = true;
        loop {
            let read = content.read(&mut piece).await.map_err(|error| error.to_string())?;
            if read == 0 {
                break;
            }
            if first && piece[..read].starts_with(b"version https://git-lfs.github.com/spec/") {
                return Err(format!(
                    "{shown} is a pointer to a file of Git LFS, which has no way through the gate; commit the \
                     file itself, or leave it out"
                ));
            }
            views.feed(&piece[..read]);
            first = false;
            // Scanning is work; others want the thread too.
            tokio::task::yield_now().await;
        }
        let seen = views.finish();
        if let Some(file) = seen.file {
            let words = format!("holds {file:?}, a file that holds secrets by its name");
            reading.add(Found::by_name("secret-file", &words, place(""), id.as_bytes()));
        }
        if seen.bomb {
            return Err(format!("{shown} becomes more than anybody can look at when it is unpacked"));
        }
        let path = String::from_utf8_lossy(&path);
        let here = |report| {
            let mut found = blocking(report, &shown)?;
            found.retain(|finding| !self.scanner.allows(finding, &path));
            Ok::<_, String>(found)
        };
        let (plain, wide, inside) = (here(seen.plain)?, here(seen.wide)?, here(seen.inside)?);
        let mut values = HashSet::new();
        for (findings, wide) in [(plain, false), (wide, true)] {
            for (placed, finding) in self.lines(id, &findings, wide).await?.into_iter().zip(&findings) {
                // What is found as it is, is found without zeros too.
                if !wide || !values.contains(&placed.value()) {
                    values.insert(placed.value());
                    let place = Place { line: placed.line, ..place("") };
                    let marked = placed.marked.then_some("gitleaks:allow");
                    reading.add(Found { marked, ..Found::by_scanner(finding, place, &placed.value()) });
                }
            }
        }
        for finding in inside {
            let value = [id.as_bytes(), finding.rule.as_bytes()].concat();
            reading.add(Found::by_scanner(&finding, place(" (packed)"), &value));
        }
        Ok(())
    }

    /// Reads a blob again for the lines of what was found in it, as it is or in its wide characters.
    async fn lines(&self, id: &str, findings: &[Finding], wide: bool) -> Result<Vec<Placed>, String> {
        if findings.is_empty() {
            return Ok(Vec::new());
        }
        let child = self.passage.spawn(&[], |_| {
            let mut command = self.both().command("git");
            command.args(["cat-file", "blob", id]).stdout(Stdio::piped());
            command
        });
        let mut running = Running::new(child.map_err(|error| error.to_string())?);
        let again = || format!("{id} cannot be read again");
        let mut stdout = running.child.stdout.take().ok_or_else(again)?;
        let mut lines = Lines::of(findings.iter().take(MOST_FINDINGS + 1));
        let mut piece = vec![0; PIECE];
        loop {
            let read = stdout.read(&mut piece).await.map_err(|error| error.to_string())?;
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

    /// What `.gitleaksignore` of a pushed tip names: `[commit:]path:rule:line`.
    async fn mark_ignored(&self, updates: &[Update], reading: &mut Reading) -> Result<(), String> {
        for update in updates.iter().filter(|update| !update.deletes()) {
            let file = format!("{}:.gitleaksignore", update.new);
            let shown = self
                .both()
                .plain(self.passage, &["cat-file", "blob", &file], LISTED_WITHIN)
                .await
                .map_err(|error| error.to_string())?;
            if !shown.good || shown.output.len() > 1 << 20 {
                continue;
            }
            let text = String::from_utf8_lossy(&shown.output);
            let ignored: HashSet<&str> = text.lines().map(str::trim).collect();
            for found in reading.found.iter_mut().filter(|found| found.marked.is_none()) {
                let short = format!("{}:{}:{}", found.place, found.rule, found.line.unwrap_or(0));
                let long = format!("{}:{short}", found.commit.as_deref().unwrap_or_default());
                if ignored.contains(short.as_str()) || ignored.contains(long.as_str()) {
                    found.marked = Some(".gitleaksignore");
                }
            }
        }
        Ok(())
    }
}

/// Git that sees a quarantine, and the mirror behind it.
pub(crate) fn both(mirror: &Git, quarantine: &str) -> Git {
    let objects = mirror.mirror.join("objects");
    mirror.with([
        ("GIT_OBJECT_DIRECTORY".to_owned(), quarantine.to_owned()),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES".to_owned(), objects.to_string_lossy().into_owned()),
    ])
}

/// What of a report stops a push; a report that is cut off stops it by itself, unless a known secret in it does.
fn blocking(report: Report, what: &str) -> Result<Vec<Finding>, String> {
    if report.more && report.findings.iter().all(|finding| finding.secret.is_none()) {
        return Err(format!("{what} holds more that looks like a secret than can be told; leave it out"));
    }
    let mut findings = report.findings;
    findings.retain(|finding| finding.severity == Severity::Block);
    Ok(findings)
}

fn shown(path: &[u8], id: &str) -> String {
    if path.is_empty() {
        return format!("the object {id}");
    }
    bottle_contract::terminal::inert(&String::from_utf8_lossy(path).replace(['\n', '\t'], "?"))
}

/// The tree of a commit.
fn tree_of(commit: &[u8]) -> Option<&str> {
    let line = commit.strip_prefix(b"tree ")?.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line).ok()
}

/// Which part of a commit or tag a place is in.
fn part(bytes: &[u8], at: usize) -> &'static str {
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

/// Reads `id type size` and says the size.
async fn header(stdout: &mut (impl AsyncBufReadExt + Unpin), id: &str) -> Result<u64, String> {
    let mut line = String::new();
    stdout.take(256).read_line(&mut line).await.map_err(|error| error.to_string())?;
    let size = line.strip_prefix(id).and_then(|rest| rest.trim().rsplit(' ').next()?.parse().ok());
    size.ok_or_else(|| "an object of the push cannot be read".to_owned())
}
