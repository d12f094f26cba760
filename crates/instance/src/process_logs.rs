//! The output of processes that clients started. It is stored in `logs/processes` of a bottle's directory, so that it
//! can be read after the bottle ended.
//!
//! ```text
//! p1.log     the last MiB of what the process p1 wrote, masked
//! p1.json    what was started, how it ended, and which positions of its output the log has
//! p1.streams which of these bytes are standard error ([`stream_marks`](crate::stream_marks))
//! ```
//! A position counts the bytes that the process wrote. Positions are computed backwards from the end of the log. A mask
//! differs in length from the text that it replaces, so positions before the last mask are approximate. When a log
//! reaches [`LOG_MAX`] bytes, its older half is dropped. The first line of the log then reports the number of dropped
//! bytes. The processes in the bottle control the content of these files, so this module bounds the size of each file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bottle_host::files;
use bottle_protocol::session::guest::Exit;
use bottle_protocol::session::process::{
    CHARACTER_MAX, OutputRead, ProcessInfo, ProcessName, ProcessState, ReadFrom, cut_character,
    unfinished_character,
};
use serde::{Deserialize, Serialize};

use crate::output_pieces::OutputPieces;
use crate::stream_marks::StreamMarks;

/// The maximum size of a log in bytes. When a log reaches this size, its older half is dropped.
const LOG_MAX: u64 = 2 << 20;

/// The number of bytes that stay when the older half is dropped. The guest keeps the same number of bytes.
const LOG_KEPT: u64 = LOG_MAX / 2;

/// The size limit of the description of a process in bytes.
const SAVED_MAX: u64 = 64 << 10;

/// A process and the positions of its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedProcess {
    /// What was started, and how it ended. A process that ended with its bottle is still described as running.
    pub process: ProcessInfo,
    /// The difference between a position of the output and its offset in the log.
    base: i64,
    /// The number of bytes at the beginning of the output that the log no longer contains. The first line of the log
    /// reports this number.
    dropped: u64,
}

/// The logs of one bottle.
#[derive(Debug, Clone)]
pub struct ProcessLogs {
    directory: PathBuf,
}

impl ProcessLogs {
    /// Returns the logs in the directory of a bottle.
    #[must_use]
    pub fn of(bottle: &Path) -> Self {
        Self { directory: bottle.join("logs/processes") }
    }

    /// Removes the logs of an earlier launch, in which other processes had the same handles.
    ///
    /// # Errors
    /// Fails if the logs cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the saved processes, in the order of their start. Descriptions that cannot be read are left out.
    #[must_use]
    pub fn list(&self) -> Vec<SavedProcess> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let handles = entries.filter_map(|entry| handle_of(&entry.path()));
        let mut all: Vec<SavedProcess> = handles.filter_map(|handle| self.get(&handle)).collect();
        all.sort_by_key(|saved| saved.process.handle.as_ref().map(number));
        all
    }

    /// Returns the process with this handle, or the last process with this name.
    #[must_use]
    pub fn find(&self, name: &ProcessName) -> Option<SavedProcess> {
        let is = |saved: &SavedProcess| {
            saved.process.handle.as_ref() == Some(name) || saved.process.name.as_ref() == Some(name)
        };
        self.list().into_iter().rev().find(is)
    }

    /// Begins the log of a process, or continues the log that an earlier keeper began. Returns the position of the next
    /// byte, or `None` if the end of the process is saved already.
    ///
    /// # Errors
    /// Fails if the files cannot be written.
    pub fn begin(&self, process: ProcessInfo) -> io::Result<Option<u64>> {
        let handle = handle(&process)?;
        if let Some(saved) = self.get(&handle) {
            let open = saved.process.state == ProcessState::Running;
            return Ok(open.then(|| saved.position(self.length(&handle))));
        }
        files::create_private_directory(&self.directory)?;
        // A process that ended is described as running until its output is saved.
        let process = ProcessInfo { state: ProcessState::Running, ended_at: None, ..process };
        self.open(&handle)?.set_len(0)?;
        self.marks(&handle).remove();
        self.describe(&SavedProcess { process, base: 0, dropped: 0 })?;
        Ok(Some(0))
    }

    /// Appends output. `masked` is the masked text of the output from position `from` to position `next`. If output
    /// between the end of the log and `from` was lost, a line in the log reports the loss.
    ///
    /// # Errors
    /// Fails if the files cannot be written.
    pub fn append(
        &self,
        handle: &ProcessName,
        from: u64,
        next: u64,
        masked: &OutputPieces,
    ) -> io::Result<()> {
        let mut saved = self.get(handle).ok_or(io::ErrorKind::NotFound)?;
        let mut length = self.length(handle);
        let lost = from.saturating_sub(saved.position(length));
        let mut text =
            if lost > 0 { format!("[bottle: {lost} bytes were not saved]\n") } else { String::new() }
                .into_bytes();
        let begins = length + text.len() as u64;
        text.extend_from_slice(&masked.bytes());
        self.open(handle)?.write_all(&text)?;
        let has_many_marks = self.marks(handle).append(begins, masked)?;
        length += text.len() as u64;
        let base = signed(next).saturating_sub(signed(length));
        let is_shifted = base != saved.base;
        saved.base = base;
        if length >= LOG_MAX || has_many_marks {
            return self.drop_older(saved, length);
        }
        if is_shifted { self.describe(&saved) } else { Ok(()) }
    }

    /// Saves how a process ended, and the processor time that it used, in milliseconds.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn end(&self, handle: &ProcessName, state: ProcessState, cpu_ms: u64) -> io::Result<()> {
        let mut saved = self.get(handle).ok_or(io::ErrorKind::NotFound)?;
        saved.process.state = state;
        saved.process.cpu_ms = cpu_ms;
        saved.process.ended_at = Some(jiff::Timestamp::now());
        self.describe(&saved)
    }

    /// Removes the logs of processes that the guest does not know any more.
    pub fn retain(&self, known: &[ProcessName]) {
        for saved in self.list() {
            let Some(handle) = saved.process.handle.filter(|handle| !known.contains(handle)) else {
                continue;
            };
            let _ = fs::remove_file(self.path(&handle, "json"));
            let _ = fs::remove_file(self.path(&handle, "log"));
            self.marks(&handle).remove();
        }
    }

    /// Reads a part of a log, in the same way as the guest of a running bottle reads the output of a process.
    ///
    /// # Errors
    /// Fails if the log cannot be read.
    pub fn read(
        &self,
        saved: &SavedProcess,
        from: ReadFrom,
        max: u32,
    ) -> io::Result<(OutputPieces, OutputRead)> {
        let handle = handle(&saved.process)?;
        let mut file = File::open(self.path(&handle, "log"))?;
        let length = file.metadata()?.len().min(LOG_MAX * 2);
        // A negative base is replaced by 0, so that each byte of the log has one position even if the log is longer
        // than the output.
        let base = u64::try_from(saved.base).unwrap_or(0);
        let (offset, lost) = match from {
            ReadFrom::Position(position) => {
                let notice = notice(saved.dropped).len() as u64;
                let offset = position.saturating_sub(base).max(notice).min(length);
                (offset, saved.dropped.saturating_sub(position))
            }
            ReadFrom::LastLines(lines) => {
                let mut all = Vec::new();
                (&mut file).take(length).read_to_end(&mut all)?;
                (last_lines(&all, lines) as u64, 0)
            }
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        let most = if max == 0 { 0 } else { u64::from(max).max(CHARACTER_MAX as u64) };
        file.take(most.min(length.saturating_sub(offset))).read_to_end(&mut bytes)?;
        if offset.saturating_add(bytes.len() as u64) < length {
            bytes.truncate(bytes.len() - unfinished_character(&bytes));
        }
        let (from, end) = (base.saturating_add(offset), base.saturating_add(length));
        let next = from.saturating_add(bytes.len() as u64);
        let pieces = self.marks(&handle).divide(offset, &bytes);
        Ok((pieces, OutputRead { from, next, lost, end, state: saved.state(), cpu_ms: None }))
    }

    fn drop_older(&self, mut saved: SavedProcess, length: u64) -> io::Result<()> {
        let handle = handle(&saved.process)?;
        let marks = self.marks(&handle);
        let mut file = File::open(self.path(&handle, "log"))?;
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_KEPT).max(marks.kept_from())))?;
        let mut kept = Vec::new();
        file.take(LOG_MAX).read_to_end(&mut kept)?;
        // The partial first line is dropped, because half a line or half an escape sequence is not readable.
        if let Some(line_break) =
            kept.iter().position(|byte| *byte == b'\n').filter(|at| *at + 1 < kept.len())
        {
            kept.drain(..=line_break);
        } else {
            kept.drain(..cut_character(&kept));
        }
        let cut = length - kept.len() as u64;
        let dropped = saved.position(cut);
        let notice = notice(dropped);
        files::replace(&self.path(&handle, "log"), |file| {
            file.write_all(notice.as_bytes())?;
            file.write_all(&kept)
        })?;
        marks.drop_before(cut, notice.len() as u64)?;
        saved.dropped = dropped;
        saved.base = signed(dropped).saturating_sub(signed(notice.len() as u64));
        self.describe(&saved)
    }

    fn get(&self, handle: &ProcessName) -> Option<SavedProcess> {
        let file = File::open(self.path(handle, "json")).ok()?;
        let mut text = Vec::new();
        file.take(SAVED_MAX).read_to_end(&mut text).ok()?;
        let saved: SavedProcess = serde_json::from_slice(&text).ok()?;
        (saved.process.handle.as_ref() == Some(handle)).then_some(saved)
    }

    fn describe(&self, saved: &SavedProcess) -> io::Result<()> {
        let text = serde_json::to_vec(saved)?;
        files::replace(&self.path(&handle(&saved.process)?, "json"), |file| file.write_all(&text))
    }

    fn open(&self, handle: &ProcessName) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.path(handle, "log"))
    }

    fn length(&self, handle: &ProcessName) -> u64 {
        fs::metadata(self.path(handle, "log")).map_or(0, |found| found.len())
    }

    fn marks(&self, handle: &ProcessName) -> StreamMarks {
        StreamMarks::in_file(self.path(handle, "streams"))
    }

    fn path(&self, handle: &ProcessName, extension: &str) -> PathBuf {
        self.directory.join(format!("{handle}.{extension}"))
    }
}

impl SavedProcess {
    /// Returns the state of the process. If its end was not saved, the process ended with its bottle: the kernel kills
    /// all processes with pid 1.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        match self.process.state {
            ProcessState::Running => ProcessState::Exited(Exit::Signal(9)),
            exited => exited,
        }
    }

    fn position(&self, offset: u64) -> u64 {
        u64::try_from(signed(offset).saturating_add(self.base)).unwrap_or(0)
    }
}

/// Returns the first line of a log whose beginning was dropped.
fn notice(dropped: u64) -> String {
    match dropped {
        0 => String::new(),
        _ => format!("[bottle: the first {dropped} bytes are not kept]\n"),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the handle of a process. Only handles are used as file names.
fn handle(process: &ProcessInfo) -> io::Result<ProcessName> {
    let handle = process.handle.clone().filter(ProcessName::is_handle);
    handle.ok_or_else(|| io::Error::other("the process has no handle"))
}

fn handle_of(path: &Path) -> Option<ProcessName> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
    name.parse().ok().filter(ProcessName::is_handle)
}

fn number(handle: &ProcessName) -> u64 {
    handle.as_str().trim_start_matches('p').parse().unwrap_or(u64::MAX)
}

/// Returns the offset at which the last `lines` lines begin. A last line without a newline is counted too.
fn last_lines(text: &[u8], lines: u64) -> usize {
    let wanted = usize::try_from(lines).unwrap_or(usize::MAX);
    if wanted == 0 {
        return text.len();
    }
    let ends = text.iter().enumerate().rev().filter(|(at, byte)| **byte == b'\n' && at + 1 < text.len());
    ends.map(|(at, _)| at + 1).nth(wanted - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use bottle_protocol::session::guest::{STDERR, STDOUT};
    use proptest::prelude::*;

    use super::*;

    fn process(number: u64) -> ProcessInfo {
        ProcessInfo {
            handle: Some(ProcessName::handle(number)),
            name: Some("web".parse().expect("a name")),
            pid: 7,
            argv: vec!["sh".to_owned()],
            started_at: jiff::Timestamp::UNIX_EPOCH,
            ended_at: None,
            state: ProcessState::Running,
            terminal: false,
            processes: 1,
            cpu_ms: 0,
            memory_bytes: 0,
        }
    }

    fn read(logs: &ProcessLogs, from: ReadFrom) -> (String, OutputRead) {
        let saved = logs.find(&ProcessName::handle(1)).expect("saved");
        let (pieces, read) = logs.read(&saved, from, u32::MAX).expect("read");
        (String::from_utf8(pieces.bytes()).expect("text"), read)
    }

    /// Returns bytes of the standard output.
    fn out(bytes: &[u8]) -> OutputPieces {
        let mut pieces = OutputPieces::default();
        pieces.push(STDOUT, bytes);
        pieces
    }

    #[test]
    fn a_log_is_read_by_position_and_continued_by_the_next_keeper() {
        let directory = tempfile::tempdir().expect("directory");
        let logs = ProcessLogs::of(directory.path());
        let p1 = ProcessName::handle(1);
        assert_eq!(logs.begin(process(1)).expect("begun"), Some(0));
        logs.append(&p1, 0, 4, &out(b"one\n")).expect("appended");
        // The mask replaces 20 bytes by 11 bytes.
        logs.append(&p1, 4, 24, &out(b"[redacted]\n")).expect("appended");
        assert_eq!(logs.begin(process(1)).expect("begun"), Some(24));
        logs.append(&p1, 24, 28, &out(b"end\n")).expect("appended");
        let (text, all) = read(&logs, ReadFrom::Position(0));
        assert_eq!(text, "one\n[redacted]\nend\n");
        assert_eq!((all.next, all.end, all.state), (28, 28, ProcessState::Exited(Exit::Signal(9))));
        let (text, part) = read(&logs, ReadFrom::Position(24));
        assert_eq!((text.as_str(), part.from, part.lost), ("end\n", 24, 0));
        assert_eq!(read(&logs, ReadFrom::Position(99)).0, "");
        assert_eq!(read(&logs, ReadFrom::LastLines(2)).0, "[redacted]\nend\n");
        // The log is longer than the output, because the log also reports the lost output.
        logs.append(&p1, 33, 35, &out(b"x\n")).expect("appended");
        assert_eq!(logs.begin(process(1)).expect("begun"), Some(35));
        let (text, all) = read(&logs, ReadFrom::Position(0));
        assert_eq!(text, "one\n[redacted]\nend\n[bottle: 5 bytes were not saved]\nx\n");
        assert_eq!((all.from, all.next, all.end, all.lost), (0, all.end, text.len() as u64, 0));
        logs.end(&p1, ProcessState::Exited(Exit::Code(3)), 1234).expect("ended");
        assert_eq!(logs.find(&p1).expect("saved").process.cpu_ms, 1234);
        assert_eq!(logs.begin(process(1)).expect("begun"), None);
        assert_eq!(read(&logs, ReadFrom::LastLines(0)).1.state, ProcessState::Exited(Exit::Code(3)));
        for name in ["p1.log", "p1.json"] {
            let mode = fs::metadata(directory.path().join("logs/processes").join(name))
                .expect("file")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        logs.begin(process(2)).expect("begun");
        assert_eq!(
            logs.find(&"web".parse().expect("a name")).expect("saved").process.handle,
            Some(ProcessName::handle(2))
        );
        logs.retain(&[ProcessName::handle(2)]);
        assert_eq!(logs.list().len(), 1);
        logs.clear().and_then(|()| logs.clear()).expect("cleared");
        assert_eq!(logs.list(), []);
    }

    #[test]
    fn a_long_log_loses_its_older_half_and_says_so() {
        let directory = tempfile::tempdir().expect("directory");
        let logs = ProcessLogs::of(directory.path());
        logs.begin(process(1)).expect("begun");
        let line = [vec![b'x'; 99], vec![b'\n']].concat().repeat(1000);
        let part = line.len() as u64;
        for number in 0..50 {
            logs.append(&ProcessName::handle(1), number * part, (number + 1) * part, &out(&line))
                .expect("appended");
            assert!(logs.length(&ProcessName::handle(1)) < LOG_MAX);
        }
        let (text, all) = read(&logs, ReadFrom::Position(0));
        assert_eq!((all.end, all.from, all.from % 100), (50 * part, all.lost, 0));
        assert!(
            all.lost > 0 && all.end - all.from >= LOG_KEPT - 100 && text.len() as u64 == all.end - all.from
        );
        assert!(!text.contains("[bottle"));
        let first = format!("[bottle: the first {} bytes are not kept]\nxx", all.from);
        assert!(read(&logs, ReadFrom::LastLines(u64::MAX)).0.starts_with(&first));
        assert_eq!(read(&logs, ReadFrom::Position(all.end - 100)).0.len(), 100);
    }

    #[test]
    fn a_log_says_which_bytes_are_standard_error() {
        let directory = tempfile::tempdir().expect("directory");
        let logs = ProcessLogs::of(directory.path());
        let p1 = ProcessName::handle(1);
        logs.begin(process(1)).expect("begun");
        let mut pieces = out(b"one\n");
        pieces.push(STDERR, b"bad\n");
        logs.append(&p1, 0, 8, &pieces).expect("appended");
        // The next keeper continues. Lost output is reported in a line of standard error, which came before it.
        logs.begin(process(1)).expect("begun");
        logs.append(&p1, 9, 13, &out(b"two\n")).expect("appended");
        let saved = logs.find(&p1).expect("saved");
        let (all, _) = logs.read(&saved, ReadFrom::Position(0), u32::MAX).expect("read");
        assert_eq!(all.only(STDOUT).bytes(), b"one\ntwo\n");
        assert_eq!(all.only(STDERR).bytes(), b"bad\n[bottle: 1 bytes were not saved]\n");
        logs.retain(&[]);
        assert_eq!(fs::read_dir(directory.path().join("logs/processes")).expect("listed").count(), 0);
    }

    #[test]
    fn a_log_whose_stream_changes_often_loses_its_older_part() {
        let directory = tempfile::tempdir().expect("directory");
        let logs = ProcessLogs::of(directory.path());
        let p1 = ProcessName::handle(1);
        logs.begin(process(1)).expect("begun");
        let mut pieces = OutputPieces::default();
        for _ in 0..5000 {
            pieces.push(STDOUT, b"out\n");
            pieces.push(STDERR, b"error\n");
        }
        let length = pieces.len() as u64;
        for number in 0..8 {
            logs.append(&p1, number * length, (number + 1) * length, &pieces).expect("appended");
            let marks = directory.path().join("logs/processes/p1.streams").metadata().expect("marks");
            assert!(marks.len() < 700 << 10, "{} bytes of marks", marks.len());
        }
        let saved = logs.find(&p1).expect("saved");
        let (all, read) = logs.read(&saved, ReadFrom::Position(0), u32::MAX).expect("read");
        assert!(read.lost > 0 && read.end == 8 * length, "{read:?}");
        let (stdout, stderr) = (all.only(STDOUT).bytes(), all.only(STDERR).bytes());
        assert!(!stdout.is_empty() && stdout.chunks(4).all(|line| line == b"out\n"));
        assert!(!stderr.is_empty() && stderr.chunks(6).all(|line| line == b"error\n"));
    }

    #[test]
    fn files_of_another_name_or_content_are_left_out() {
        let directory = tempfile::tempdir().expect("directory");
        let logs = ProcessLogs::of(directory.path());
        logs.begin(process(1)).expect("begun");
        let here = directory.path().join("logs/processes");
        fs::copy(here.join("p1.json"), here.join("p2.json")).expect("copied");
        fs::write(here.join("p3.json"), "{").expect("written");
        fs::copy(here.join("p1.json"), here.join("web.json")).expect("copied");
        assert_eq!(logs.list().len(), 1);
        assert!(
            logs.begin(ProcessInfo { handle: Some("web".parse().expect("a name")), ..process(1) }).is_err()
        );
    }

    #[test]
    fn a_dropped_beginning_does_not_leave_a_part_of_a_character() {
        for shift in 0..3 {
            let directory = tempfile::tempdir().expect("directory");
            let logs = ProcessLogs::of(directory.path());
            logs.begin(process(1)).expect("begun");
            let mut next = 0;
            // The log is one line, so no line break shows where a character begins.
            for text in [&"abc"[..shift], &"€".repeat(300_000), &"€".repeat(500_000)] {
                let from = next;
                next += text.len() as u64;
                logs.append(&ProcessName::handle(1), from, next, &out(text.as_bytes())).expect("appended");
            }
            let (text, all) = read(&logs, ReadFrom::Position(0));
            assert!(text.starts_with('€') && all.lost > 0 && all.end == next, "{all:?}");
        }
    }

    proptest! {
        #[test]
        fn parts_join_to_the_text_of_any_bytes(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xac)], 0..60),
            max in 1_u32..20,
        ) {
            let directory = tempfile::tempdir().expect("directory");
            let logs = ProcessLogs::of(directory.path());
            logs.begin(process(1)).expect("begun");
            logs.append(&ProcessName::handle(1), 0, bytes.len() as u64, &out(&bytes)).expect("appended");
            let saved = logs.find(&ProcessName::handle(1)).expect("saved");
            let (mut text, mut next) = (String::new(), 0);
            while next < bytes.len() as u64 {
                let (part, read) = logs.read(&saved, ReadFrom::Position(next), max).expect("read");
                prop_assert!(!part.is_empty() && part.len() <= CHARACTER_MAX.max(max as usize));
                text += &String::from_utf8_lossy(&part.bytes());
                next = read.next;
            }
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn last_lines_agrees_with_split_inclusive(text in "[ab\n]{0,60}", lines in 0u64..8) {
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let skip = all.len().saturating_sub(usize::try_from(lines).expect("small"));
            prop_assert_eq!(&text[last_lines(text.as_bytes(), lines)..], all[skip..].concat());
        }
    }
}
