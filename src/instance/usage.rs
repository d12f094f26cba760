//! What agents' models cost: `$BOTTLE_HOME/usage/<slug>.jsonl`, a line for each answer.
//!
//! The file outlives its bottle, and bottles of one name share it. A record is written once: it is known by its
//! id when it comes again, because a keeper died before it could say that it had it, or because it was found in
//! the folder of a bottle whose proxy was killed ([`gather`]).

use std::collections::{HashSet, VecDeque};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;
use bottle_contract::usage::{MAX_LINE, Usage, WAITING_FILE};
use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::backend::SIDECAR_LOGS;
use crate::host::files;

/// Bytes of one file, a million answers. An agent that makes more of them, of a host that helps it, shall not
/// fill the user's disk.
const MOST: u64 = 256 << 20;

/// Bytes at a file's end whose records are known again: many times what a proxy hands over at once.
const TAIL: u64 = 1 << 20;

/// Records that are known again.
const KNOWN: usize = 4096;

/// Bytes that are read of a proxy's own file of records; it keeps it shorter.
const WAITING_MAX: u64 = 64 << 20;

/// A line as it is written: fields are only ever added.
#[derive(Debug, Serialize)]
struct Line<'a> {
    agent: &'a str,
    #[serde(flatten)]
    usage: &'a Usage,
}

/// As much of a line as it takes to know it again.
#[derive(Debug, Deserialize)]
struct Mark {
    id: String,
    time: Timestamp,
}

/// The file of one bottle's name, open to be added to. Only the keeper of that bottle, or whoever holds its
/// claim, may have one; what is old may be taken away meanwhile ([`forget`]).
#[derive(Debug)]
pub struct UsageFile {
    path: PathBuf,
    file: File,
    agent: String,
    known: VecDeque<String>,
}

/// Where the records of that name are.
#[must_use]
pub fn path(home: &Path, slug: &Slug) -> PathBuf {
    home.join("usage").join(format!("{slug}.jsonl"))
}

impl UsageFile {
    /// Opens it, and takes away a last line that is not whole.
    ///
    /// # Errors
    /// When it cannot be made, read or written.
    pub fn open(home: &Path, slug: &Slug, agent: &str) -> io::Result<Self> {
        let path = path(home, slug);
        let folder = home.join("usage");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut file = locked(&path)?;
        // Without it a loss of power may take the name back.
        File::open(&folder)?.sync_all()?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut tail = Vec::new();
        (&file).take(TAIL).read_to_end(&mut tail)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < tail.len() {
            file.set_len(length - (tail.len() - whole) as u64)?;
        }
        let lines = tail[..whole].split(|byte| *byte == b'\n');
        let known = lines.filter_map(|line| Some(serde_json::from_slice::<Mark>(line).ok()?.id)).collect();
        file.unlock()?;
        Ok(Self { path, file, agent: agent.to_owned(), known })
    }

    /// Adds the records that are not there yet. When it returns they are on the disk.
    ///
    /// # Errors
    /// When they cannot be written; then none of them is there.
    pub fn append(&mut self, records: &[Usage]) -> io::Result<()> {
        let new: Vec<&Usage> = records.iter().filter(|usage| !self.known.contains(&usage.id)).collect();
        self.write(&new)?;
        self.known.extend(new.iter().map(|usage| usage.id.clone()));
        self.known.drain(..self.known.len().saturating_sub(KNOWN));
        Ok(())
    }

    fn write(&mut self, records: &[&Usage]) -> io::Result<()> {
        let mut text = Vec::new();
        for usage in records {
            serde_json::to_writer(&mut text, &Line { agent: &self.agent, usage })?;
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
        if before + text.len() as u64 > MOST {
            return Err(io::Error::other(format!("it is full: move {} away", self.path.display())));
        }
        self.file.write_all(text).and_then(|()| self.file.sync_data()).inspect_err(|_| {
            // All or nothing: what stood there for a moment comes again.
            let _ = self.file.set_len(before);
        })
    }
}

/// The file of this name, opened and locked. One that was put aside before the lock was had is not it.
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
        Ok(there) => {
            let own = file.metadata()?;
            Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes over what a bottle's proxy could not hand over, found in the bottle's folder. Whoever calls it holds the
/// bottle's claim, and its proxy has ended.
///
/// # Errors
/// When it cannot be read or written; then it is still there.
pub fn gather(home: &Path, folder: &Path, slug: &Slug, agent: &str) -> io::Result<()> {
    let Some(file) = open_waiting(&folder.join(SIDECAR_LOGS).join(WAITING_FILE))? else { return Ok(()) };
    let mut waiting: Vec<Usage> = lines(file.take(WAITING_MAX))
        .filter_map(|line| line.map(|line| serde_json::from_slice(&line).ok()).transpose())
        .collect::<io::Result<_>>()?;
    if waiting.is_empty() {
        return Ok(());
    }
    let mut own = UsageFile::open(home, slug, agent)?;
    let mut missing: HashSet<String> = waiting.iter().map(|usage| usage.id.clone()).collect();
    for line in lines(File::open(&own.path)?) {
        if let Ok(Mark { id, .. }) = serde_json::from_slice(&line?) {
            missing.remove(&id);
        }
    }
    // Each once, should the file name it twice.
    waiting.retain(|usage| missing.remove(&usage.id));
    own.write(&waiting.iter().collect::<Vec<_>>())
}

/// The folder may be another user's, who may have put anything there.
fn open_waiting(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lines that are not too long; the others come in pieces, which nobody can read.
fn lines(file: impl Read) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    let mut reader = BufReader::new(file);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        match (&mut reader).take(MAX_LINE as u64).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    })
}

/// The files in which something is older than this, each with how many records of it are.
///
/// # Errors
/// When the folder cannot be listed or a file not be read.
pub fn older_than(home: &Path, then: Timestamp) -> io::Result<Vec<(Slug, usize)>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(home.join("usage")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let slug = name.to_str().and_then(|name| name.strip_suffix(".jsonl")?.parse::<Slug>().ok());
        let Some(slug) = slug else { continue };
        let mut old = 0;
        for line in lines(File::open(path(home, &slug))?) {
            old += usize::from(is_older(&line?, then));
        }
        if old > 0 {
            found.push((slug, old));
        }
    }
    found.sort();
    Ok(found)
}

/// Takes away what is older than this; a file with nothing left in it goes.
///
/// # Errors
/// When it cannot be written anew; then all of it is still there.
pub fn forget(home: &Path, slug: &Slug, then: Timestamp) -> io::Result<()> {
    let path = path(home, slug);
    if !path.exists() {
        return Ok(());
    }
    // Held to the end: a keeper that waits for it sees that the file is another one by then.
    let mut source = locked(&path)?;
    source.rewind()?;
    let mut kept = 0_usize;
    files::replace_durably(&path, |file| {
        for line in lines(&source) {
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
    // It has a new file by now, which nobody may add to between the look and the removal.
    let empty = locked(&path)?;
    if empty.metadata()?.len() == 0 { std::fs::remove_file(&path) } else { Ok(()) }
}

/// What cannot be read is not known to be.
fn is_older(line: &[u8], then: Timestamp) -> bool {
    serde_json::from_slice::<Mark>(line).is_ok_and(|mark| mark.time < then)
}

#[cfg(test)]
mod tests {
    use bottle_contract::usage::{Api, Tokens};

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
        }
    }

    fn now(id: &str) -> Usage {
        usage(id, "2026-01-31T12:00:00Z")
    }

    fn slug() -> Slug {
        "one".parse().expect("slug")
    }

    fn ids(home: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path(home, &slug())).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str::<Mark>(line).expect(line).id).collect()
    }

    fn waits(folder: &Path, text: &str) {
        let guards = folder.join(SIDECAR_LOGS);
        std::fs::create_dir_all(&guards).expect("folder");
        std::fs::write(guards.join(WAITING_FILE), text).expect("write");
    }

    #[test]
    fn a_record_is_written_once_whoever_brings_it_again() {
        let home = tempfile::tempdir().expect("home");
        let mut first = UsageFile::open(home.path(), &slug(), "claude").expect("open");
        first.append(&[now("a"), now("b")]).expect("append");
        first.append(&[now("b"), now("c")]).expect("append");
        // Another keeper, after the first was killed before it could say that it had `c`.
        let mut second = UsageFile::open(home.path(), &slug(), "claude").expect("open");
        second.append(&[now("c"), now("d")]).expect("append");
        assert_eq!(ids(home.path()), ["a", "b", "c", "d"]);
        let text = std::fs::read_to_string(path(home.path(), &slug())).expect("read");
        let line: serde_json::Value =
            serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        assert_eq!((line["agent"].as_str(), line["input"].as_u64()), (Some("claude"), Some(1)));
    }

    #[test]
    fn a_line_that_was_cut_goes_and_its_record_comes_again() {
        let home = tempfile::tempdir().expect("home");
        UsageFile::open(home.path(), &slug(), "a").expect("open").append(&[now("a")]).expect("append");
        let path = path(home.path(), &slug());
        let whole = std::fs::read(&path).expect("read");
        for cut in [&b"{"[..], b"{\"agent\":\"a\",\"id\":\"b\"", b"\0\0\0"] {
            std::fs::write(&path, [&whole[..], cut].concat()).expect("write");
            let mut file = UsageFile::open(home.path(), &slug(), "a").expect("open");
            file.append(&[now("b")]).expect("append");
            assert_eq!(ids(home.path()), ["a", "b"]);
        }
    }

    #[test]
    fn a_file_that_is_full_is_said_and_stays_as_it_is() {
        let home = tempfile::tempdir().expect("home");
        let mut file = UsageFile::open(home.path(), &slug(), "a").expect("open");
        file.file.set_len(MOST - 10).expect("a hole");
        let error = file.append(&[now("a")]).expect_err("full");
        assert!(error.to_string().contains("one.jsonl"), "{error}");
        assert_eq!(file.file.metadata().expect("file").len(), MOST - 10);
        assert!(file.known.is_empty());
    }

    #[test]
    fn what_a_killed_proxy_left_is_taken_over_once() {
        let home = tempfile::tempdir().expect("home");
        let folder = home.path().join("state/one");
        let gather = || gather(home.path(), &folder, &slug(), "claude");
        gather().expect("there is nothing");
        assert!(!path(home.path(), &slug()).exists());
        UsageFile::open(home.path(), &slug(), "claude").expect("open").append(&[now("a")]).expect("append");
        let line = |id| serde_json::to_string(&now(id)).expect("line");
        let long = "x".repeat(3 * MAX_LINE);
        waits(
            &folder,
            &format!(
                "{}\n{}\n{long}\nnonsense\n{}\n{}\n{{\"id\":\"cut",
                line("a"),
                line("b"),
                line("c"),
                line("b")
            ),
        );
        gather().expect("gathered");
        gather().expect("again");
        assert_eq!(ids(home.path()), ["a", "b", "c"]);
    }

    #[test]
    fn what_is_no_file_of_the_proxy_is_left_alone() {
        let home = tempfile::tempdir().expect("home");
        let folder = home.path().join("state/one");
        waits(&folder, "");
        let waiting = folder.join(SIDECAR_LOGS).join(WAITING_FILE);
        std::fs::remove_file(&waiting).expect("remove");
        let line = serde_json::to_string(&now("a")).expect("line");
        std::fs::write(home.path().join("elsewhere"), line + "\n").expect("write");
        std::os::unix::fs::symlink(home.path().join("elsewhere"), &waiting).expect("link");
        gather(home.path(), &folder, &slug(), "a").expect("nothing");
        std::fs::remove_file(&waiting).expect("remove");
        std::fs::create_dir(&waiting).expect("folder");
        gather(home.path(), &folder, &slug(), "a").expect("nothing");
        assert_eq!(ids(home.path()), [] as [String; 0]);
    }

    #[test]
    fn what_is_old_is_found_and_forgotten() {
        let home = tempfile::tempdir().expect("home");
        let then = "2026-01-01T00:00:00Z".parse().expect("time");
        assert_eq!(older_than(home.path(), then).expect("none"), []);
        let mut file = UsageFile::open(home.path(), &slug(), "a").expect("open");
        file.append(&[usage("a", "2025-12-31T23:59:59Z"), usage("b", "2026-01-01T00:00:00Z")])
            .expect("append");
        assert_eq!(older_than(home.path(), then).expect("found"), [(slug(), 1)]);
        forget(home.path(), &slug(), then).expect("forgotten");
        assert_eq!(ids(home.path()), ["b"]);
        // A keeper had it open all the while.
        file.append(&[now("c"), usage("b", "2026-01-01T00:00:00Z")]).expect("append");
        assert_eq!(ids(home.path()), ["b", "c"]);
        assert_eq!(older_than(home.path(), then).expect("none"), []);
        forget(home.path(), &slug(), "2027-01-01T00:00:00Z".parse().expect("time")).expect("forgotten");
        assert!(!path(home.path(), &slug()).exists());
    }
}
