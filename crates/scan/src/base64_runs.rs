//! Finds and decodes base64 within a text, one level deep.
//!
//! The base64 may use the standard or the URL-safe alphabet, with or without padding. It may span several
//! lines, and any text may precede and follow it. The search advances by the length of the shortest run, so
//! text without base64 costs almost nothing.

use std::ops::Range;

use crate::text_encodings::{BASE64, NONE};

/// The minimum length of a base64 run that is decoded, in letters. The base64 form of a 16-byte token has
/// this length.
const MIN_RUN: usize = 24;
/// A run of at least this many letters is decoded from its start even if the result is not text.
const ALWAYS_DECODED: usize = 512;
/// A run is decoded if at least this many bytes at its start decode to text.
const MIN_TEXT_AT_START: usize = 12;
/// A run is decoded if at least this many consecutive bytes after its start decode to text.
const MIN_TEXT: usize = 15;
/// The maximum length of a line break within a run: an escaped `\r\n`.
const MAX_LINE_BREAK: usize = 4;

fn is_letter(byte: u8) -> bool {
    BASE64[byte as usize] != NONE
}

/// The possible positions, relative to a run's first letter, at which a group of four letters begins. Each
/// bit stands for one position from 0 to 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Starts(u8);

impl Starts {
    fn each(self) -> impl Iterator<Item = usize> {
        (0..4).filter(move |start| self.0 & (1 << start) != 0)
    }

    /// Moves the positions so that they are relative to the letter that follows the first `letters` letters.
    fn after(self, letters: usize) -> Self {
        let moved = self.each().map(|start| 1 << ((start + 4 - letters % 4) % 4));
        Self(moved.fold(0, |all, bit: u8| all | bit))
    }
}

/// A run of base64 letters, possibly on several lines.
#[derive(Debug)]
pub(crate) struct Run {
    /// The lines of the run, without line breaks.
    lines: Vec<Range<usize>>,
    starts: Starts,
}

impl Run {
    /// Decodes the run at each possible alignment. Usually only one alignment is possible.
    pub(crate) fn decoded<'t>(&'t self, text: &'t [u8]) -> impl Iterator<Item = Decoded<'t>> {
        self.starts.each().map(move |skip| Decoded { run: self, skip, bytes: self.decode(text, skip) })
    }

    fn decode(&self, text: &[u8], skip: usize) -> Vec<u8> {
        let letters = self.lines.iter().flat_map(|line| &text[line.clone()]).skip(skip);
        let mut bytes = Vec::with_capacity(self.lines.iter().map(Range::len).sum::<usize>() / 4 * 3 + 3);
        let (mut group, mut filled) = (0_u32, 0_u32);
        for letter in letters {
            group = group << 6 | u32::from(BASE64[*letter as usize]);
            filled += 1;
            if filled == 4 {
                bytes.extend_from_slice(&group.to_be_bytes()[1..]);
                (group, filled) = (0, 0);
            }
        }
        // Two remaining letters encode one byte, three encode two bytes.
        if filled > 1 {
            let whole = (group << (6 * (4 - filled))).to_be_bytes();
            bytes.extend_from_slice(&whole[1..filled as usize]);
        }
        bytes
    }

    /// The position in the text of the letter with the index `letter`. If the index is the number of letters,
    /// the end of the run.
    fn place(&self, mut letter: usize) -> usize {
        for line in &self.lines {
            if letter < line.len() {
                return line.start + letter;
            }
            letter -= line.len();
        }
        self.end()
    }

    pub(crate) fn end(&self) -> usize {
        self.lines.last().map_or(0, |line| line.end)
    }

    /// The possible alignments at `place` of a run that began before it; `None` if the run ends before
    /// `place`.
    pub(crate) fn at(&self, place: usize) -> Option<Starts> {
        if place >= self.end() || self.lines.first().is_none_or(|line| place <= line.start) {
            return None;
        }
        let before = self.lines.iter().map(|line| line.end.min(place).saturating_sub(line.start)).sum();
        Some(self.starts.after(before))
    }

    /// Finds the alignments at which the start or any later part of the run decodes to text. Later parts
    /// count because letters that are not part of the encoding may precede it. A long run is always decoded
    /// at the alignment of its first letter.
    fn find_alignments(&mut self, text: &[u8]) {
        let count: usize = self.lines.iter().map(Range::len).sum();
        let (mut starts, mut group, mut number) = (0_u8, 0_u32, 0_usize);
        // For each alignment: the number of consecutive groups that are text, and whether all groups so far
        // are text.
        let (mut rows, mut all) = ([0_usize; 4], [true; 4]);
        for letter in self.lines.iter().flat_map(|line| &text[line.clone()]) {
            group = group << 6 | u32::from(BASE64[*letter as usize]);
            number += 1;
            if number < 4 {
                continue;
            }
            let start = number % 4;
            // Tests the highest bit of each of the three bytes.
            if group & 0x0080_8080 == 0 {
                rows[start] += 1;
                if rows[start] * 3 >= if all[start] { MIN_TEXT_AT_START } else { MIN_TEXT } {
                    starts |= 1 << start;
                }
            } else {
                (rows[start], all[start]) = (0, false);
            }
        }
        self.starts = Starts(if count >= ALWAYS_DECODED { starts | 1 } else { starts });
    }
}

/// A base64 run decoded at one alignment.
pub(crate) struct Decoded<'r> {
    run: &'r Run,
    skip: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Decoded<'_> {
    /// Maps a range of the decoded bytes to the range of their base64 letters in the text.
    pub(crate) fn source(&self, range: &Range<usize>) -> Range<usize> {
        let first = self.skip + range.start / 3 * 4;
        let last = self.skip + range.end.div_ceil(3) * 4 - 1;
        let end = self.run.end();
        let place = self.run.place(last);
        self.run.place(first)..if place < end { place + 1 } else { end }
    }
}

/// The base64 runs of `text`. If `carried` is set, the start of `text` continues a run from the previous
/// window.
pub(crate) fn runs(text: &[u8], carried: Option<Starts>) -> impl Iterator<Item = Run> {
    let mut from = 0;
    let mut carried = carried;
    std::iter::from_fn(move || {
        loop {
            if let Some(starts) = carried.take()
                && let Some(start) = text.iter().take(MAX_LINE_BREAK + 1).position(|byte| is_letter(*byte))
            {
                let mut run = extended(text, start..letters_end(text, start));
                from = run.end();
                run.find_alignments(text);
                run.starts = Starts(run.starts.0 | starts.0);
                return Some(run);
            }
            let mut run = extended(text, next(text, from)?);
            from = run.end();
            run.find_alignments(text);
            if run.starts != Starts::default() {
                return Some(run);
            }
        }
    })
}

/// The first run at or after `from` that is long enough, up to the end of its line.
fn next(text: &[u8], mut from: usize) -> Option<Range<usize>> {
    loop {
        let probe = from + MIN_RUN - 1;
        if !is_letter(*text.get(probe)?) {
            from = probe + 1;
            continue;
        }
        let before = text[from..probe].iter().rposition(|byte| !is_letter(*byte));
        match before {
            Some(before) => from += before + 1,
            None => return Some(from..letters_end(text, probe)),
        }
    }
}

fn letters_end(text: &[u8], from: usize) -> usize {
    text[from..].iter().position(|byte| !is_letter(*byte)).map_or(text.len(), |length| from + length)
}

/// Extends a run by the lines that follow its first line. Every line except the last must have at least
/// [`MIN_RUN`] letters.
fn extended(text: &[u8], first: Range<usize>) -> Run {
    let mut lines = vec![first];
    while let Some(line) = lines.last().filter(|line| line.len() >= MIN_RUN) {
        let next = line.end + break_length(&text[line.end..]);
        let end = letters_end(text, next);
        if next == line.end || next == end {
            break;
        }
        lines.push(next..end);
    }
    Run { lines, starts: Starts::default() }
}

/// The length of the line break at the start of `text`; the line break may be escaped.
fn break_length(text: &[u8]) -> usize {
    let breaks: [&[u8]; 4] = [b"\r\n", b"\n", b"\\r\\n", b"\\n"];
    breaks.iter().find(|this| text.starts_with(this)).map_or(0, |this| this.len())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Vec<Vec<u8>> {
        runs(text, None)
            .flat_map(|run| run.decoded(text).map(|decoded| decoded.bytes).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn plain_text_has_no_run() {
        for text in
            ["", "a", "some words of a text, none of them long", "let value = table.get(&key).map(|x| x);"]
        {
            assert_eq!(read(text.as_bytes()), [b""; 0], "{text}");
        }
        // Long names and paths consist of base64 letters, but do not decode to text.
        assert_eq!(read(b"src/module_name/another_directory/some_file_name"), [b""; 0]);
    }

    #[test]
    fn a_run_continues_in_the_next_window() {
        let plain = "the quick brown fox jumps over the lazy dog, again and again and again";
        let encoded = STANDARD_NO_PAD.encode(plain);
        let whole = runs(encoded.as_bytes(), None).next().expect("a run");
        assert_eq!(whole.at(0), None);
        for cut in 1..encoded.len() {
            let rest = &encoded.as_bytes()[cut..];
            let run = runs(rest, Some(whole.at(cut).expect("goes on"))).next().expect("a run");
            // The group of four letters that contains the cut cannot be decoded.
            let left = &plain[(cut.div_ceil(4) * 3).min(plain.len())..];
            assert!(run.decoded(rest).any(|decoded| decoded.bytes == left.as_bytes()), "{cut}");
        }
        assert_eq!(whole.at(encoded.len()), None);
    }

    #[test]
    fn preceding_letters_do_not_hide_encoded_text() {
        let plain = "a text of some length, and nothing else";
        for length in 0..70 {
            // These letters do not decode to text at any alignment.
            let stuck: String = "zQxWvUkJ9/8+".chars().cycle().take(length).collect();
            let encoded = format!("\"{stuck}{}\"", STANDARD.encode(plain));
            let texts = read(encoded.as_bytes());
            let found = texts.iter().any(|text| memchr::memmem::find(text, plain.as_bytes()).is_some());
            assert!(found, "{length}: {encoded}");
        }
    }

    proptest! {
        #[test]
        fn decodes_any_encoded_text(
            plain in "[ -~]{20,300}",
            (before, after) in ("[ \"':=,]{1,8}", "[ \"',}]{0,8}"),
            width in 24_usize..80,
            variant in 0..4,
        ) {
            let encoded = match variant {
                0 => STANDARD.encode(&plain),
                1 => STANDARD_NO_PAD.encode(&plain),
                2 => URL_SAFE.encode(&plain),
                _ => STANDARD.encode(&plain).as_bytes().chunks(width).map(|line| String::from_utf8_lossy(line).into_owned())
                    .collect::<Vec<_>>().join("\\r\\n"),
            };
            let text = format!("{before}{encoded}{after}");
            let text = text.as_bytes();
            let run = runs(text, None).next().expect("a run");
            let found = run.decoded(text).find(|decoded| decoded.bytes == plain.as_bytes()).expect("read");
            let place = found.source(&(3..10));
            prop_assert!(place.start >= before.len() + 4 && place.end <= before.len() + encoded.len());
            prop_assert_eq!(found.source(&(0..plain.len())).start, before.len());
        }

        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..900), words in "[A-Za-z\\\\rn\r\n=]{0,900}") {
            for text in [text.as_slice(), words.as_bytes()] {
                for carried in [None, Some(Starts(0b101))] {
                    for run in runs(text, carried) {
                        for decoded in run.decoded(text) {
                            if !decoded.bytes.is_empty() {
                                let all = decoded.source(&(0..decoded.bytes.len()));
                                prop_assert!(all.start < all.end && all.end <= text.len());
                            }
                        }
                    }
                }
            }
        }
    }
}
