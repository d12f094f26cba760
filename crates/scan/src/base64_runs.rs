//! Finds and decodes base64 within a text, one level deep. In this module, a letter is any character of a base64
//! alphabet, and a group is a sequence of four letters.
//!
//! The base64 may use the standard or the URL-safe alphabet, with or without padding. The base64 may span several
//! lines. Any text may precede and follow the base64. The search advances by the length of the shortest run, so text
//! without base64 costs almost nothing.

use std::ops::Range;

use crate::digits::{BASE64, NONE, base64_values, decode, is_hexadecimal};

/// The minimum length of a base64 run that is decoded, in letters. The base64 form of a 16-byte token has
/// this length.
const MIN_RUN: usize = 24;
/// A run of at least this many letters is decoded from its start even if the result is not text.
const ALWAYS_DECODED: usize = 512;
/// The minimum number of decoded bytes that must be text, counted from the start of a run. A run with fewer is not
/// searched, unless [`MIN_TEXT`] applies.
const MIN_TEXT_AT_START: usize = 12;
/// The minimum number of consecutive decoded bytes that must be text, if they are not at the start of the run.
const MIN_TEXT: usize = 15;
/// The maximum length of a line break within a run: an escaped `\r\n`.
const MAX_LINE_BREAK: usize = 4;

fn is_letter(byte: u8) -> bool {
    BASE64[byte as usize] != NONE
}

/// A set of possible alignments of a run. An alignment is the number of letters before the first complete group, from 0
/// to 3. Bit `n` of the set represents alignment `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Starts(u8);

impl Starts {
    fn each(self) -> impl Iterator<Item = usize> {
        (0..4).filter(move |start| self.0 & (1 << start) != 0)
    }

    /// Returns the alignments of the rest of a run after its first `letters` letters.
    fn after(self, letters: usize) -> Self {
        let moved = self.each().map(|start| 1 << ((start + 4 - letters % 4) % 4));
        Self(moved.fold(0, |all, bit: u8| all | bit))
    }
}

/// A run of base64 letters, possibly on several lines.
#[derive(Debug)]
pub(crate) struct Run {
    /// The ranges of the run's lines in the text, without line breaks.
    lines: Vec<Range<usize>>,
    /// The values of the letters of all lines.
    values: Vec<u8>,
    /// The alignments at which the whole run is decoded.
    starts: Starts,
    /// The parts of a long run that decode to text at other alignments, as ranges of letter indices. Each range begins
    /// at the start of a group.
    texts: Vec<Range<usize>>,
}

impl Run {
    /// Decodes the run at each possible alignment. Usually only one alignment is possible.
    pub(crate) fn decoded(&self) -> impl Iterator<Item = Decoded<'_>> {
        let whole = self.starts.each().map(|skip| skip..self.length());
        whole.chain(self.texts.iter().cloned()).map(|letters| {
            let bytes = decode::<6>(self.values.get(letters.clone()).unwrap_or_default());
            Decoded { run: self, skip: letters.start, bytes }
        })
    }

    /// Returns the number of letters in the run.
    fn length(&self) -> usize {
        self.values.len()
    }

    /// Returns the position in the text of the letter with the index `letter`. Returns the end of the run if the index
    /// is not less than the number of letters.
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

    /// Returns the possible alignments of the rest of the run from `place` on. Returns `None` if the run does not begin
    /// before `place` and end after it.
    pub(crate) fn at(&self, place: usize) -> Option<Starts> {
        if place >= self.end() || self.lines.first().is_none_or(|line| place <= line.start) {
            return None;
        }
        let before = self.lines.iter().map(|line| line.end.min(place).saturating_sub(line.start)).sum();
        Some(self.starts.after(before))
    }

    /// Finds the alignments at which the start or any later part of the run decodes to text. Later parts count because
    /// other letters may precede the encoded data. A long run is always decoded completely at the alignment of its
    /// first letter. At other alignments, only the parts of a long run that decode to text are decoded, because in
    /// megabytes of an image, some groups decode to text by chance at every alignment.
    fn find_alignments(&mut self) {
        let count = self.length();
        let is_long = count >= ALWAYS_DECODED;
        let mut starts = u8::from(is_long);
        // For each letter, the positions in a group at which the letter prevents the group from being text.
        let spoils: Vec<u8> = self.values.iter().map(|value| spoils(*value)).collect();
        // For each letter, a number that is not 0 if the group that begins with the letter does not decode to text.
        let (second, third) = (spoils.get(1..).unwrap_or_default(), spoils.get(2..).unwrap_or_default());
        let groups = spoils[..count.saturating_sub(3)].iter().zip(second).zip(third);
        let groups: Vec<u8> =
            groups.map(|((first, second), third)| first & 1 | second & 2 | third & 4).collect();
        let is_text = |groups: &[u8]| groups.iter().step_by(4).all(|group| *group == 0);
        for (start, row) in groups.windows(4 * (MIN_TEXT_AT_START / 3 - 1) + 1).take(4).enumerate() {
            starts |= u8::from(is_text(row)) << start;
        }
        each_text_row(&groups, |at| {
            if !is_long {
                starts |= 1 << (at % 4);
            } else if starts & 1 << (at % 4) == 0 {
                self.add_text(at, count);
            }
        });
        self.starts = Starts(starts);
    }

    /// Adds the part of the run around the text row at the letter index `at` to `texts`. `count` is the number of
    /// letters in the run.
    fn add_text(&mut self, at: usize, count: usize) {
        let start = if at >= MARGIN { at - MARGIN } else { at % 4 };
        let end = count.min(at + ROW + 4 + MARGIN);
        // Ranges of different alignments may alternate, so the last four ranges are searched for one with this
        // alignment.
        let mut last = self.texts.iter_mut().rev().take(4);
        match last.find(|last| last.start % 4 == at % 4 && last.end >= start) {
            Some(last) => last.end = end,
            None => self.texts.push(start..end),
        }
    }
}

/// The number of letters from the first letter of a text row to the first letter of the row's last group.
const ROW: usize = 4 * (MIN_TEXT / 3 - 1);

/// The number of letters before and after a text row that are decoded with the row.
const MARGIN: usize = 256;

/// Calls `found` with the index of each letter at which a text row begins. A text row is a sequence of five adjacent
/// groups that all decode to text.
fn each_text_row(groups: &[u8], mut found: impl FnMut(usize)) {
    const BLOCK: usize = 64;
    let mut from = 0;
    // Few blocks contain a text row. For all other blocks, the `fold`, which has no branches, suffices.
    while from + ROW < groups.len() {
        let last = (groups.len() - ROW).min(from + BLOCK);
        let later = |place: usize| &groups[from + 4 * place..last + 4 * place];
        let rows = later(0).iter().zip(later(1)).zip(later(2)).zip(later(3)).zip(later(4));
        let is_row = rows.map(|((((a, b), c), d), e)| u8::from(a | b | c | d | e == 0));
        if is_row.clone().fold(0, |any, is_row| any | is_row) != 0 {
            is_row.enumerate().filter(|(_, is_row)| *is_row != 0).for_each(|(at, _)| found(from + at));
        }
        from = last;
    }
}

const _: () = assert!(MIN_TEXT == 15, "each_text_row compares five groups");

/// Returns the positions in a group at which a letter with this value sets the highest bit of a decoded byte. The result
/// is a bit set: 1 for the first position, 2 for the second and 4 for the third.
fn spoils(value: u8) -> u8 {
    value >> 5 & 1 | value >> 2 & 2 | value << 1 & 4
}

/// A base64 run, or a part of a long run, that was decoded at one alignment.
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

/// Returns the base64 runs of `text`. If `carried` is set, the start of `text` continues a run from the previous window
/// at these alignments.
pub(crate) fn runs(text: &[u8], carried: Option<Starts>) -> impl Iterator<Item = Run> {
    let mut from = 0;
    let mut carried = carried;
    std::iter::from_fn(move || {
        loop {
            if let Some(starts) = carried.take()
                && let Some(start) = text.iter().take(MAX_LINE_BREAK + 1).position(|byte| is_letter(*byte))
            {
                let mut run = extended(text, start);
                from = run.end();
                run.find_alignments();
                run.starts = Starts(run.starts.0 | starts.0);
                return Some(run);
            }
            let mut run = extended(text, next(text, from)?);
            from = run.end();
            if run.lines.iter().all(|line| is_hexadecimal(&text[line.clone()])) {
                continue;
            }
            run.find_alignments();
            if run.starts != Starts::default() {
                return Some(run);
            }
        }
    })
}

/// Returns the start of the first run of at least [`MIN_RUN`] letters that begins at or after `from`.
fn next(text: &[u8], mut from: usize) -> Option<usize> {
    loop {
        let probe = from + MIN_RUN - 1;
        if !is_letter(*text.get(probe)?) {
            from = probe + 1;
            continue;
        }
        let before = text[from..probe].iter().rposition(|byte| !is_letter(*byte));
        match before {
            Some(before) => from += before + 1,
            None => return Some(from),
        }
    }
}

/// Adds the values of the letters from `from` on to `values`. Returns the end of the letters.
fn read_letters(text: &[u8], from: usize, values: &mut Vec<u8>) -> usize {
    let mut rest = &text[from..];
    while let Some((chunk, after)) = rest.split_first_chunk()
        && let Some(chunk) = base64_values(chunk)
    {
        if values.len() == ALWAYS_DECODED {
            // Most long runs go on to the end of the text.
            values.reserve(after.len());
        }
        values.extend(chunk);
        rest = after;
    }
    let letters = rest.iter().map(|byte| BASE64[usize::from(*byte)]).take_while(|value| *value != NONE);
    let before = values.len();
    values.extend(letters);
    text.len() - rest.len() + values.len() - before
}

/// Reads the run whose first line begins at `start`. Every line except the last must have at least [`MIN_RUN`] letters.
fn extended(text: &[u8], start: usize) -> Run {
    let (mut values, mut lines) = (Vec::new(), Vec::new());
    lines.push(start..read_letters(text, start, &mut values));
    while let Some(line) = lines.last().filter(|line| line.len() >= MIN_RUN) {
        let next = line.end + break_length(&text[line.end..]);
        if next == line.end {
            break;
        }
        let end = read_letters(text, next, &mut values);
        if next == end {
            break;
        }
        lines.push(next..end);
    }
    Run { lines, values, starts: Starts::default(), texts: Vec::new() }
}

/// Returns the length of the line break at the start of `text`, or 0 if there is none. The line break may be escaped.
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
            .flat_map(|run| run.decoded().map(|decoded| decoded.bytes).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn plain_text_has_no_run() {
        for text in
            ["", "a", "some words of a text, none of them long", "let value = table.get(&key).map(|x| x);"]
        {
            assert_eq!(read(text.as_bytes()), [b""; 0], "{text}");
        }
        // Long names and paths consist of base64 letters, but they do not decode to text.
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
            assert!(run.decoded().any(|decoded| decoded.bytes == left.as_bytes()), "{cut}");
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

    #[test]
    fn a_long_run_is_decoded_whole_at_its_first_letter_and_in_parts_elsewhere() {
        let plain = "a text of some length, and nothing else";
        for skip in 1..4 {
            // These letters do not decode to text at any alignment.
            let noise = "zQxWvUkJ9/8+".repeat(400);
            let encoded = format!("{noise}{}{}{noise}", &noise[..skip], STANDARD_NO_PAD.encode(plain));
            let run = runs(encoded.as_bytes(), None).next().expect("a run");
            let decoded: Vec<_> = run.decoded().collect();
            let lengths: Vec<usize> = decoded.iter().map(|part| part.bytes.len()).collect();
            assert_eq!(lengths[0], encoded.len() * 6 / 8, "{skip}");
            assert!(lengths[1..].iter().sum::<usize>() < 1000, "{skip}: {lengths:?}");
            let found = decoded.iter().find_map(|part| {
                let at = memchr::memmem::find(&part.bytes, plain.as_bytes())?;
                Some(part.source(&(at..at + plain.len())))
            });
            let start = noise.len() + skip;
            assert_eq!(found, Some(start..start + plain.len().div_ceil(3) * 4), "{skip}");
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
            let found = run.decoded().find(|decoded| decoded.bytes == plain.as_bytes()).expect("read");
            let place = found.source(&(3..10));
            prop_assert!(place.start >= before.len() + 4 && place.end <= before.len() + encoded.len());
            prop_assert_eq!(found.source(&(0..plain.len())).start, before.len());
        }

        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..900), words in "[A-Za-z\\\\rn\r\n=]{0,900}") {
            for text in [text.as_slice(), words.as_bytes()] {
                for carried in [None, Some(Starts(0b101))] {
                    for run in runs(text, carried) {
                        for decoded in run.decoded() {
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
