//! Writes the log to a bounded ring of files, on a separate thread.
//!
//! Secrets are redacted from a line before the journal receives it. A slow disk never delays a request: when more than
//! [`bounds::LOG_LINES`] lines are queued, further lines are dropped, and the journal writes the number of dropped
//! lines before the next line.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::bounds;

/// The name of the current log file. Older files are `egress.1.jsonl`, `egress.2.jsonl`, …
const CURRENT: &str = "egress.jsonl";

/// Queues lines for the writer thread. When the last clone is dropped, the thread writes the queued lines and ends.
#[derive(Clone)]
pub(crate) struct Journal {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
    /// The number of lines that are queued and not yet in a file.
    unwritten: Arc<watch::Sender<usize>>,
}

impl Journal {
    /// Starts the writer thread, which keeps at most `keep` bytes of log files in `directory`.
    ///
    /// # Errors
    /// If the first file cannot be opened or the thread cannot be started.
    pub(crate) fn start(directory: &Path, keep: u64) -> io::Result<Self> {
        let (lines, incoming) = sync_channel(bounds::LOG_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let files = LogFiles::open(directory, keep)?;
        let unwritten = Arc::new(watch::Sender::new(0));
        let (counted, open) = (Arc::clone(&dropped), Arc::clone(&unwritten));
        std::thread::Builder::new()
            .name("egress-log".into())
            .spawn(move || write(files, &incoming, &counted, &open))?;
        Ok(Self { lines, dropped, unwritten })
    }

    /// Queues one line without its line break. Never blocks.
    pub(crate) fn line(&self, line: String) {
        self.unwritten.send_modify(|count| *count += 1);
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.unwritten.send_modify(|count| *count -= 1);
        }
    }

    /// Waits, at shutdown, until the queued lines are written.
    pub(crate) async fn settle(&self) {
        let mut unwritten = self.unwritten.subscribe();
        let _ = timeout(bounds::LOG_TAKEN_WITHIN, unwritten.wait_for(|count| *count == 0)).await;
    }
}

fn write(
    mut files: LogFiles,
    incoming: &Receiver<String>,
    dropped: &AtomicU64,
    unwritten: &watch::Sender<usize>,
) {
    while let Ok(mut line) = incoming.recv() {
        let mut written = 0;
        loop {
            written += 1;
            let lost = dropped.swap(0, Ordering::Relaxed);
            if lost > 0 {
                line = format!("{{\"event\":\"lost\",\"lines\":{lost}}}\n{line}");
            }
            if let Err(error) = files.append(&line) {
                tracing::warn!(%error, "cannot write a log line");
            }
            match incoming.try_recv() {
                Ok(next) => line = next,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        // Flushes when no line is queued, so that a reader who follows the file sees complete lines without delay.
        if let Err(error) = files.flush() {
            tracing::warn!(%error, "cannot write the log");
        }
        unwritten.send_modify(|count| *count -= written);
    }
}

/// The ring of log files in a directory.
#[derive(Debug)]
pub struct LogFiles {
    directory: PathBuf,
    /// Maximum size of one file, in bytes.
    limit: u64,
    written: u64,
    file: BufWriter<File>,
}

impl LogFiles {
    /// Opens the current file in `directory`, which exists. All files together have at most `keep` bytes. Does not
    /// follow a symbolic link at the path of the file.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(directory: &Path, keep: u64) -> io::Result<Self> {
        let file = open(&directory.join(CURRENT))?;
        let (written, limit) = (file.metadata()?.len(), keep / bounds::LOG_FILES);
        Ok(Self { directory: directory.to_owned(), limit, written, file: BufWriter::new(file) })
    }

    /// Writes the appended lines to the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Appends one line, and its line break.
    ///
    /// # Errors
    /// If a file cannot be written or rotated.
    pub fn append(&mut self, line: &str) -> io::Result<()> {
        let bytes = line.len() as u64 + 1;
        if self.written > 0 && self.written + bytes > self.limit {
            self.rotate()?;
        }
        self.file.write_all(line.as_bytes())?;
        self.file.write_all(b"\n")?;
        self.written += bytes;
        Ok(())
    }

    /// Rotates the files and overwrites the oldest file.
    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        for age in (1..bounds::LOG_FILES).rev() {
            let newer = if age == 1 { self.directory.join(CURRENT) } else { self.aged(age - 1) };
            if newer.exists() {
                std::fs::rename(newer, self.aged(age))?;
            }
        }
        self.file = BufWriter::new(open(&self.directory.join(CURRENT))?);
        self.written = 0;
        Ok(())
    }

    fn aged(&self, age: u64) -> PathBuf {
        self.directory.join(format!("egress.{age}.jsonl"))
    }
}

fn open(path: &Path) -> io::Result<File> {
    let no_links = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(no_links).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_lines_within_its_bound() {
        let directory = tempfile::tempdir().expect("directory");
        let mut ring = LogFiles::open(directory.path(), 100 * bounds::LOG_FILES).expect("ring");
        for n in 0..100 {
            ring.append(&format!("line {n:04}")).expect("append");
        }
        ring.flush().expect("flush");
        let mut sizes = 0;
        for entry in fs::read_dir(directory.path()).expect("list") {
            let meta = entry.expect("entry").metadata().expect("meta");
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
            sizes += meta.len();
        }
        assert!(sizes <= 100 * bounds::LOG_FILES, "{sizes}");
        let newest = fs::read_to_string(directory.path().join(CURRENT)).expect("current");
        assert!(newest.ends_with("line 0099\n"), "{newest}");
        let older = fs::read_to_string(directory.path().join("egress.1.jsonl")).expect("older");
        let last = older.lines().last().expect("a line");
        assert!(!newest.contains(last) && last < newest.as_str());
    }

    #[tokio::test]
    async fn writes_lines_in_the_background_and_the_rest_at_shutdown() {
        let directory = tempfile::tempdir().expect("directory");
        let journal = Journal::start(directory.path(), 1 << 20).expect("journal");
        journal.line("{\"a\":1}".into());
        let path = directory.path().join(CURRENT);
        let until = Instant::now() + Duration::from_secs(5);
        while fs::read_to_string(&path).expect("read") != "{\"a\":1}\n" {
            assert!(Instant::now() < until, "the line never came");
            std::thread::sleep(Duration::from_millis(5));
        }
        for n in 0..bounds::LOG_LINES / 2 {
            journal.line(n.to_string());
        }
        journal.settle().await;
        let text = fs::read_to_string(&path).expect("read");
        assert_eq!(text.lines().count(), 1 + bounds::LOG_LINES / 2);
    }
}
