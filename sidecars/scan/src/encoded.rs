//! Base64 within a text, one level deep: where it stands, and what it says.
//!
//! Both alphabets, with or without padding, in one line or in many, whatever stands around it. Looked for in
//! steps of the shortest run, so that text without any costs next to nothing.

use std::ops::Range;

/// Letters of the shortest run that is looked into. A token of 16 bytes has as many.
const SHORTEST: usize = 24;
/// From so many letters on a run is read from its start, whatever it begins with.
const LONG: usize = 512;
/// So many decoded bytes say whether a run is text.
const PEEK: usize = 12;
/// As many behind bytes that are none.
const ANYWHERE: usize = 15;
/// Bytes between two lines of a run: `\r\n`, as it is or escaped.
const BREAK: usize = 4;

const NONE: u8 = 0xff;

/// What each letter stands for.
const LETTERS: [u8; 256] = {
    let mut letters = [NONE; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut at = 0;
    while at < alphabet.len() {
        #[allow(clippy::cast_possible_truncation, reason = "less than 64")]
        let value = at as u8;
        letters[alphabet[at] as usize] = value;
        at += 1;
    }
    letters[b'-' as usize] = 62;
    letters[b'_' as usize] = 63;
    letters
};

fn is_letter(byte: u8) -> bool {
    LETTERS[byte as usize] != NONE
}

/// Where groups of four letters may begin in a run, counted from its first letter: a bit for each of 0 to 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Starts(u8);

impl Starts {
    fn each(self) -> impl Iterator<Item = usize> {
        (0..4).filter(move |start| self.0 & (1 << start) != 0)
    }

    /// The same, counted from the letter behind `letters` of them.
    fn after(self, letters: usize) -> Self {
        let moved = self.each().map(|start| 1 << ((start + 4 - letters % 4) % 4));
        Self(moved.fold(0, |all, bit: u8| all | bit))
    }
}

/// A run of base64.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its lines, without what is between them.
    lines: Vec<Range<usize>>,
    starts: Starts,
}

impl Run {
    /// Every text that it may stand for, with the letters in front of it: one in nearly all cases.
    pub(crate) fn decoded<'t>(&'t self, text: &'t [u8]) -> impl Iterator<Item = Decoded<'t>> {
        self.starts.each().map(move |skip| Decoded { run: self, skip, bytes: self.decode(text, skip) })
    }

    fn decode(&self, text: &[u8], skip: usize) -> Vec<u8> {
        let letters = self.lines.iter().flat_map(|line| &text[line.clone()]).skip(skip);
        let mut bytes = Vec::with_capacity(self.lines.iter().map(Range::len).sum::<usize>() / 4 * 3 + 3);
        let (mut group, mut filled) = (0_u32, 0_u32);
        for letter in letters {
            group = group << 6 | u32::from(LETTERS[*letter as usize]);
            filled += 1;
            if filled == 4 {
                bytes.extend_from_slice(&group.to_be_bytes()[1..]);
                (group, filled) = (0, 0);
            }
        }
        // Two letters left are one byte, three are two.
        if filled > 1 {
            let whole = (group << (6 * (4 - filled))).to_be_bytes();
            bytes.extend_from_slice(&whole[1..filled as usize]);
        }
        bytes
    }

    /// The place of a letter; the end for one behind the last.
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

    /// How a run that goes on at `place` begins there; none when it has ended before.
    pub(crate) fn at(&self, place: usize) -> Option<Starts> {
        if place >= self.end() || self.lines.first().is_none_or(|line| place <= line.start) {
            return None;
        }
        let before = self.lines.iter().map(|line| line.end.min(place).saturating_sub(line.start)).sum();
        Some(self.starts.after(before))
    }

    /// The starts by which some of it is text: at its start, or anywhere, since other letters may stand before what was
    /// encoded. A long one is read from its start in any case: it may hold text.
    fn judge(&mut self, text: &[u8]) {
        let count: usize = self.lines.iter().map(Range::len).sum();
        let (mut starts, mut group, mut number) = (0_u8, 0_u32, 0_usize);
        // By the place of their first letter in a group: groups in a row that are text, and whether all were.
        let (mut rows, mut all) = ([0_usize; 4], [true; 4]);
        for letter in self.lines.iter().flat_map(|line| &text[line.clone()]) {
            group = group << 6 | u32::from(LETTERS[*letter as usize]);
            number += 1;
            if number < 4 {
                continue;
            }
            let start = number % 4;
            // The highest bit of each of three bytes.
            if group & 0x0080_8080 == 0 {
                rows[start] += 1;
                if rows[start] * 3 >= if all[start] { PEEK } else { ANYWHERE } {
                    starts |= 1 << start;
                }
            } else {
                (rows[start], all[start]) = (0, false);
            }
        }
        self.starts = Starts(if count >= LONG { starts | 1 } else { starts });
    }
}

/// What a run stands for.
pub(crate) struct Decoded<'r> {
    run: &'r Run,
    skip: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Decoded<'_> {
    /// Where the letters stand that a range of the bytes was made of.
    pub(crate) fn source(&self, range: &Range<usize>) -> Range<usize> {
        let first = self.skip + range.start / 3 * 4;
        let last = self.skip + range.end.div_ceil(3) * 4 - 1;
        let end = self.run.end();
        let place = self.run.place(last);
        self.run.place(first)..if place < end { place + 1 } else { end }
    }
}

/// The runs of `text`. With `carried`, one that began before it goes on at its start.
pub(crate) fn runs(text: &[u8], carried: Option<Starts>) -> impl Iterator<Item = Run> {
    let mut from = 0;
    let mut carried = carried;
    std::iter::from_fn(move || {
        loop {
            if let Some(starts) = carried.take()
                && let Some(start) = text.iter().take(BREAK + 1).position(|byte| is_letter(*byte))
            {
                let mut run = extended(text, start..letters_end(text, start));
                from = run.end();
                run.judge(text);
                run.starts = Starts(run.starts.0 | starts.0);
                return Some(run);
            }
            let mut run = extended(text, next(text, from)?);
            from = run.end();
            run.judge(text);
            if run.starts != Starts::default() {
                return Some(run);
            }
        }
    })
}

/// The first run at or behind `from` that is long enough, up to the end of its line.
fn next(text: &[u8], mut from: usize) -> Option<Range<usize>> {
    loop {
        let probe = from + SHORTEST - 1;
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

/// A line with those that belong to it: all but the last are long.
fn extended(text: &[u8], first: Range<usize>) -> Run {
    let mut lines = vec![first];
    while let Some(line) = lines.last().filter(|line| line.len() >= SHORTEST) {
        let next = line.end + break_length(&text[line.end..]);
        let end = letters_end(text, next);
        if next == line.end || next == end {
            break;
        }
        lines.push(next..end);
    }
    Run { lines, starts: Starts::default() }
}

/// How long the line break is with which `text` begins, as it is or escaped.
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
    fn text_that_is_none_has_no_run() {
        for text in
            ["", "a", "some words of a text, none of them long", "let value = table.get(&key).map(|x| x);"]
        {
            assert_eq!(read(text.as_bytes()), [b""; 0], "{text}");
        }
        // Long names and paths are runs, and do not decode to text.
        assert_eq!(read(b"src/module_name/another_folder/some_file_name"), [b""; 0]);
    }

    #[test]
    fn a_run_goes_on_where_another_window_begins() {
        let said = "the quick brown fox jumps over the lazy dog, again and again and again";
        let encoded = STANDARD_NO_PAD.encode(said);
        let whole = runs(encoded.as_bytes(), None).next().expect("a run");
        assert_eq!(whole.at(0), None);
        for cut in 1..encoded.len() {
            let rest = &encoded.as_bytes()[cut..];
            let run = runs(rest, Some(whole.at(cut).expect("goes on"))).next().expect("a run");
            // What is left of the group that was cut is none.
            let left = &said[(cut.div_ceil(4) * 3).min(said.len())..];
            assert!(run.decoded(rest).any(|decoded| decoded.bytes == left.as_bytes()), "{cut}");
        }
        assert_eq!(whole.at(encoded.len()), None);
    }

    #[test]
    fn letters_stuck_to_the_front_hide_nothing() {
        let said = "a text of some length, and nothing else";
        for length in 0..70 {
            // Of no text, in whatever group it ends.
            let stuck: String = "zQxWvUkJ9/8+".chars().cycle().take(length).collect();
            let encoded = format!("\"{stuck}{}\"", STANDARD.encode(said));
            let texts = read(encoded.as_bytes());
            let found = texts.iter().any(|text| memchr::memmem::find(text, said.as_bytes()).is_some());
            assert!(found, "{length}: {encoded}");
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_read(
            said in "[ -~]{20,300}",
            (before, after) in ("[ \"':=,]{1,8}", "[ \"',}]{0,8}"),
            width in 24_usize..80,
            way in 0..4,
        ) {
            let encoded = match way {
                0 => STANDARD.encode(&said),
                1 => STANDARD_NO_PAD.encode(&said),
                2 => URL_SAFE.encode(&said),
                _ => STANDARD.encode(&said).as_bytes().chunks(width).map(|line| String::from_utf8_lossy(line).into_owned())
                    .collect::<Vec<_>>().join("\\r\\n"),
            };
            let text = format!("{before}{encoded}{after}");
            let text = text.as_bytes();
            let run = runs(text, None).next().expect("a run");
            let found = run.decoded(text).find(|decoded| decoded.bytes == said.as_bytes()).expect("read");
            let place = found.source(&(3..10));
            prop_assert!(place.start >= before.len() + 4 && place.end <= before.len() + encoded.len());
            prop_assert_eq!(found.source(&(0..said.len())).start, before.len());
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
