//! The agent's output: the last [`SCROLLBACK`] bytes, read by any number of readers at their own pace.
//!
//! ```text
//!   agent ─► push ─► │ start ……… segments ……… end │ ─► next(cursor) per reader
//!                ▲                     ▲
//!                └─ waits while ── leader's cursor more than LEAD behind
//! ```
//! The *leader* is the client that holds the terminal: the agent goes no faster than it reads. Everybody
//! else may fall behind and then goes on with what is still kept. Without a leader nothing waits: a
//! detached agent must not stop because nobody looks. An agent whose first client is on its way has a
//! leader that has read nothing, until that client sits down.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bottle_contract::session::guest::{Exit, SCROLLBACK};
use bytes::Bytes;
use tokio::sync::Notify;

/// How far the agent may be ahead of the leader, in bytes.
const LEAD: u64 = 256 * 1024;

/// Bytes of one segment: what a reader gets at once.
const SEGMENT: usize = 16 * 1024;

/// The most segments kept. Output that changes between the two streams at every byte would otherwise
/// need a segment for each.
const MAX_SEGMENTS: usize = 4096;

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes of a descriptor.
    Bytes { fd: u8, bytes: Bytes },
    /// The agent ended and all was read.
    End(Exit),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct OutputLog {
    kept: Mutex<Kept>,
    /// Something was added, or it ended.
    grown: Notify,
    /// The leader read on, or there is none any more.
    read: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    segments: VecDeque<Segment>,
    /// Counted from the agent's first byte.
    end: u64,
    bytes: usize,
    ended: Option<Exit>,
    leader: Option<u64>,
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
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output, waiting for the leader.
    pub(crate) async fn push(&self, fd: u8, bytes: &[u8]) {
        loop {
            let mut read = std::pin::pin!(self.read.notified());
            read.as_mut().enable();
            {
                let mut kept = self.kept();
                let behind = kept.leader.map_or(0, |cursor| kept.end.saturating_sub(cursor));
                if behind < LEAD {
                    kept.append(fd, bytes);
                    break;
                }
            }
            read.await;
        }
        self.grown.notify_waiters();
    }

    /// Nothing more will come.
    pub(crate) fn end(&self, exit: Exit) {
        self.kept().ended = Some(exit);
        self.grown.notify_waiters();
    }

    /// The next piece behind `cursor`, which is moved; waits for one. A reader that fell out of what is
    /// kept goes on with the oldest of it.
    pub(crate) async fn next(&self, cursor: &mut u64) -> Piece {
        loop {
            let mut grown = std::pin::pin!(self.grown.notified());
            grown.as_mut().enable();
            if let Some(piece) = self.ready(cursor) {
                return piece;
            }
            grown.await;
        }
    }

    /// As [`OutputLog::next`], `None` instead of waiting.
    pub(crate) fn ready(&self, cursor: &mut u64) -> Option<Piece> {
        let kept = self.kept();
        let found = kept.segments.partition_point(|segment| segment.end() <= *cursor);
        let Some(segment) = kept.segments.get(found) else { return kept.ended.map(Piece::End) };
        let skip = usize::try_from(cursor.saturating_sub(segment.start)).unwrap_or(usize::MAX);
        let bytes = Bytes::copy_from_slice(segment.bytes.get(skip..).unwrap_or_default());
        *cursor = segment.end();
        Some(Piece::Bytes { fd: segment.fd, bytes })
    }

    /// Where somebody starts who joins now: at the oldest kept byte, or behind the first line break if
    /// something before it is gone already (half an escape sequence would spoil the screen).
    pub(crate) fn beginning(&self) -> u64 {
        let kept = self.kept();
        let Some(first) = kept.segments.front() else { return kept.end };
        if first.start == 0 {
            return 0;
        }
        let line_break = first.bytes.iter().position(|byte| *byte == b'\n');
        first.start + line_break.map_or(0, |at| at as u64 + 1)
    }

    /// Where the last `lines` lines start. An unfinished last line counts as one.
    pub(crate) fn last_lines(&self, lines: u64) -> u64 {
        let kept = self.kept();
        let mut wanted = lines;
        if wanted == 0 {
            return kept.end;
        }
        for segment in kept.segments.iter().rev() {
            for (at, byte) in segment.bytes.iter().enumerate().rev() {
                let position = segment.start + at as u64;
                // The break that ends the last line does not start another.
                if *byte == b'\n' && position + 1 != kept.end {
                    wanted -= 1;
                    if wanted == 0 {
                        return position + 1;
                    }
                }
            }
        }
        kept.segments.front().map_or(kept.end, |first| first.start)
    }

    /// Where the end is now.
    pub(crate) fn now(&self) -> u64 {
        self.kept().end
    }

    /// Says how far the leader has read; `None` when there is none.
    pub(crate) fn lead(&self, cursor: Option<u64>) {
        self.kept().leader = cursor;
        self.read.notify_waiters();
    }
}

impl Kept {
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
        while let Some(Piece::Bytes { fd, bytes }) = log.ready(&mut cursor) {
            match all.last_mut() {
                Some((last, kept)) if *last == fd => kept.extend_from_slice(&bytes),
                _ => all.push((fd, bytes.to_vec())),
            }
        }
        all
    }

    #[tokio::test]
    async fn readers_see_both_streams_in_order_from_where_they_are() {
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
    async fn the_oldest_goes_first_and_a_new_reader_starts_at_a_line() {
        let log = OutputLog::default();
        let line = [vec![b'x'; 99], vec![b'\n']].concat();
        for _ in 0..20_000 {
            log.push(STDOUT, &line).await;
        }
        assert!(log.kept().bytes <= SCROLLBACK);
        let all = read_all(&log, log.beginning());
        let [(STDOUT, bytes)] = &all[..] else { panic!("one stream") };
        assert_eq!(bytes.len() % 100, 0);
        assert!(bytes.len() > SCROLLBACK - SEGMENT);
    }

    #[tokio::test]
    async fn many_short_changes_of_stream_are_bounded_too() {
        let log = OutputLog::default();
        for _ in 0..100_000 {
            log.push(STDOUT, b"o").await;
            log.push(STDERR, b"e").await;
        }
        assert!(log.kept().segments.len() <= MAX_SEGMENTS);
        assert_eq!(log.now(), 200_000);
    }

    #[tokio::test]
    async fn the_agent_waits_for_its_leader_and_for_nobody_else() {
        let log = std::sync::Arc::new(OutputLog::default());
        log.lead(Some(0));
        let writing = log.clone();
        let writer = tokio::spawn(async move {
            for _ in 0..64 {
                writing.push(STDOUT, &[b'x'; SEGMENT]).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!writer.is_finished());
        assert!(log.now() <= LEAD + SEGMENT as u64);
        let mut cursor = 0;
        while cursor < 32 * SEGMENT as u64 {
            log.next(&mut cursor).await;
            log.lead(Some(cursor));
        }
        assert!(!writer.is_finished());
        log.lead(None);
        writer.await.expect("the writer goes on without a leader");
        assert_eq!(log.now(), 64 * SEGMENT as u64);
    }

    proptest! {
        #[test]
        fn the_last_lines_are_those_that_str_lines_says(text in "[ab\n]{0,60}", lines in 0u64..8) {
            let log = OutputLog::default();
            let mut kept = log.kept();
            for piece in text.as_bytes().chunks(3) {
                kept.append(STDOUT, piece);
            }
            drop(kept);
            let all: Vec<&str> = text.split_inclusive('\n').collect();
            let skip = all.len().saturating_sub(usize::try_from(lines).expect("small"));
            let expected: String = all[skip..].concat();
            let got: Vec<u8> =
                read_all(&log, log.last_lines(lines)).into_iter().flat_map(|(_, bytes)| bytes).collect();
            prop_assert_eq!(String::from_utf8(got).expect("text"), expected);
        }
    }
}
