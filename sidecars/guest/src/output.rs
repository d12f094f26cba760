//! The agent's output log: the last [`SCROLLBACK`] bytes, for any number of readers at their own pace.
//!
//! ```text
//!   agent ─► push ─► │ start ……… segments ……… end │ ─► next(cursor) per reader
//!                ▲                     ▲
//!                └─ waits while the controller's cursor is more than AHEAD behind
//! ```
//! The *controller* is the client that controls the terminal: the agent writes no faster than it reads.
//! Other readers may fall behind and then continue with the oldest buffered byte. Without a controller
//! the agent never waits, so a detached agent keeps running. An agent whose first client is about to
//! attach has a controller at byte 0.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bottle_contract::session::guest::{Exit, SCROLLBACK};
use bytes::Bytes;
use tokio::sync::Notify;

/// Most bytes that the agent may be ahead of the controller.
const AHEAD: u64 = 256 * 1024;

/// Most bytes of one segment, which a reader gets at once.
const SEGMENT: usize = 16 * 1024;

/// Most segments. Output that switches between the two streams at every byte would otherwise need a
/// segment for each.
const MAX_SEGMENTS: usize = 4096;

/// A piece of output for a reader.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes of a descriptor.
    Bytes { fd: u8, bytes: Bytes },
    /// The agent has exited and all output has been read.
    End(Exit),
}

/// A bounded log of the agent's output.
#[derive(Debug, Default)]
pub(crate) struct OutputLog {
    buffer: Mutex<Buffer>,
    /// Notified when output is added or ends.
    grown: Notify,
    /// Notified when the controller has read or is gone.
    read: Notify,
}

#[derive(Debug, Default)]
struct Buffer {
    segments: VecDeque<Segment>,
    /// Position after the last byte, from the agent's first byte.
    end: u64,
    bytes: usize,
    ended: Option<Exit>,
    controller: Option<u64>,
}

#[derive(Debug)]
struct Segment {
    fd: u8,
    start: u64,
    bytes: Vec<u8>,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl OutputLog {
    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output; waits while the controller is too far behind.
    pub(crate) async fn push(&self, fd: u8, bytes: &[u8]) {
        loop {
            let mut read = std::pin::pin!(self.read.notified());
            read.as_mut().enable();
            {
                let mut buffer = self.buffer();
                let behind = buffer.controller.map_or(0, |cursor| buffer.end.saturating_sub(cursor));
                if behind < AHEAD {
                    buffer.append(fd, bytes);
                    break;
                }
            }
            read.await;
        }
        self.grown.notify_waiters();
    }

    /// Ends the log with the agent's exit status.
    pub(crate) fn end(&self, exit: Exit) {
        self.buffer().ended = Some(exit);
        self.grown.notify_waiters();
    }

    /// Returns the next piece after `cursor` and advances it; waits for output. A reader that has
    /// fallen behind the buffer continues with its oldest byte.
    pub(crate) async fn next(&self, cursor: &mut u64) -> Piece {
        loop {
            let mut grown = std::pin::pin!(self.grown.notified());
            grown.as_mut().enable();
            if let Some(piece) = self.try_next(cursor) {
                return piece;
            }
            grown.await;
        }
    }

    /// As [`OutputLog::next`], but returns `None` instead of waiting.
    pub(crate) fn try_next(&self, cursor: &mut u64) -> Option<Piece> {
        let buffer = self.buffer();
        let found = buffer.segments.partition_point(|segment| segment.end() <= *cursor);
        let Some(segment) = buffer.segments.get(found) else { return buffer.ended.map(Piece::End) };
        let skip = usize::try_from(cursor.saturating_sub(segment.start)).unwrap_or(usize::MAX);
        let bytes = Bytes::copy_from_slice(segment.bytes.get(skip..).unwrap_or_default());
        *cursor = segment.end();
        Some(Piece::Bytes { fd: segment.fd, bytes })
    }

    /// The start for a new reader: the oldest byte, or the first line if older output is dropped
    /// (half an escape sequence would corrupt the screen).
    pub(crate) fn beginning(&self) -> u64 {
        let buffer = self.buffer();
        let Some(first) = buffer.segments.front() else { return buffer.end };
        if first.start == 0 {
            return 0;
        }
        let line_break = first.bytes.iter().position(|byte| *byte == b'\n');
        first.start + line_break.map_or(0, |at| at as u64 + 1)
    }

    /// The start of the last `lines` lines. An unfinished last line counts as one.
    pub(crate) fn last_lines(&self, lines: u64) -> u64 {
        let buffer = self.buffer();
        let mut wanted = lines;
        if wanted == 0 {
            return buffer.end;
        }
        for segment in buffer.segments.iter().rev() {
            for (at, byte) in segment.bytes.iter().enumerate().rev() {
                let position = segment.start + at as u64;
                // The newline at the end of the output starts no further line.
                if *byte == b'\n' && position + 1 != buffer.end {
                    wanted -= 1;
                    if wanted == 0 {
                        return position + 1;
                    }
                }
            }
        }
        buffer.segments.front().map_or(buffer.end, |first| first.start)
    }

    /// The current end.
    pub(crate) fn now(&self) -> u64 {
        self.buffer().end
    }

    /// Sets how far the controller has read; `None` if there is no controller.
    pub(crate) fn set_controller(&self, cursor: Option<u64>) {
        self.buffer().controller = cursor;
        self.read.notify_waiters();
    }
}

impl Buffer {
    fn append(&mut self, fd: u8, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = match self.segments.back() {
                Some(last) if last.fd == fd => SEGMENT - last.bytes.len(),
                _ => 0,
            };
            if room == 0 {
                self.segments.push_back(Segment { fd, start: self.end, bytes: Vec::new() });
                continue;
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(room));
            if let Some(last) = self.segments.back_mut() {
                last.bytes.extend_from_slice(piece);
            }
            self.end += piece.len() as u64;
            self.bytes += piece.len();
            bytes = rest;
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.bytes > SCROLLBACK || self.segments.len() > MAX_SEGMENTS {
            let Some(first) = self.segments.front_mut() else { return };
            let over = self.bytes.saturating_sub(SCROLLBACK);
            if over > 0 && over < first.bytes.len() {
                first.bytes.drain(..over);
                first.start += over as u64;
                self.bytes -= over;
            } else {
                self.bytes -= first.bytes.len();
                self.segments.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bottle_contract::session::guest::{STDERR, STDOUT};
    use proptest::prelude::*;

    use super::*;

    fn read_all(log: &OutputLog, mut cursor: u64) -> Vec<(u8, Vec<u8>)> {
        let mut all: Vec<(u8, Vec<u8>)> = Vec::new();
        while let Some(Piece::Bytes { fd, bytes }) = log.try_next(&mut cursor) {
            match all.last_mut() {
                Some((last, text)) if *last == fd => text.extend_from_slice(&bytes),
                _ => all.push((fd, bytes.to_vec())),
            }
        }
        all
    }

    #[tokio::test]
    async fn readers_get_both_streams_in_order_from_their_cursor() {
        let log = OutputLog::default();
        log.push(STDOUT, b"one").await;
        log.push(STDERR, b"two").await;
        log.push(STDERR, b"three").await;
        assert_eq!(read_all(&log, 0), [(STDOUT, b"one".to_vec()), (STDERR, b"twothree".to_vec())]);
        assert_eq!(read_all(&log, 4), [(STDERR, b"wothree".to_vec())]);
        log.end(Exit::Code(3));
        let mut cursor = log.now();
        assert_eq!(log.next(&mut cursor).await, Piece::End(Exit::Code(3)));
    }

    #[tokio::test]
    async fn drops_the_oldest_output_and_starts_a_new_reader_at_a_line() {
        let log = OutputLog::default();
        let line = [vec![b'x'; 99], vec![b'\n']].concat();
        for _ in 0..20_000 {
            log.push(STDOUT, &line).await;
        }
        assert!(log.buffer().bytes <= SCROLLBACK);
        let all = read_all(&log, log.beginning());
        let [(STDOUT, bytes)] = &all[..] else { panic!("one stream") };
        assert_eq!(bytes.len() % 100, 0);
        assert!(bytes.len() > SCROLLBACK - SEGMENT);
    }

    #[tokio::test]
    async fn bounds_the_number_of_segments() {
        let log = OutputLog::default();
        for _ in 0..100_000 {
            log.push(STDOUT, b"o").await;
            log.push(STDERR, b"e").await;
        }
        assert!(log.buffer().segments.len() <= MAX_SEGMENTS);
        assert_eq!(log.now(), 200_000);
    }

    #[tokio::test]
    async fn the_agent_waits_only_for_its_controller() {
        let log = std::sync::Arc::new(OutputLog::default());
        log.set_controller(Some(0));
        let writing = log.clone();
        let writer = tokio::spawn(async move {
            for _ in 0..64 {
                writing.push(STDOUT, &[b'x'; SEGMENT]).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!writer.is_finished());
        assert!(log.now() <= AHEAD + SEGMENT as u64);
        let mut cursor = 0;
        while cursor < 32 * SEGMENT as u64 {
            log.next(&mut cursor).await;
            log.set_controller(Some(cursor));
        }
        assert!(!writer.is_finished());
        log.set_controller(None);
        writer.await.expect("the writer continues without a controller");
        assert_eq!(log.now(), 64 * SEGMENT as u64);
    }

    proptest! {
        #[test]
        fn last_lines_agrees_with_split_inclusive(text in "[ab\n]{0,60}", lines in 0u64..8) {
            let log = OutputLog::default();
            let mut buffer = log.buffer();
            for piece in text.as_bytes().chunks(3) {
                buffer.append(STDOUT, piece);
            }
            drop(buffer);
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let skip = all.len().saturating_sub(usize::try_from(lines).expect("small"));
            let expected: String = all[skip..].concat();
            let got: Vec<u8> =
                read_all(&log, log.last_lines(lines)).into_iter().flat_map(|(_, bytes)| bytes).collect();
            prop_assert_eq!(String::from_utf8(got).expect("text"), expected);
        }
    }
}
