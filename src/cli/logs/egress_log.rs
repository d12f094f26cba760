//! Reads the proxy's access log: first a ring of files, oldest first, then new lines. `--json` prints the
//! lines as the proxy wrote them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bottle_host::Host;
use bottle_host::plain_file;
use bottle_instance::proxy_log::{LINE_MAX, files};
use bottle_instance::{State, Store};
use jiff::Timestamp;

use super::Logs;
use crate::console::decision;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, POLL_INTERVAL, inert, wait_while_read};

/// Shows the log files in `directory`.
pub(super) fn show(directory: &Path, logs: &Logs, host: &Host, output: &Output) -> Result<u8, CliError> {
    let files = files(directory);
    if files.is_empty() && !logs.follow {
        return Err(CliError::state("the proxy's access log is empty")
            .about(&logs.slug)
            .hint("set `egress.log` in the bottle: `1` logs denied requests, `2` every request"));
    }
    let mut tail = Tail::new(logs.tail);
    let mut current = None;
    for path in files {
        let Ok(mut file) = Followed::open(&path) else { continue };
        while let Some(line) = file.line(logs.since)? {
            if let Some(line) = tail.push(line) {
                print(&line, output)?;
            }
        }
        current = Some(file);
    }
    for line in tail.last {
        print(&line, output)?;
    }
    if logs.follow {
        follow(&directory.join("egress.jsonl"), current, logs, host, output)?;
    }
    Ok(exit::DONE)
}

/// Buffers the last `most` lines. Without a limit, buffers no line.
struct Tail {
    most: Option<usize>,
    last: VecDeque<String>,
}

impl Tail {
    fn new(most: Option<u64>) -> Self {
        let most = most.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX));
        Self { most, last: VecDeque::new() }
    }

    /// Adds a line. Returns it immediately if there is no limit.
    fn push(&mut self, line: String) -> Option<String> {
        let Some(most) = self.most else { return Some(line) };
        self.last.push_back(line);
        if self.last.len() > most {
            self.last.pop_front();
        }
        None
    }
}

fn print(line: &str, output: &Output) -> Result<(), CliError> {
    let shown = if output.json { inert(line) } else { decision::format_line(line, output.styles()) };
    output.print(&shown)
}

/// Follows the log until the bottle has ended and all its lines were shown.
fn follow(
    path: &Path,
    mut current: Option<Followed>,
    logs: &Logs,
    host: &Host,
    output: &Output,
) -> Result<(), CliError> {
    let store = Store::of(host);
    loop {
        // Checked before the file is read, so that the last lines of a bottle that is ending are not missed.
        let alive = matches!(store.state(&logs.slug), Some(State::Alive(_)));
        if let Some(file) = &mut current {
            while let Some(line) = file.line(logs.since)? {
                print(&line, output)?;
            }
        }
        if current.as_ref().is_none_or(|file| file.was_replaced(path)) {
            match Followed::open(path) {
                Ok(next) => {
                    current = Some(next);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(CliError::cannot(format_args!("read {}", path.display()), error));
                }
            }
        }
        if !alive {
            return Ok(());
        }
        wait_while_read(POLL_INTERVAL)?;
    }
}

/// A file that is read line by line while it grows.
struct Followed {
    reader: BufReader<File>,
    inode: u64,
    part: Vec<u8>,
}

impl Followed {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = plain_file::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self { reader: BufReader::new(file), inode, part: Vec::new() })
    }

    /// Returns the next complete line that is not older than `since`; none if there is no such line yet.
    fn line(&mut self, since: Option<Timestamp>) -> Result<Option<String>, CliError> {
        loop {
            let read = std::io::Read::take(&mut self.reader, LINE_MAX).read_until(b'\n', &mut self.part);
            let length = read.map_err(|error| CliError::cannot("read the log", error))?;
            if self.part.last() != Some(&b'\n') && (self.part.len() as u64) < LINE_MAX {
                return if length == 0 { Ok(None) } else { continue };
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.part)).trim_end().to_owned();
            if since.is_none_or(|since| time_of(&line).is_none_or(|time| time >= since)) {
                return Ok(Some(line));
            }
        }
    }

    fn was_replaced(&self, path: &Path) -> bool {
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
