//! Stores the last [`SCROLLBACK`] bytes of the agent's output. Any number of readers can read the output, each at its
//! own speed.
//!
//! ```text
//!   agent ─► push ─► │ start ……… segments ……… end │ ─► next(cursor) per reader
//!                ▲                     ▲
//!                └─ waits while the controller is more than AHEAD bytes behind
//! ```
//! The *controller* is the client that controls the terminal. The agent cannot write faster than the controller reads.
//! Other readers may fall behind. If the next bytes of a reader were dropped, the reader continues with the oldest
//! buffered byte. Without a controller, the agent never waits for a reader, so the agent keeps running while no client
//! is attached. If a client is expected to attach when the agent starts, the log has a controller at position 0 from
//! the start.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bottle_protocol::session::guest::{Exit, SCROLLBACK};
use bottle_protocol::session::process::{CHARACTER_MAX, cut_character, unfinished_character};
use bytes::Bytes;
use tokio::sync::Notify;

/// The agent waits if the controller is at least this many bytes behind the agent's output.
const AHEAD: u64 = 256 * 1024;

/// The maximum size of a segment in bytes. A reader gets one segment in each step.
const SEGMENT: usize = 16 * 1024;

/// The maximum number of segments. If there are more segments, the oldest segments are dropped. Without this limit,
/// output that alternates between the two streams at every byte would need a segment for each byte.
const MAX_SEGMENTS: usize = 4096;

/// The result of one step of a reader.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Output bytes of the descriptor `fd`.
    Bytes { fd: u8, bytes: Bytes },
    /// The agent has exited and all output has been read.
    End(Exit),
}

/// A log of the agent's output with limited size.
#[derive(Debug, Default)]
pub(crate) struct OutputLog {
    buffer: Mutex<Buffer>,
    /// Notifies readers when output is added or the log ends.
    grown: Notify,
    /// Notifies writers when the controller has read or has detached.
    read: Notify,
}

#[derive(Debug, Default)]
struct Buffer {
    segments: VecDeque<Segment>,
    /// The position after the last byte, counted from the agent's first byte.
    end: u64,
    bytes: usize,
    ended: Option<Exit>,
    controller: Option<u64>,
    /// The time when the last byte was written.
    written: Option<Instant>,
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

    /// Adds output to the log. Waits while the controller is too far behind.
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

    /// Ends the log and stores the agent's exit status.
    pub(crate) fn end(&self, exit: Exit) {
        self.buffer().ended = Some(exit);
        self.grown.notify_waiters();
    }

    /// Waits until there is a complete character after `cursor`, or the log has ended.
    pub(crate) async fn grown_beyond(&self, cursor: u64) {
        loop {
            let mut grown = std::pin::pin!(self.grown.notified());
            grown.as_mut().enable();
            let has_ended = self.buffer().ended.is_some();
            if has_ended || self.end_of_characters() > cursor {
                return;
            }
            grown.await;
        }
    }

    /// Returns the position after the last complete character.
    pub(crate) fn end_of_characters(&self) -> u64 {
        let end = self.now();
        end - self.unfinished_before(end)
    }

    /// Returns the positions of the next part of the output. The part begins at `wanted`, ends at `end` at the latest, and
    /// has at most `max` bytes, but at least one character. The part begins and ends between two characters, unless
    /// `wanted` or `end` is inside a character.
    pub(crate) fn part(&self, wanted: u64, max: u32, end: u64) -> Range<u64> {
        let start = wanted.max(self.beginning_of_characters()).min(end);
        if max == 0 {
            return start..start;
        }
        let cut = start.saturating_add(u64::from(max).max(CHARACTER_MAX as u64));
        if cut >= end { start..end } else { start..cut - self.unfinished_before(cut) }
    }

    /// Returns the number of bytes before `position` of a character that is not complete at `position`.
    fn unfinished_before(&self, position: u64) -> u64 {
        let (_, before) = self.window(position.saturating_sub(CHARACTER_MAX as u64)..position);
        unfinished_character(&before) as u64
    }

    /// Returns the position of the oldest buffered character. The log drops its oldest bytes without regard to
    /// characters.
    fn beginning_of_characters(&self) -> u64 {
        let buffer = self.buffer();
        match buffer.segments.front() {
            Some(first) if first.start > 0 => first.start + cut_character(&first.bytes) as u64,
            _ => 0,
        }
    }

    /// Returns the next piece after `cursor`, and advances `cursor`. Waits if there is no further output yet. If the
    /// bytes after `cursor` were dropped, continues with the oldest buffered byte.
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

    /// Works like [`OutputLog::next`], but returns `None` instead of waiting.
    pub(crate) fn try_next(&self, cursor: &mut u64) -> Option<Piece> {
        let buffer = self.buffer();
        let found = buffer.segments.partition_point(|segment| segment.end() <= *cursor);
        let Some(segment) = buffer.segments.get(found) else { return buffer.ended.map(Piece::End) };
        let skip = usize::try_from(cursor.saturating_sub(segment.start)).unwrap_or(usize::MAX);
        let bytes = Bytes::copy_from_slice(segment.bytes.get(skip..).unwrap_or_default());
        *cursor = segment.end();
        Some(Piece::Bytes { fd: segment.fd, bytes })
    }

    /// Returns the bytes in a range of positions, without bytes that were already dropped, and the position of the
    /// first returned byte.
    pub(crate) fn window(&self, range: Range<u64>) -> (u64, Vec<u8>) {
        let buffer = self.buffer();
        let from = buffer.segments.front().map_or(buffer.end, |first| first.start).max(range.start);
        let mut bytes = Vec::new();
        let first = buffer.segments.partition_point(|segment| segment.end() <= from);
        for segment in buffer.segments.range(first..).take_while(|segment| segment.start < range.end) {
            let within =
                |position: u64| usize::try_from(position.saturating_sub(segment.start)).unwrap_or(usize::MAX);
            let end = within(range.end).min(segment.bytes.len());
            bytes.extend_from_slice(segment.bytes.get(within(from)..end).unwrap_or_default());
        }
        (from, bytes)
    }

    /// Returns the position at which a new reader begins. If no output was dropped, a new reader begins with the oldest
    /// byte. If older output was dropped, a new reader begins with the first complete line, because half of an escape
    /// sequence would corrupt the screen.
    pub(crate) fn beginning(&self) -> u64 {
        let buffer = self.buffer();
        let Some(first) = buffer.segments.front() else { return buffer.end };
        if first.start == 0 {
            return 0;
        }
        let line_break = first.bytes.iter().position(|byte| *byte == b'\n');
        first.start + line_break.map_or(0, |at| at as u64 + 1)
    }

    /// Returns the position at which the last `lines` lines begin. Text after the last newline counts as a line.
    pub(crate) fn last_lines(&self, lines: u64) -> u64 {
        let buffer = self.buffer();
        let mut wanted = lines;
        if wanted == 0 {
            return buffer.end;
        }
        for segment in buffer.segments.iter().rev() {
            for (at, byte) in segment.bytes.iter().enumerate().rev() {
                let position = segment.start + at as u64;
                // A newline at the end of the output does not begin another line.
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

    /// Returns the time since the last byte was written. Returns `None` if there is no output.
    pub(crate) fn quiet(&self) -> Option<Duration> {
        self.buffer().written.map(|written| written.elapsed())
    }

    /// Returns the position after the last byte that was written so far.
    pub(crate) fn now(&self) -> u64 {
        self.buffer().end
    }

    /// Sets the position up to which the controller has read. `None` means that there is no controller.
    pub(crate) fn set_controller(&self, cursor: Option<u64>) {
        self.buffer().controller = cursor;
        self.read.notify_waiters();
    }
}

impl Buffer {
    fn append(&mut self, fd: u8, mut bytes: &[u8]) {
        if !bytes.is_empty() {
            self.written = Some(Instant::now());
        }
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

    use bottle_protocol::session::guest::{STDERR, STDOUT};
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

    /// Reads all parts from the position `wanted` on.
    fn read_parts(log: &OutputLog, mut wanted: u64, lengths: &[u32]) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        for max in lengths.iter().cycle() {
            let part = log.part(wanted, *max, log.now());
            if part.is_empty() {
                break;
            }
            let (from, bytes) = log.window(part.clone());
            assert!(from == part.start && bytes.len() as u64 == part.end - part.start);
            assert!(bytes.len() <= CHARACTER_MAX.max(*max as usize));
            parts.push(bytes);
            wanted = part.end;
        }
        parts
    }

    #[tokio::test]
    async fn dropped_output_does_not_leave_a_part_of_a_character() {
        for shift in 0..4 {
            let log = OutputLog::default();
            log.push(STDOUT, &b"abc"[..shift]).await;
            for _ in 0..SCROLLBACK / 3 + 1000 {
                log.push(STDOUT, "€".as_bytes()).await;
            }
            let parts = read_parts(&log, 0, &[100, 7]);
            assert!(parts.iter().all(|part| std::str::from_utf8(part).is_ok()), "shifted by {shift}");
            assert!(parts.concat().len() > SCROLLBACK - SEGMENT);
        }
    }

    proptest! {
        #[test]
        fn parts_join_to_the_text_of_any_bytes(
            bytes in prop::collection::vec(
                prop_oneof![
                    any::<char>().prop_map(|c| c.to_string().into_bytes()),
                    prop::collection::vec(any::<u8>(), 1..3),
                    Just("é".as_bytes()[..1].to_vec()),
                    Just("€".as_bytes()[..2].to_vec()),
                ],
                0..40,
            ),
            lengths in prop::collection::vec(1_u32..20, 1..6),
        ) {
            let (bytes, log) = (bytes.concat(), OutputLog::default());
            log.buffer().append(STDOUT, &bytes);
            let parts = read_parts(&log, 0, &lengths);
            let text: String = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
            prop_assert_eq!(parts.concat(), bytes);
        }

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
