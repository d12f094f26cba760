//! The file that says which bytes of a process's log are of which stream. Each line has the offset in the log at which
//! the stream changes, and the stream. A log without this file, and the bytes before the first line, are standard output.
//!
//! ```text
//! 120 stderr
//! 163 stdout
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use bottle_host::files;
use bottle_protocol::session::guest::{STDERR, STDOUT};

use crate::output_pieces::OutputPieces;

/// The maximum size of the file in bytes. At this size, the older part of the log is dropped.
const FILE_MAX: u64 = 512 << 10;

/// The maximum number of marks that stay when the older part of the log is dropped. They need less than half of
/// [`FILE_MAX`].
const MARKS_KEPT: usize = 8 << 10;

/// The maximum length of a line in bytes: a number of 20 digits, and the stream.
const LINE_MAX: u64 = 28;

/// A change of the stream: the offset in the log, and the stream from there on.
type Mark = (u64, u8);

/// The marks of one log.
pub(crate) struct StreamMarks {
    path: PathBuf,
}

impl StreamMarks {
    /// Returns the marks in this file.
    pub(crate) fn in_file(path: PathBuf) -> Self {
        Self { path }
    }

    /// Marks the streams of `pieces`, which begin at the offset `at` of the log. Returns whether there are so many marks
    /// that the older part of the log must be dropped.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn append(&self, mut at: u64, pieces: &OutputPieces) -> io::Result<bool> {
        let mut last = self.last()?;
        let mut lines = String::new();
        for piece in pieces.iter() {
            if piece.fd != last {
                lines += &line((at, piece.fd));
                last = piece.fd;
            }
            at += piece.bytes.len() as u64;
        }
        if !lines.is_empty() {
            let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
            file.write_all(lines.as_bytes())?;
        }
        Ok(fs::metadata(&self.path).is_ok_and(|file| file.len() >= FILE_MAX))
    }

    /// Returns the offset from which on the log has at most [`MARKS_KEPT`] marks.
    pub(crate) fn kept_from(&self) -> u64 {
        let marks = self.read();
        marks.len().checked_sub(MARKS_KEPT).and_then(|first| marks.get(first)).map_or(0, |mark| mark.0)
    }

    /// Drops the marks before the offset `cut` of the log, whose rest now begins at the offset `start`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn drop_before(&self, cut: u64, start: u64) -> io::Result<()> {
        let marks = self.read();
        if marks.is_empty() {
            return Ok(());
        }
        let first = stream_at(&marks, cut);
        let moved = marks.iter().filter(|mark| mark.0 > cut).map(|mark| (mark.0 - cut + start, mark.1));
        let kept = std::iter::once((start, first)).chain(moved);
        let lines: String = kept.map(line).collect();
        files::replace(&self.path, |file| file.write_all(lines.as_bytes()))
    }

    /// Divides bytes, which begin at the offset `at` of the log, into the pieces of their streams.
    pub(crate) fn divide(&self, at: u64, bytes: &[u8]) -> OutputPieces {
        let marks = self.read();
        let mut pieces = OutputPieces::default();
        let (mut fd, mut done) = (stream_at(&marks, at), 0);
        for (offset, next) in marks.into_iter().filter(|mark| mark.0 > at) {
            let end = usize::try_from(offset - at).unwrap_or(usize::MAX).min(bytes.len());
            pieces.push(fd, bytes.get(done..end).unwrap_or_default());
            (fd, done) = (next, end);
        }
        pieces.push(fd, bytes.get(done..).unwrap_or_default());
        pieces
    }

    /// Removes the marks.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Reads the marks in order. Lines that are damaged or out of order are left out.
    fn read(&self) -> Vec<Mark> {
        let mut text = String::new();
        if let Ok(file) = File::open(&self.path)
            && file.take(FILE_MAX * 2).read_to_string(&mut text).is_err()
        {
            return Vec::new();
        }
        let mut marks: Vec<Mark> = Vec::new();
        for mark in text.lines().filter_map(parsed) {
            if marks.last().is_none_or(|last| last.0 < mark.0) {
                marks.push(mark);
            }
        }
        marks
    }

    /// Returns the stream at the end of the log.
    fn last(&self) -> io::Result<u8> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(STDOUT),
            file => file?,
        };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LINE_MAX)))?;
        let mut end = String::new();
        file.take(LINE_MAX).read_to_string(&mut end)?;
        Ok(end.lines().next_back().and_then(parsed).map_or(STDOUT, |mark| mark.1))
    }
}

/// Returns the stream of the byte at this offset.
fn stream_at(marks: &[Mark], offset: u64) -> u8 {
    let after = marks.partition_point(|mark| mark.0 <= offset);
    after.checked_sub(1).and_then(|last| marks.get(last)).map_or(STDOUT, |mark| mark.1)
}

fn line((offset, fd): Mark) -> String {
    format!("{offset} {}\n", if fd == STDERR { "stderr" } else { "stdout" })
}

fn parsed(line: &str) -> Option<Mark> {
    let (offset, stream) = line.split_once(' ')?;
    let fd = match stream {
        "stdout" => STDOUT,
        "stderr" => STDERR,
        _ => return None,
    };
    Some((offset.parse().ok()?, fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(all: &[(u8, &str)]) -> OutputPieces {
        let mut pieces = OutputPieces::default();
        all.iter().for_each(|(fd, text)| pieces.push(*fd, text.as_bytes()));
        pieces
    }

    #[test]
    fn bytes_are_divided_as_they_were_marked() {
        let directory = tempfile::tempdir().expect("directory");
        let marks = StreamMarks::in_file(directory.path().join("p1.streams"));
        assert_eq!(marks.divide(0, b"abc"), pieces(&[(STDOUT, "abc")]), "a log without marks");
        let written = [(STDOUT, "one"), (STDERR, "err"), (STDOUT, "two"), (STDERR, "x")];
        assert!(!marks.append(0, &pieces(&written[..2])).expect("marked"));
        assert!(!marks.append(6, &pieces(&[(STDERR, "")])).expect("marked"));
        assert!(!marks.append(6, &pieces(&written[2..])).expect("marked"));
        let log = b"oneerrtwox";
        assert_eq!(marks.divide(0, log), pieces(&written));
        assert_eq!(marks.divide(4, &log[4..8]), pieces(&[(STDERR, "rr"), (STDOUT, "tw")]));
        assert_eq!(marks.divide(3, b""), pieces(&[]));
        // The log now begins with a line of 5 bytes, and continues at the offset 5 with the byte of the offset 4.
        marks.drop_before(4, 5).expect("dropped");
        assert_eq!(
            marks.divide(0, b"line\nrrtwox"),
            pieces(&[(STDOUT, "line\n"), (STDERR, "rr"), (STDOUT, "two"), (STDERR, "x")])
        );
        marks.remove();
        assert_eq!(marks.divide(0, log), pieces(&[(STDOUT, "oneerrtwox")]));
    }

    #[test]
    fn damaged_marks_are_left_out() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("p1.streams");
        fs::write(&path, "2 stderr\n1 stdout\nx stdout\n3 other\n4 stdout").expect("written");
        let marks = StreamMarks::in_file(path.clone());
        assert_eq!(marks.divide(0, b"abcdef"), pieces(&[(STDOUT, "ab"), (STDERR, "cd"), (STDOUT, "ef")]));
        fs::write(&path, b"\xff").expect("written");
        assert_eq!(marks.divide(0, b"ab"), pieces(&[(STDOUT, "ab")]));
    }
}
