//! Stores token usage in `$BOTTLE_HOME/usage/<slug>.jsonl`, with one line for each model response.
//!
//! Each line contains the proxy's record and the facts about the launch that only the host knows ([`Labels`]).
//!
//! The file outlives its bottle, and bottles of the same slug share it. Each record is written only one time;
//! duplicates are recognized by their id. A duplicate arrives if a keeper died before it acknowledged the record, or if
//! the record is also found in the directory of a bottle whose proxy was killed ([`collect`]).

use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bottle_backend::SIDECAR_LOGS;
use bottle_host::{files, plain_file};
use bottle_manifest::agent_provider::Template;
use bottle_policy::names::{Name, Slug};
use bottle_protocol::usage::{MAX_LINE, Usage, WAITING_FILE, WaitingLine};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit::slugs_with_file;
use super::record::Record;

/// The size limit of one file in bytes, which allows half a million responses. Records that do not fit are refused
/// until the user moves the file away, so that an agent cannot fill the disk even with the help of a hostile model
/// server.
const MAX_BYTES: u64 = 256 << 20;

/// The number of bytes at the end of a file that are searched for duplicates. A batch of records that a proxy sends is
/// many times smaller.
const TAIL: u64 = 1 << 20;

/// The maximum number of ids that are cached to recognize duplicates. If there are more, the oldest ids are forgotten.
const MAX_KNOWN_IDS: usize = 4096;

/// The maximum number of bytes that are read from a proxy's file of unacknowledged records. The proxy keeps this file
/// shorter. The rest of a longer file is ignored.
const MAX_PENDING_BYTES: u64 = 64 << 20;

/// The longest line of a usage file that is read, in bytes. A bottle may extend many manifests, whose names every line
/// contains.
pub const MAX_STORED_LINE: usize = 128 << 10;

/// The facts that only the host knows about the launch that caused a response. The ledger sums up usage by these facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Labels {
    /// The agent manifest's name.
    pub agent: String,
    /// The id of the launch ([`Record::run`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The agent's template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
    /// The bottle manifests that the user chose, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bottles: Vec<String>,
    /// All bottle manifests that were merged, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<String>,
}

impl Labels {
    /// Returns the labels of the bottle's current launch.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let text = |names: &[Name]| names.iter().map(Name::to_string).collect();
        // Records of older versions do not contain the lineage.
        let lineage = if record.lineage.is_empty() { &record.bottles } else { &record.lineage };
        Self {
            agent: record.agent.to_string(),
            run: record.run.clone(),
            template: record.template,
            bottles: text(&record.bottles),
            lineage: text(lineage),
        }
    }
}

/// A line of a usage file, as it is written. New versions may add fields, but never remove fields.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    labels: &'a Labels,
    #[serde(flatten)]
    usage: &'a Usage,
}

/// A line of a usage file, as it is read. Older versions wrote fewer labels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredUsage {
    /// The facts about the launch.
    #[serde(flatten)]
    pub labels: Labels,
    /// The record of the proxy.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The fields that identify a line and give its date.
#[derive(Debug, Deserialize)]
struct LineKey {
    id: String,
    time: Timestamp,
}

/// The usage file of one slug, open for appending. Only the process that has the bottle's claim may have this value. A
/// cleanup may remove old records at the same time ([`remove_older`]).
#[derive(Debug)]
pub struct UsageFile {
    path: PathBuf,
    file: File,
    labels: Labels,
    known_ids: VecDeque<String>,
}

/// Returns the path of a slug's usage file.
#[must_use]
pub fn path(home: &Path, slug: &Slug) -> PathBuf {
    home.join("usage").join(format!("{slug}.jsonl"))
}

/// Returns the slugs that have a usage file.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn slugs(home: &Path) -> io::Result<Vec<Slug>> {
    slugs_with_file(&home.join("usage"))
}

impl UsageFile {
    /// Opens the file and truncates an incomplete last line.
    ///
    /// # Errors
    /// Fails if the file cannot be created, read or written.
    pub fn open(home: &Path, slug: &Slug, labels: Labels) -> io::Result<Self> {
        let path = path(home, slug);
        let directory = home.join("usage");
        files::create_private_directory(&directory)?;
        let mut file = locked(&path)?;
        // Without a sync of the directory, a power failure could remove the new directory entry.
        File::open(&directory)?.sync_all()?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut tail = Vec::new();
        (&file).take(TAIL).read_to_end(&mut tail)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < tail.len() {
            file.set_len(length - (tail.len() - whole) as u64)?;
        }
        let lines = tail[..whole].split(|byte| *byte == b'\n');
        let known_ids =
            lines.filter_map(|line| Some(serde_json::from_slice::<LineKey>(line).ok()?.id)).collect();
        file.unlock()?;
        Ok(Self { path, file, labels, known_ids })
    }

    /// Appends the new records among `records`, and writes them to disk.
    ///
    /// # Errors
    /// Fails if the records cannot be written. None of them is then in the file.
    pub fn append(&mut self, records: &[Usage]) -> io::Result<()> {
        let new: Vec<&Usage> = records.iter().filter(|usage| !self.known_ids.contains(&usage.id)).collect();
        self.write(&new)?;
        self.known_ids.extend(new.iter().map(|usage| usage.id.clone()));
        self.known_ids.drain(..self.known_ids.len().saturating_sub(MAX_KNOWN_IDS));
        Ok(())
    }

    fn write(&mut self, records: &[&Usage]) -> io::Result<()> {
        let mut text = Vec::new();
        for usage in records {
            serde_json::to_writer(&mut text, &Line { labels: &self.labels, usage })?;
            text.push(b'\n');
        }
        if text.is_empty() {
            return Ok(());
        }
        self.file.lock()?;
        if !is_at(&self.file, &self.path)? {
            self.file = locked(&self.path)?;
        }
        let written = self.write_locked(&text);
        self.file.unlock()?;
        written
    }

    fn write_locked(&mut self, text: &[u8]) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        if before + text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("the file is full; move {} away", self.path.display())));
        }
        self.file.write_all(text).and_then(|()| self.file.sync_data()).inspect_err(|_| {
            // The whole append is undone, because the proxy sends all the records again.
            let _ = self.file.set_len(before);
        })
    }
}

/// Opens and locks the file at `path`. Opens the file again if it was replaced before the lock was acquired.
fn locked(path: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
        file.lock()?;
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(at_path) => {
            let opened = file.metadata()?;
            Ok((opened.dev(), opened.ino()) == (at_path.dev(), at_path.ino()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Collects the records that a bottle's proxy could not deliver, from the bottle's directory. The caller must have the
/// bottle's claim, and the proxy must have exited.
///
/// # Errors
/// Fails if the records cannot be read or written. They then stay in the bottle's directory.
pub fn collect(home: &Path, directory: &Path, slug: &Slug, labels: Labels) -> io::Result<()> {
    let Some(file) = open_pending(&directory.join(SIDECAR_LOGS).join(WAITING_FILE))? else { return Ok(()) };
    let mut pending = last_records(file)?;
    if pending.is_empty() {
        return Ok(());
    }
    let mut target = UsageFile::open(home, slug, labels)?;
    let mut missing: HashSet<String> = pending.iter().map(|usage| usage.id.clone()).collect();
    for line in lines(File::open(&target.path)?, MAX_STORED_LINE) {
        if let Ok(LineKey { id, .. }) = serde_json::from_slice(&line?) {
            missing.remove(&id);
        }
    }
    pending.retain(|usage| missing.contains(&usage.id));
    target.write(&pending.iter().collect::<Vec<_>>())
}

/// Returns the records in the proxy's file. If several lines have the same id, the last line applies.
fn last_records(file: File) -> io::Result<Vec<Usage>> {
    let lines: Vec<WaitingLine> = lines(file.take(MAX_PENDING_BYTES), MAX_LINE)
        .filter_map(|line| line.map(|line| serde_json::from_slice(&line).ok()).transpose())
        .collect::<io::Result<_>>()?;
    let mut ids = HashSet::new();
    let last = lines.into_iter().rev().filter(|line| ids.insert(line.id().to_owned()));
    let mut records: Vec<Usage> = last
        .filter_map(|line| match line {
            WaitingLine::Usage(usage) => Some(usage),
            WaitingLine::Cancelled { .. } => None,
        })
        .collect();
    records.reverse();
    Ok(records)
}

/// Opens the proxy's file of records. Another user may own the directory, so the entry may be of any type.
fn open_pending(path: &Path) -> io::Result<Option<File>> {
    match plain_file::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Splits the file into lines. A line longer than `max` bytes is split into pieces, which cannot be parsed.
fn lines(file: impl Read, max: usize) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    let mut reader = BufReader::new(file);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        match (&mut reader).take(max as u64).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    })
}

/// Returns the slugs that have records older than `then`, each with the number of these records.
///
/// # Errors
/// Fails if the directory or a file cannot be read.
pub fn older_than(home: &Path, then: Timestamp) -> io::Result<Vec<(Slug, usize)>> {
    let mut found = Vec::new();
    for slug in slugs(home)? {
        let mut old = 0;
        for line in lines(File::open(path(home, &slug))?, MAX_STORED_LINE) {
            old += usize::from(is_older(&line?, then));
        }
        if old > 0 {
            found.push((slug, old));
        }
    }
    Ok(found)
}

/// Removes records older than `then`. Removes the file if no record remains.
///
/// # Errors
/// Fails if the file cannot be rewritten. It is then unchanged.
pub fn remove_older(home: &Path, slug: &Slug, then: Timestamp) -> io::Result<()> {
    let path = path(home, slug);
    if !path.exists() {
        return Ok(());
    }
    // The lock is held to the end of this function. A keeper that waits for the lock then finds that the file was
    // replaced.
    let mut source = locked(&path)?;
    source.rewind()?;
    let mut kept = 0_usize;
    files::replace_durably(&path, |file| {
        for line in lines(&source, MAX_STORED_LINE) {
            let line = line?;
            if !is_older(&line, then) {
                kept += 1;
                file.write_all(&line)?;
            }
        }
        Ok(())
    })?;
    if kept > 0 {
        return Ok(());
    }
    // The lock on the new file prevents other processes from appending records between the check and the removal.
    let empty = locked(&path)?;
    if empty.metadata()?.len() == 0 { std::fs::remove_file(&path) } else { Ok(()) }
}

/// Whether a line is older than `then`. A line that cannot be parsed is treated as newer.
fn is_older(line: &[u8], then: Timestamp) -> bool {
    serde_json::from_slice::<LineKey>(line).is_ok_and(|line| line.time < then)
}

#[cfg(test)]
mod tests {
    use bottle_protocol::usage::{Api, Tokens};

    use super::*;

    fn usage(id: &str, time: &str) -> Usage {
        Usage {
            id: id.to_owned(),
            time: time.parse().expect("time"),
            provider: "anthropic".to_owned(),
            host: "api.anthropic.com".to_owned(),
            api: Api::Messages,
            model: Some("m".to_owned()),
            tokens: Tokens { input: Some(1), ..Tokens::default() },
            interrupted: false,
            estimated: false,
            provider_route: false,
            source: None,
        }
    }

    fn now(id: &str) -> Usage {
        usage(id, "2026-01-31T12:00:00Z")
    }

    fn labels(agent: &str) -> Labels {
        Labels { agent: agent.to_owned(), ..Labels::default() }
    }

    fn slug() -> Slug {
        "one".parse().expect("slug")
    }

    fn ids(home: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path(home, &slug())).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str::<LineKey>(line).expect(line).id).collect()
    }

    fn write_pending(directory: &Path, text: &str) {
        let logs = directory.join(SIDECAR_LOGS);
        std::fs::create_dir_all(&logs).expect("directory");
        std::fs::write(logs.join(WAITING_FILE), text).expect("write");
    }

    #[test]
    fn writes_a_duplicate_record_once() {
        let home = tempfile::tempdir().expect("home");
        let mut first = UsageFile::open(home.path(), &slug(), labels("claude")).expect("open");
        first.append(&[now("a"), now("b")]).expect("append");
        first.append(&[now("b"), now("c")]).expect("append");
        // A second keeper starts after the first keeper was killed before it acknowledged `c`.
        let mut second = UsageFile::open(home.path(), &slug(), labels("claude")).expect("open");
        second.append(&[now("c"), now("d")]).expect("append");
        assert_eq!(ids(home.path()), ["a", "b", "c", "d"]);
        let text = std::fs::read_to_string(path(home.path(), &slug())).expect("read");
        let line: serde_json::Value =
            serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        assert_eq!((line["agent"].as_str(), line["input"].as_u64()), (Some("claude"), Some(1)));
    }

    #[test]
    fn a_line_names_the_launch_and_its_lineage() {
        let home = tempfile::tempdir().expect("home");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let labels = Labels {
            agent: "reviewer".to_owned(),
            run: Some("0a".to_owned()),
            template: Some(Template::Claude),
            bottles: names(&["team"]),
            lineage: names(&["base", "team"]),
        };
        let mut file = UsageFile::open(home.path(), &slug(), labels.clone()).expect("open");
        file.append(&[now("a")]).expect("append");
        let text = std::fs::read_to_string(path(home.path(), &slug())).expect("read");
        insta::assert_snapshot!(text, @r#"{"agent":"reviewer","run":"0a","template":"claude","bottles":["team"],"lineage":["base","team"],"id":"a","time":"2026-01-31T12:00:00Z","provider":"anthropic","host":"api.anthropic.com","api":"messages","model":"m","input":1,"interrupted":false,"estimated":false}"#);
        let read: StoredUsage = serde_json::from_str(&text).expect("a line");
        assert_eq!(read, StoredUsage { labels, usage: now("a") });
    }

    #[test]
    fn truncates_an_incomplete_line_and_accepts_its_record_again() {
        let home = tempfile::tempdir().expect("home");
        UsageFile::open(home.path(), &slug(), labels("a"))
            .expect("open")
            .append(&[now("a")])
            .expect("append");
        let path = path(home.path(), &slug());
        let whole = std::fs::read(&path).expect("read");
        for cut in [&b"{"[..], b"{\"agent\":\"a\",\"id\":\"b\"", b"\0\0\0"] {
            std::fs::write(&path, [&whole[..], cut].concat()).expect("write");
            let mut file = UsageFile::open(home.path(), &slug(), labels("a")).expect("open");
            file.append(&[now("b")]).expect("append");
            assert_eq!(ids(home.path()), ["a", "b"]);
        }
    }

    #[test]
    fn refuses_to_grow_a_full_file() {
        let home = tempfile::tempdir().expect("home");
        let mut file = UsageFile::open(home.path(), &slug(), labels("a")).expect("open");
        file.file.set_len(MAX_BYTES - 10).expect("a hole");
        let error = file.append(&[now("a")]).expect_err("full");
        assert!(error.to_string().contains("one.jsonl"), "{error}");
        assert_eq!(file.file.metadata().expect("file").len(), MAX_BYTES - 10);
        assert!(file.known_ids.is_empty());
    }

    #[test]
    fn collects_the_records_of_a_killed_proxy_once() {
        let home = tempfile::tempdir().expect("home");
        let directory = home.path().join("state/one");
        let collect = || collect(home.path(), &directory, &slug(), labels("claude"));
        collect().expect("there is nothing");
        assert!(!path(home.path(), &slug()).exists());
        UsageFile::open(home.path(), &slug(), labels("claude"))
            .expect("open")
            .append(&[now("a")])
            .expect("append");
        let line = |id| serde_json::to_string(&now(id)).expect("line");
        let long = "x".repeat(3 * MAX_LINE);
        write_pending(
            &directory,
            &format!(
                "{}\n{}\n{long}\nnonsense\n{}\n{}\n{{\"id\":\"cut",
                line("a"),
                line("b"),
                line("c"),
                line("b")
            ),
        );
        collect().expect("collected");
        collect().expect("again");
        assert_eq!(ids(home.path()), ["a", "c", "b"]);
    }

    #[test]
    fn collects_what_was_reserved_for_requests_without_a_response() {
        let home = tempfile::tempdir().expect("home");
        let directory = home.path().join("state/one");
        let line = |id, tokens| {
            let tokens = Tokens { input: Some(tokens), ..Tokens::default() };
            serde_json::to_string(&Usage { tokens, ..now(id) }).expect("line")
        };
        // `a` is still in progress, `b` has its response, and the provider did not accept `c`.
        let lines = [line("a", 500), line("b", 600), line("c", 700), line("b", 6)];
        write_pending(&directory, &format!("{}\n{{\"cancelled\":\"c\"}}\n", lines.join("\n")));
        collect(home.path(), &directory, &slug(), labels("a")).expect("collected");
        let text = std::fs::read_to_string(path(home.path(), &slug())).expect("read");
        let stored = text.lines().map(|line| serde_json::from_str::<StoredUsage>(line).expect(line).usage);
        let stored: Vec<_> = stored.map(|usage| (usage.id, usage.tokens.input)).collect();
        assert_eq!(stored, [("a".to_owned(), Some(500)), ("b".to_owned(), Some(6))]);
    }

    #[test]
    fn ignores_links_and_directories_in_place_of_the_proxys_file() {
        let home = tempfile::tempdir().expect("home");
        let directory = home.path().join("state/one");
        write_pending(&directory, "");
        let pending = directory.join(SIDECAR_LOGS).join(WAITING_FILE);
        std::fs::remove_file(&pending).expect("remove");
        let line = serde_json::to_string(&now("a")).expect("line");
        std::fs::write(home.path().join("elsewhere"), line + "\n").expect("write");
        std::os::unix::fs::symlink(home.path().join("elsewhere"), &pending).expect("link");
        collect(home.path(), &directory, &slug(), labels("a")).expect("nothing");
        std::fs::remove_file(&pending).expect("remove");
        std::fs::create_dir(&pending).expect("directory");
        collect(home.path(), &directory, &slug(), labels("a")).expect("nothing");
        assert_eq!(ids(home.path()), [] as [String; 0]);
    }

    #[test]
    fn finds_and_removes_old_records() {
        let home = tempfile::tempdir().expect("home");
        let then = "2026-01-01T00:00:00Z".parse().expect("time");
        assert_eq!(older_than(home.path(), then).expect("none"), []);
        let mut file = UsageFile::open(home.path(), &slug(), labels("a")).expect("open");
        file.append(&[usage("a", "2025-12-31T23:59:59Z"), usage("b", "2026-01-01T00:00:00Z")])
            .expect("append");
        assert_eq!(older_than(home.path(), then).expect("found"), [(slug(), 1)]);
        remove_older(home.path(), &slug(), then).expect("removed");
        assert_eq!(ids(home.path()), ["b"]);
        // Another keeper had the file open while old records were removed.
        file.append(&[now("c"), usage("b", "2026-01-01T00:00:00Z")]).expect("append");
        assert_eq!(ids(home.path()), ["b", "c"]);
        assert_eq!(older_than(home.path(), then).expect("none"), []);
        remove_older(home.path(), &slug(), "2027-01-01T00:00:00Z".parse().expect("time")).expect("removed");
        assert!(!path(home.path(), &slug()).exists());
    }
}
