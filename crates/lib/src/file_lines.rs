//! Cuts a range of lines out of a file that arrives in parts.

use super::report::FileLines;

/// A range of lines of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineRange {
    /// The number of the first line. The first line of a file has the number 1.
    pub first: u64,
    /// The maximum number of lines.
    pub count: u64,
}

/// The maximum size in bytes of the lines that one request returns.
const TEXT_MAX: usize = 256 << 10;

/// Cuts a [`LineRange`] out of a file.
#[derive(Debug)]
pub(super) struct LineCutter {
    range: LineRange,
    /// The number of the line that the next byte belongs to.
    line: u64,
    text: Vec<u8>,
    /// The length of the complete lines in `text`.
    complete: usize,
    /// Whether a line was longer than [`TEXT_MAX`].
    is_cut: bool,
}

impl LineCutter {
    pub(super) fn new(range: LineRange) -> Self {
        Self { range, line: 1, text: Vec::new(), complete: 0, is_cut: false }
    }

    /// Whether the range needs more of the file.
    pub(super) fn wants_more(&self) -> bool {
        !self.is_cut && self.line < self.range.first.saturating_add(self.range.count)
    }

    /// Reads the next part of the file.
    pub(super) fn push(&mut self, part: &[u8]) {
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            if !self.wants_more() {
                return;
            }
            if self.line >= self.range.first {
                self.keep(piece);
            }
            if piece.ends_with(b"\n") && !self.is_cut {
                self.line += 1;
                self.complete = self.text.len();
            }
        }
    }

    /// Keeps a piece of a line. If the text would become too long, removes the incomplete line. If no line is complete,
    /// keeps the beginning of the line, because a reader could otherwise never get past it.
    fn keep(&mut self, piece: &[u8]) {
        let room = TEXT_MAX - self.text.len();
        self.text.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() > room {
            self.is_cut = true;
            match self.complete {
                0 => self.line += 1,
                complete => self.text.truncate(complete),
            }
        }
    }

    /// Returns the lines. `size` is the size of the file, and `at_end` is whether its last part was read.
    pub(super) fn finish(self, size: u64, at_end: bool) -> FileLines {
        let goes_on = self.is_cut || !at_end || !self.wants_more();
        FileLines {
            truncated: self.is_cut && self.complete == 0,
            text: String::from_utf8_lossy(&self.text).into_owned(),
            line: self.range.first,
            next_line: goes_on.then_some(self.line),
            size_bytes: size,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(text: &[u8], part: usize, first: u64, count: u64) -> FileLines {
        let mut cutter = LineCutter::new(LineRange { first, count });
        let mut read = 0;
        for part in text.chunks(part) {
            if !cutter.wants_more() {
                break;
            }
            cutter.push(part);
            read += part.len();
        }
        cutter.finish(text.len() as u64, read == text.len())
    }

    #[test]
    fn returns_the_lines_and_the_number_of_the_next() {
        let text = b"one\ntwo\nthree";
        for (first, count, expected, next) in [
            (1, 1, "one\n", Some(2)),
            (1, 2, "one\ntwo\n", Some(3)),
            (2, 9, "two\nthree", None),
            (3, 1, "three", None),
            (4, 1, "", None),
            (1, u64::MAX, "one\ntwo\nthree", None),
        ] {
            for part in 1..=text.len() {
                let lines = cut(text, part, first, count);
                assert_eq!(
                    (lines.text.as_str(), lines.next_line),
                    (expected, next),
                    "{first} {count} {part}"
                );
                assert!(!lines.truncated);
            }
        }
    }

    #[test]
    fn a_text_that_is_too_long_ends_with_a_complete_line_or_is_truncated() {
        let long = "x".repeat(TEXT_MAX + 1);
        let lines = cut(format!("{long}\nend\n").as_bytes(), 4096, 1, 9);
        assert_eq!((lines.text.len(), lines.truncated, lines.next_line), (TEXT_MAX, true, Some(2)));
        let lines = cut(format!("one\n{long}\nend\n").as_bytes(), 4096, 1, 9);
        assert_eq!((lines.text.as_str(), lines.truncated, lines.next_line), ("one\n", false, Some(2)));
    }

    proptest! {
        /// Reading with `next_line` returns each line exactly once.
        #[test]
        fn the_parts_together_are_the_file(
            text in prop::collection::vec(prop::sample::select(b"ab\n".to_vec()), 0..60),
            part in 1usize..20,
            count in 1u64..5,
        ) {
            let (mut whole, mut next) = (String::new(), Some(1));
            while let Some(first) = next {
                let lines = cut(&text, part, first, count);
                whole += &lines.text;
                next = lines.next_line;
            }
            prop_assert_eq!(whole.as_bytes(), &text[..]);
        }
    }
}
