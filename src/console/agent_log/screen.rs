//! A model of a terminal's screen, and of the lines that scrolled out of the screen. The model renders output that
//! moves the cursor, as full-screen agents write it, to lines of text.
//!
//! The output is untrusted. The size of the screen, the work for each escape sequence and the amount of text outside of
//! the screen are limited.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZero;

use bottle_protocol::session::guest::Size;
use vt100::capture::{BasicFormattedCaptureState, RowContents, basic_formatted_to_plain};
use vte::{Params, Perform};

/// The maximum number of rows, and of columns.
const SIDE_MAX: u16 = 1000;

/// The maximum number of lines outside of the screen. The oldest lines are dropped.
const LINES_MAX: usize = 100_000;

/// The maximum total size, in bytes, of the lines outside of the screen.
const BYTES_MAX: usize = 16 << 20;

/// The maximum length, in bytes, of a line outside of the screen. A longer line is split.
const LINE_MAX: usize = 64 * 1024;

/// The control character that cancels a sequence.
const CANCEL: &[u8] = b"\x18";

/// A model of a terminal's screen.
pub(super) struct Screen {
    parser: vt100::Parser<Lines>,
    watcher: vte::Parser,
    watched: Watched,
    /// Whether a line feed also returns to the first column. The output of a terminal already contains the carriage
    /// returns, but output on pipes contains none.
    returns: bool,
    /// The beginning of a character whose other bytes have not arrived.
    begun: Vec<u8>,
}

impl Screen {
    /// Creates an empty screen. `size` is the size of the agent's terminal. It is `None` if the agent runs on pipes, or
    /// if the size is unknown.
    pub(super) fn new(size: Option<Size>) -> Self {
        let side = |side: fn(Size) -> u16| size.and_then(|size| NonZero::new(side(size).min(SIDE_MAX)));
        let rows = side(|size| size.rows).unwrap_or(vt100::Parser::DEFAULT_ROWS);
        let columns = side(|size| size.columns).unwrap_or(vt100::Parser::DEFAULT_COLS);
        Self {
            parser: vt100::Parser::new_with_callbacks(rows, columns, 0, Lines::default()),
            watcher: vte::Parser::new(),
            watched: Watched { columns: columns.get(), found: None },
            returns: size.is_none(),
            begun: Vec::new(),
        }
    }

    /// Writes output to the screen.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        // The parser gets only complete characters: if it gets a character in two parts, it loses the next character.
        let mut whole = std::mem::take(&mut self.begun);
        for &byte in bytes {
            if self.returns && byte == b'\n' {
                whole.push(b'\r');
            }
            whole.push(byte);
        }
        self.begun = whole.split_off(end_of_characters(&whole));
        self.write(&whole);
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let length = self.watcher.advance_until_terminated(&mut self.watched, bytes);
            let (now, later) = bytes.split_at(length);
            bytes = later;
            let Some((found, (last, before))) = self.watched.found.take().zip(now.split_last()) else {
                self.parser.process(now);
                continue;
            };
            self.parser.process(before);
            match found {
                Found::LeavesAlternate => self.keep_alternate(),
                Found::ForgetsLines => *self.lines() = Lines::default(),
                Found::Erases(erase) => {
                    self.parser.process(CANCEL);
                    self.end_line_above(erase.contains('2'));
                    self.parser.process(erase.as_bytes());
                    continue;
                }
                Found::Equals(other) => {
                    self.parser.process(CANCEL);
                    self.write(other.as_bytes());
                    continue;
                }
            }
            self.parser.process(&[*last]);
        }
    }

    fn lines(&mut self) -> &mut Lines {
        self.parser.callbacks_mut()
    }

    /// Returns the rows of the screen. The flag of a row is true if its line continues in the next row.
    fn rows(&self) -> Vec<(String, bool)> {
        let screen = self.parser.screen();
        let rows = screen.rows(0, screen.size().1.get()).zip(0..);
        rows.map(|(row, at)| (row, screen.row_wrapped(at))).collect()
    }

    /// If the cursor's row is erased from its first column on, ends the line in the row above. New text in the cursor's
    /// row then does not continue that line. The parser ends a line when its last character is erased, so this function
    /// erases that character and writes it again.
    fn end_line_above(&mut self, whole_row: bool) {
        let (screen, columns) = (self.parser.screen(), self.watched.columns);
        let (row, column) = screen.cursor_position();
        let erases = column == 0 || (whole_row && column < columns);
        let Some(above) = row.checked_sub(1).filter(|above| erases && screen.row_wrapped(*above)) else {
            return;
        };
        let width = [1, 2].into_iter().find(|width| {
            let cell = columns.checked_sub(*width).and_then(|at| screen.cell(above, at));
            cell.is_some_and(|cell| !cell.is_wide_continuation())
        });
        let width = width.unwrap_or(1);
        let last = screen.cell(above, columns - width).map_or("", |cell| cell.contents());
        let [up, start, down, back] = [above + 1, columns - width + 1, row + 1, column + 1];
        let sequence = format!("\x1b[{up}d\x1b[{start}G\x1b[{width}X{last}\x1b[{down}d\x1b[{back}G");
        self.parser.process(sequence.as_bytes());
    }

    /// If a program uses the alternate screen, stores the rows of that screen as lines. A terminal drops the alternate
    /// screen, but the alternate screen may contain the agent's only output.
    fn keep_alternate(&mut self) {
        if self.parser.screen().alternate_screen() {
            let rows = self.rows();
            if rows.iter().any(|(row, _)| !row.trim().is_empty()) {
                self.lines().end();
                self.lines().push_all(rows);
            }
        }
    }

    /// Removes and returns the lines that scrolled out of the screen.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines().bytes = 0;
        self.lines().whole.drain(..).collect()
    }

    /// Returns the lines that [`Self::take_lines`] has not returned yet: the lines that scrolled out, and the lines on
    /// the screen.
    pub(super) fn finish(mut self) -> Vec<String> {
        let alternate = self.parser.screen().alternate_screen().then(|| self.rows());
        self.parser.process(b"\x1b[?47l");
        let main = self.rows();
        self.lines().push_all(main);
        self.lines().push_all(alternate.unwrap_or_default());
        self.take_lines()
    }
}

/// Finds the escape sequences that [`Screen`] handles before the parser gets them.
struct Watched {
    columns: u16,
    found: Option<Found>,
}

enum Found {
    /// The sequence ends the alternate screen.
    LeavesAlternate,
    /// The sequence clears the lines outside of the screen.
    ForgetsLines,
    /// The sequence erases one row or more. Contains the sequence.
    Erases(String),
    /// The parser does not support the sequence. Contains an equivalent sequence that the parser supports.
    Equals(String),
}

impl Perform for Watched {
    fn esc_dispatch(&mut self, intermediates: &[u8], _: bool, byte: u8) {
        self.found = match (intermediates, byte) {
            ([], b'D') => Some(Found::Equals("\n".to_owned())),
            ([], b'E') => Some(Found::Equals("\r\n".to_owned())),
            ([], b'c') => Some(Found::LeavesAlternate),
            _ => None,
        };
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], _: bool, action: char) {
        let has = |mode: u16| params.iter().any(|param| param == [mode]);
        let count = params.iter().next().and_then(|param| param.first()).copied().unwrap_or(0);
        let equals = |sequence: String| Some(Found::Equals(sequence));
        self.found = match (intermediates, action) {
            ([b'?'], 'h' | 'l') if has(1047) => equals(format!("\x1b[?47{action}")),
            ([b'?'], 'l') if has(47) || has(1049) => Some(Found::LeavesAlternate),
            ([] | [b'?'], 'J') if count == 3 => Some(Found::ForgetsLines),
            ([] | [b'?'], 'J' | 'K') if matches!(count, 0 | 2) => {
                Some(Found::Erases(format!("\x1b[{count}{action}")))
            }
            ([], 'I') => equals("\t".repeat(count.clamp(1, self.columns).into())),
            ([], 'a') => equals(format!("\x1b[{count}C")),
            // The number of repetitions is limited to one row.
            ([], 'b') if count > self.columns => equals(format!("\x1b[{}b", self.columns)),
            ([], 'e') => equals(format!("\x1b[{count}B")),
            ([], 's') => equals("\x1b7".to_owned()),
            ([], 'u') => equals("\x1b8".to_owned()),
            _ => None,
        };
    }

    fn terminated(&self) -> bool {
        self.found.is_some()
    }
}

/// Returns the length of `bytes` without an incomplete character at the end.
fn end_of_characters(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let length = match bytes[at] {
            0x80..=0xbf => continue,
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            _ => 1,
        };
        return if length > back { at } else { bytes.len() };
    }
    bytes.len()
}

/// The lines outside of the screen.
#[derive(Debug, Clone, Default)]
struct Lines {
    whole: VecDeque<String>,
    /// The size of `whole` in bytes.
    bytes: usize,
    /// The beginning of a line that continues in the next row.
    begun: Option<String>,
}

impl Lines {
    /// Adds a row. If a row continues in the next row, both are parts of one line.
    fn push(&mut self, row: &str, wrapped: bool) {
        let mut line = self.begun.take().unwrap_or_default();
        line.push_str(row);
        if wrapped && line.len() < LINE_MAX {
            self.begun = Some(line);
        } else {
            self.add(line);
        }
    }

    /// Adds the rows of a screen, without the empty rows at its end.
    fn push_all(&mut self, rows: Vec<(String, bool)>) {
        rows.iter().for_each(|(row, wrapped)| self.push(row, *wrapped));
        self.end();
        self.trim();
    }

    /// Ends the unfinished line, because the row that continues it does not follow.
    fn end(&mut self) {
        if let Some(line) = self.begun.take() {
            self.add(line);
        }
    }

    fn add(&mut self, mut line: String) {
        line.truncate(line.trim_end().len());
        self.bytes += line.len();
        self.whole.push_back(line);
        while self.whole.len() > LINES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.whole.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }

    /// Removes empty lines at the end.
    fn trim(&mut self) {
        while self.whole.pop_back_if(|line| line.is_empty()).is_some() {}
    }
}

impl vt100::Callbacks for Lines {
    fn on_scroll(&mut self, row: RowContents<'_>, alternate_screen: bool) {
        if alternate_screen {
            return;
        }
        let (mut text, mut next, mut state) =
            (String::new(), FirstText::default(), BasicFormattedCaptureState::new());
        // Writing to a string does not fail.
        let _ = row.write_formatted_basic(&mut text, &mut state);
        // The text after a row begins with a line break, unless the line continues in the next row.
        let _ = row.write_formatted_basic(&mut next, &mut state);
        self.push(&basic_formatted_to_plain(&text).collect::<String>(), !next.is_break);
    }
}

/// A writer that checks whether the first text is a line break, and then returns an error.
#[derive(Default)]
struct FirstText {
    is_break: bool,
}

impl fmt::Write for FirstText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.is_break = text == "\n";
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: Size = Size { rows: 6, columns: 20 };

    /// Returns the rows that scrolled out of the screen, from the scrollback of the parser itself.
    fn scrolled_out(bytes: &[u8]) -> Vec<String> {
        let [rows, columns] = [SIZE.rows, SIZE.columns].map(|side| NonZero::new(side).expect("a side"));
        let mut parser = vt100::Parser::new(rows, columns, 10_000);
        parser.process(bytes);
        let screen = parser.screen_mut();
        let rows = (1..=screen.scrollback_len()).rev().filter_map(|at| {
            screen.set_scrollback(at);
            screen.rows(0, SIZE.columns).next()
        });
        rows.collect()
    }

    fn screen(bytes: &[u8]) -> Screen {
        let mut screen = Screen::new(Some(SIZE));
        screen.feed(bytes);
        screen
    }

    fn words() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[a-z ]{1,9}",
            2 => "[a-z]{15,45}",
            1 => "[日本é]{1,4}",
            1 => Just("e\u{301}".to_owned()),
            4 => Just("\r\n".to_owned()),
            1 => Just("\n".to_owned()),
            1 => Just("\r".to_owned()),
            1 => Just("\t".to_owned()),
        ]
    }

    /// Generates sequences that [`Screen`] and the parser's own scrollback handle in the same way at any cursor
    /// position.
    fn moves() -> impl Strategy<Value = String> {
        let csi = |finals: &'static str| {
            (0_u16..9, proptest::sample::select(finals.chars().collect::<Vec<_>>()))
                .prop_map(|(count, end)| format!("\x1b[{count}{end}"))
        };
        prop_oneof![
            4 => csi("ABCEFGd"),
            2 => csi("LMST"),
            2 => csi("PX"),
            2 => (0_u16..3).prop_map(|mode| format!("\x1b[{mode}J")),
            2 => (0_u16..3).prop_map(|mode| format!("\x1b[{mode}K")),
            3 => (0_u16..9, 0_u16..25).prop_map(|(row, column)| format!("\x1b[{row};{column}H")),
            1 => Just("\x1bM".to_owned()),
            1 => Just("\x1b7".to_owned()),
            1 => Just("\x1b8".to_owned()),
            1 => Just("\x1b[1;31m".to_owned()),
            1 => Just("\x1b]0;title\x07".to_owned()),
        ]
    }

    fn region() -> impl Strategy<Value = String> {
        // Here the parser's own scrollback differs in the position of the cursor, so a sequence that sets the cursor
        // position follows.
        (1_u16..5, 2_u16..7, 1_u16..7)
            .prop_map(|(top, bottom, row)| format!("\x1b[{top};{bottom}r\x1b[{row};1H"))
    }

    proptest! {
        #[test]
        fn keeps_the_rows_that_scroll_out(
            parts in proptest::collection::vec(prop_oneof![words(), moves(), region()], 0..60),
        ) {
            let bytes = parts.concat().into_bytes();
            let lines = screen(&bytes).parser.callbacks().clone();
            let joined = |rows: Vec<String>| rows.concat().replace(' ', "");
            let kept = lines.whole.into_iter().chain(lines.begun).collect();
            prop_assert_eq!(joined(kept), joined(scrolled_out(&bytes)));
        }

        #[test]
        fn chunks_make_no_difference(
            parts in proptest::collection::vec(prop_oneof![words(), moves(), region()], 0..40), chunk in 1_usize..9,
        ) {
            let bytes = parts.concat().into_bytes();
            let mut chunked = Screen::new(Some(SIZE));
            bytes.chunks(chunk).for_each(|bytes| chunked.feed(bytes));
            prop_assert_eq!(chunked.finish(), screen(&bytes).finish());
        }
    }

    #[test]
    fn a_character_may_arrive_in_parts() {
        for (text, complete) in [("a", 1), ("", 0), ("é", 2), ("日本", 6), ("a😀", 5)] {
            assert_eq!(end_of_characters(text.as_bytes()), complete, "{text}");
            for cut in 1..text.chars().last().map_or(1, char::len_utf8) {
                let part = &text.as_bytes()[..text.len() - cut];
                let whole = text.len() - text.chars().last().map_or(0, char::len_utf8);
                assert_eq!(end_of_characters(part), whole, "{text} without {cut} bytes");
            }
        }
        let mut chunked = Screen::new(Some(SIZE));
        [&b"\xc3"[..], b"\xa9e\xcc", b"\x81x"].into_iter().for_each(|bytes| chunked.feed(bytes));
        assert_eq!(chunked.finish(), ["\u{e9}e\u{301}x"]);
    }

    #[test]
    fn sequences_that_the_parser_does_not_know_work() {
        for (sequence, same) in [
            ("\x1bD", "\n"),
            ("\x1bE", "\r\n"),
            ("\x1b[3a", "\x1b[3C"),
            ("\x1b[2I", "\t\t"),
            ("\x1b[2e", "\x1b[2B"),
            ("\x1b[s\x1b[H\x1b[u", "\x1b7\x1b[H\x1b8"),
            ("\x1b[99b", &"c".repeat(SIZE.columns.into())),
            ("\x1b[?1047h\x1b[Hx\x1b[?1047l", "\x1b[?47h\x1b[Hx\x1b[?47l"),
        ] {
            let lines = |words: &str| screen(format!("ab\r\nc{words}d").as_bytes()).finish();
            assert_eq!(lines(sequence), lines(same), "{sequence:?}");
            assert_eq!(lines(sequence) == lines(""), sequence.contains('s'), "{sequence:?}");
        }
    }

    #[test]
    fn what_is_written_to_an_erased_row_does_not_continue_the_line_above() {
        for full in ["0".repeat(20), "0".repeat(18) + "日", "0".repeat(19) + "e\u{301}"] {
            for (erase, separate) in [
                ("", false),
                ("\x1b[1K", false),
                ("\x1b[K", true),
                ("\x1b[J", true),
                ("\x1b[3C\x1b[2K\x1b[G", true),
            ] {
                let bytes = format!("{full}xyz\x1b[2;1H{erase}new");
                let lines =
                    if separate { vec![full.clone(), "new".to_owned()] } else { vec![full.clone() + "new"] };
                assert_eq!(screen(bytes.as_bytes()).finish(), lines, "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_short_sequence_causes_little_work() {
        let begun = std::time::Instant::now();
        let mut screen = Screen::new(Some(Size { rows: 9999, columns: 9999 }));
        for _ in 0..100 {
            screen.feed(b"x\x1b[65535b\x1b[65535S\x1b[65535T\x1b[65535L\x1b[65535M\x1b[65535@\x1b[65535I");
        }
        let lines = screen.lines();
        assert!(lines.whole.len() <= LINES_MAX && lines.bytes <= BYTES_MAX);
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{:?}", begun.elapsed());
    }
}
