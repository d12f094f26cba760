//! Reads the access log of a bottle's proxy. The log is a ring of files with a JSON line for each decision.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bottle_backend::SIDECAR_LOGS;
use bottle_host::{Host, plain_file};
use bottle_instance::Store;
use bottle_instance::proxy_log::{LINE_MAX, files};
use bottle_policy::names::Slug;
use jiff::Timestamp;

use crate::connect::no_such_bottle;
use crate::failure::Failure;
use crate::text::inert;
use crate::threads;

/// The maximum number of bytes that [`last`] returns.
const LAST_BYTES: usize = 4 << 20;

/// The directory of the access log.
pub fn directory(host: &Host, slug: &Slug) -> PathBuf {
    Store::of(host).directory(slug).join(SIDECAR_LOGS)
}

/// The error if the access log is empty.
pub fn empty(slug: &Slug) -> Failure {
    Failure::state("the proxy's access log is empty")
        .about(slug)
        .hint("set `egress.log` in the bottle: `1` logs denied requests, `2` every request")
}

/// Returns the last lines of the log as the proxy wrote them, with control characters escaped. Returns fewer than
/// `lines` lines if they would exceed 4 MiB in total.
///
/// # Errors
/// When no bottle has this slug, when nothing was logged, or when the log cannot be read.
pub async fn last(host: &Host, slug: &Slug, lines: usize) -> Result<Vec<String>, Failure> {
    let (host, slug) = (host.clone(), slug.clone());
    let reading = threads::cancelled_on_drop(async move || {
        let store = Store::of(&host);
        if store.state(&slug).is_none() {
            return Err(no_such_bottle(&store, &slug));
        }
        let directory = directory(&host, &slug);
        if files(&directory).is_empty() {
            return Err(empty(&slug));
        }
        let mut tail = Tail::new(lines, LAST_BYTES);
        read(&directory, None, |line| {
            tail.push(inert(&line));
            Ok::<_, Failure>(())
        })?;
        Ok(tail.last.into())
    });
    reading.await
}

/// Calls `each` with each line of the log in `directory` that is not older than `since`. Returns the file to which the
/// proxy appends new lines. `None` if the log has no file.
///
/// # Errors
/// When a file cannot be read, or when `each` returns an error.
pub fn read<E: From<Failure>>(
    directory: &Path,
    since: Option<Timestamp>,
    mut each: impl FnMut(String) -> Result<(), E>,
) -> Result<Option<Followed>, E> {
    let mut current = None;
    for path in files(directory) {
        let Ok(mut file) = Followed::open(&path) else { continue };
        while let Some(line) = file.line(since)? {
            each(line)?;
        }
        current = Some(file);
    }
    Ok(current)
}

/// The last lines of a log.
#[derive(Debug)]
pub struct Tail {
    lines: usize,
    bytes_left: usize,
    /// The lines, oldest first.
    pub last: VecDeque<String>,
}

impl Tail {
    /// Creates a tail that keeps at most `lines` lines and `bytes` bytes.
    pub fn new(lines: usize, bytes: usize) -> Self {
        Self { lines, bytes_left: bytes, last: VecDeque::new() }
    }

    /// Adds a line, and removes the oldest lines if a limit is exceeded. A line that alone exceeds the byte limit is
    /// left out.
    pub fn push(&mut self, line: String) {
        let (length, lines) = (line.len(), self.lines);
        while self.last.len() >= lines || self.bytes_left < length {
            let Some(oldest) = self.last.pop_front() else { return };
            self.bytes_left += oldest.len();
        }
        self.bytes_left -= length;
        self.last.push_back(line);
    }
}

/// A file that is read line by line while it grows.
#[derive(Debug)]
pub struct Followed {
    reader: BufReader<File>,
    inode: u64,
    part: Vec<u8>,
}

impl Followed {
    /// Opens the file.
    ///
    /// # Errors
    /// When the file cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = plain_file::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self { reader: BufReader::new(file), inode, part: Vec::new() })
    }

    /// Returns the next complete line that is not older than `since`. `None` if the file does not contain another such
    /// line yet.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn line(&mut self, since: Option<Timestamp>) -> Result<Option<String>, Failure> {
        loop {
            let read = std::io::Read::take(&mut self.reader, LINE_MAX).read_until(b'\n', &mut self.part);
            let length = read.map_err(|error| Failure::cannot("read the log", error))?;
            if self.part.last() != Some(&b'\n') && (self.part.len() as u64) < LINE_MAX {
                return if length == 0 { Ok(None) } else { continue };
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.part)).trim_end().to_owned();
            if since.is_none_or(|since| time_of(&line).is_none_or(|time| time >= since)) {
                return Ok(Some(line));
            }
        }
    }

    /// Whether a different file is now at `path`.
    pub fn was_replaced(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|now| now.ino() != self.inode)
    }
}

fn time_of(line: &str) -> Option<Timestamp> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    value.get("time")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_tail_has_the_last_lines_that_fit() {
        let last = |lines, bytes| {
            let mut tail = Tail::new(lines, bytes);
            ["one", "two", "three", "four"].into_iter().for_each(|line| tail.push(line.to_owned()));
            Vec::from(tail.last)
        };
        assert_eq!(last(2, 100), ["three", "four"]);
        assert_eq!(last(9, 12), ["two", "three", "four"]);
        assert_eq!(last(9, 8), ["four"]);
        assert_eq!(last(0, 100), [""; 0]);
    }

    #[test]
    fn returns_complete_lines_since_a_time() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("egress.jsonl");
        let mut writer = File::create(&path).expect("file");
        let mut file = Followed::open(&path).expect("open");
        let since = Some("2026-01-01T00:00:00Z".parse().expect("time"));
        let mut write = |text: &str| writer.write_all(text.as_bytes()).expect("write");
        write("{\"time\":\"2025-12-31T23:59:59Z\"}\n{\"time\":\"2026-01-01T00:00");
        assert_eq!(file.line(since).expect("line"), None);
        write(":01Z\",\"host\":\"a\"}\n");
        let line = file.line(since).expect("line").expect("whole");
        assert_eq!(line, "{\"time\":\"2026-01-01T00:00:01Z\",\"host\":\"a\"}");
        assert!(!file.was_replaced(&path));
        std::fs::remove_file(&path).expect("remove");
        assert!(!file.was_replaced(&path), "gone is not replaced");
        std::fs::write(&path, "").expect("write");
        assert!(file.was_replaced(&path) || std::fs::metadata(&path).expect("file").ino() == file.inode);
    }
}
