//! A model of a terminal's screen, with the lines that scrolled out of it. It renders output that moves the cursor, as
//! full-screen agents write it, to lines of text.
//!
//! The output is untrusted. The size of the screen and the amount of text outside of it are limited, and an empty row
//! takes no space, so a short sequence cannot cause much work.

use std::collections::VecDeque;

use bottle_contract::session::guest::Size;
use dialoguer::console::measure_text_width;
use vte::{Params, Perform};

use super::grid::{Grid, Row};

/// The largest number of rows and of columns.
const SIDE_MAX: u16 = 1000;

/// The size of a terminal that no client has set.
const DEFAULT: Size = Size { rows: 24, columns: 80 };

/// The maximum number of lines outside of the screen. The oldest are dropped.
const LINES_MAX: usize = 100_000;

/// The maximum size of these lines in bytes.
const BYTES_MAX: usize = 16 << 20;

/// The maximum length of one of these lines in bytes. A longer line is split.
const LINE_MAX: usize = 64 * 1024;

/// The screen of a terminal.
pub(super) struct Screen {
    parser: vte::Parser,
    terminal: Terminal,
    /// The beginning of a character whose other bytes have not arrived.
    begun: Vec<u8>,
}

impl Screen {
    /// An empty screen. `size` is that of the agent's terminal. `None` if the agent runs on pipes, or it is not known.
    pub(super) fn new(size: Option<Size>) -> Self {
        let known = size.filter(|size| size.rows > 0 && size.columns > 0).unwrap_or(DEFAULT);
        let (rows, columns) = (known.rows.min(SIDE_MAX), known.columns.min(SIDE_MAX));
        let terminal = Terminal {
            main: Grid::new(rows.into(), columns.into()),
            alternate: None,
            lines: Lines::default(),
            last: ' ',
            inserts: false,
            returns: size.is_none(),
        };
        Self { parser: vte::Parser::new(), terminal, begun: Vec::new() }
    }

    /// Writes output to the screen.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        // The parser loses a character behind one that it gets in two parts.
        let mut whole = std::mem::take(&mut self.begun);
        whole.extend_from_slice(bytes);
        self.begun = whole.split_off(end_of_characters(&whole));
        self.parser.advance(&mut self.terminal, &whole);
    }

    /// Takes the lines that scrolled out of the screen.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.terminal.lines.bytes = 0;
        self.terminal.lines.whole.drain(..).collect()
    }

    /// Returns the lines that were not taken yet: those that scrolled out, and the screen.
    pub(super) fn finish(mut self) -> Vec<String> {
        let alternate = self.terminal.alternate.take();
        self.terminal.main.rows().for_each(|row| self.terminal.lines.push(row));
        self.terminal.lines.end();
        self.terminal.lines.trim();
        if let Some(grid) = alternate {
            grid.rows().for_each(|row| self.terminal.lines.push(row));
            self.terminal.lines.end();
            self.terminal.lines.trim();
        }
        self.take_lines()
    }

    #[cfg(test)]
    fn rows(&self) -> Vec<String> {
        self.terminal.grid().rows().map(|row| row.text().trim_end().to_owned()).collect()
    }
}

/// The length of these bytes without a last character that is not complete.
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

/// Lines outside of the screen.
#[derive(Default)]
struct Lines {
    whole: VecDeque<String>,
    /// The size of `whole` in bytes.
    bytes: usize,
    /// The beginning of a line that continues in the next row.
    begun: Option<String>,
}

impl Lines {
    /// Adds a row. A row that continues in the next one is a part of the same line.
    fn push(&mut self, row: &Row) {
        let mut line = self.begun.take().unwrap_or_default();
        line.push_str(&row.text());
        if row.wrapped && line.len() < LINE_MAX {
            self.begun = Some(line);
        } else {
            self.add(line);
        }
    }

    /// Ends a line whose next row does not follow.
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

    fn clear(&mut self) {
        *self = Self::default();
    }
}

struct Terminal {
    main: Grid,
    /// The alternate screen, while a program uses it.
    alternate: Option<Grid>,
    lines: Lines,
    /// The last character that was printed.
    last: char,
    /// Whether characters move those behind them.
    inserts: bool,
    /// Whether a line feed also returns to the first column: a program on pipes writes no carriage returns, which the
    /// terminal would add.
    returns: bool,
}

impl Terminal {
    fn grid(&self) -> &Grid {
        self.alternate.as_ref().unwrap_or(&self.main)
    }

    fn grid_mut(&mut self) -> &mut Grid {
        self.alternate.as_mut().unwrap_or(&mut self.main)
    }

    /// Scrolls up. Rows that leave the main screen at its top are kept as lines.
    fn scroll_up(&mut self, count: usize) {
        match &mut self.alternate {
            Some(grid) => grid.scroll_up(count, |_| {}),
            None => {
                let lines = &mut self.lines;
                self.main.scroll_up(count, |row| lines.push(row));
            }
        }
    }

    fn line_feed(&mut self) {
        if self.grid_mut().down_or_scroll() {
            self.scroll_up(1);
        }
    }

    fn text(&mut self, character: char) {
        let width = match character {
            ' '..='~' => 1,
            other => measure_text_width(other.encode_utf8(&mut [0; 4])),
        };
        if width == 0 {
            self.grid_mut().combine(character);
            return;
        }
        if self.grid_mut().wraps_before(width) {
            self.line_feed();
        }
        let inserts = self.inserts;
        self.grid_mut().put(character, width, inserts);
        self.last = character;
    }

    fn repeat(&mut self, count: usize) {
        let count = count.min(self.grid().columns());
        (0..count).for_each(|_| self.text(self.last));
    }

    /// Begins to use the alternate screen, which is empty. Its cursor begins where the cursor was.
    fn enter_alternate(&mut self) {
        if self.alternate.is_none() {
            self.alternate = Some(self.main.empty());
        }
    }

    /// Ends the alternate screen. The terminal forgets it, but it may be all that the agent showed, so it is kept as
    /// lines.
    fn leave_alternate(&mut self) {
        let Some(grid) = self.alternate.take() else { return };
        if grid.rows().any(|row| !row.text().trim().is_empty()) {
            self.lines.end();
            grid.rows().for_each(|row| self.lines.push(row));
            self.lines.end();
            self.lines.trim();
        }
    }

    fn set_private_mode(&mut self, mode: u16, on: bool) {
        match (mode, on) {
            (6, _) => self.grid_mut().set_origin(on),
            (7, _) => self.grid_mut().autowrap = on,
            (47 | 1047, true) => self.enter_alternate(),
            (47 | 1047, false) => self.leave_alternate(),
            (1048, true) => self.grid_mut().save_cursor(),
            (1048, false) => self.grid_mut().restore_cursor(),
            (1049, true) => {
                self.main.save_cursor();
                self.enter_alternate();
            }
            (1049, false) => {
                self.leave_alternate();
                self.main.restore_cursor();
            }
            _ => {}
        }
    }

    fn erase_display(&mut self, mode: u16) {
        match mode {
            0 => self.grid_mut().erase_below(),
            1 => self.grid_mut().erase_above(),
            2 => self.grid_mut().erase_all(),
            3 => self.lines.clear(),
            _ => {}
        }
    }

    fn reset(&mut self) {
        self.leave_alternate();
        self.main.reset();
        self.inserts = false;
    }
}

impl Perform for Terminal {
    fn print(&mut self, character: char) {
        if character != '\u{fffd}' && !character.is_control() {
            self.text(character);
        }
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            8 => self.grid_mut().left(1),
            9 => self.grid_mut().tab(),
            10..=12 => {
                if self.returns {
                    self.grid_mut().set_column(0);
                }
                self.line_feed();
            }
            13 => self.grid_mut().set_column(0),
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _: bool, byte: u8) {
        match (intermediates, byte) {
            ([], b'7') => self.grid_mut().save_cursor(),
            ([], b'8') => self.grid_mut().restore_cursor(),
            ([], b'D') => self.line_feed(),
            ([], b'E') => {
                self.grid_mut().set_column(0);
                self.line_feed();
            }
            ([], b'M') => self.grid_mut().up_or_scroll(),
            ([], b'c') => self.reset(),
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], _: bool, action: char) {
        let mut numbers = params.iter().map(|param| param.first().copied().unwrap_or(0));
        match intermediates {
            [] => {}
            [b'?'] => {
                match action {
                    'h' => numbers.for_each(|mode| self.set_private_mode(mode, true)),
                    'l' => numbers.for_each(|mode| self.set_private_mode(mode, false)),
                    'J' => self.erase_display(numbers.next().unwrap_or(0)),
                    'K' => self.grid_mut().erase_in_row(numbers.next().unwrap_or(0)),
                    _ => {}
                }
                return;
            }
            _ => return,
        }
        let first = numbers.next().unwrap_or(0);
        let second = numbers.next().unwrap_or(0);
        // An absent count is 1, and so is 0.
        let count = usize::from(first.max(1));
        let (row, column) = (count - 1, usize::from(second.max(1)) - 1);
        match action {
            '@' => self.grid_mut().insert_cells(count),
            'A' => self.grid_mut().up(count),
            'B' | 'e' => self.grid_mut().down(count),
            'C' | 'a' => self.grid_mut().right(count),
            'D' => self.grid_mut().left(count),
            'E' => {
                self.grid_mut().set_column(0);
                self.grid_mut().down(count);
            }
            'F' => {
                self.grid_mut().set_column(0);
                self.grid_mut().up(count);
            }
            'G' | '`' => self.grid_mut().set_column(row),
            'H' | 'f' => self.grid_mut().set_position(row, column),
            'I' => (0..count.min(SIDE_MAX.into())).for_each(|_| self.grid_mut().tab()),
            'J' => self.erase_display(first),
            'K' => self.grid_mut().erase_in_row(first),
            'L' => self.grid_mut().insert_lines(count),
            'M' => self.grid_mut().delete_lines(count),
            'P' => self.grid_mut().delete_cells(count),
            'S' => self.scroll_up(count),
            'T' => self.grid_mut().scroll_down(count),
            'X' => self.grid_mut().erase_cells(count),
            'b' => self.repeat(count),
            'd' => self.grid_mut().set_row(row),
            'h' | 'l' if first == 4 => self.inserts = action == 'h',
            'r' => self.grid_mut().set_region(row, usize::from(second)),
            's' => self.grid_mut().save_cursor(),
            'u' => self.grid_mut().restore_cursor(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: Size = Size { rows: 6, columns: 20 };

    /// What the reference implementation shows: its rows, and the rows that scrolled out.
    fn reference(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
        let mut parser = vt100::Parser::new(SIZE.rows, SIZE.columns, 10_000);
        parser.process(bytes);
        let rows = |parser: &vt100::Parser| -> Vec<String> {
            parser.screen().rows(0, SIZE.columns).map(|row| row.trim_end().to_owned()).collect()
        };
        let shown = rows(&parser);
        parser.screen_mut().set_scrollback(usize::MAX);
        let count = parser.screen().scrollback();
        let lost = (1..=count).rev().filter_map(|at| {
            parser.screen_mut().set_scrollback(at);
            rows(&parser).into_iter().next()
        });
        (shown, lost.collect())
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

    /// Sequences that both implementations define in the same way, at any place.
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
        // The reference moves the cursor to another place, so a position follows.
        (1_u16..5, 2_u16..7, 1_u16..7)
            .prop_map(|(top, bottom, row)| format!("\x1b[{top};{bottom}r\x1b[{row};1H"))
    }

    proptest! {
        #[test]
        fn shows_what_a_terminal_shows(
            parts in proptest::collection::vec(prop_oneof![words(), moves()], 0..60),
        ) {
            let bytes = parts.concat().into_bytes();
            let (shown, lost) = reference(&bytes);
            let screen = screen(&bytes);
            prop_assert_eq!(screen.rows(), shown);
            let joined = |rows: &[String]| rows.concat().replace(' ', "");
            let mut lines = screen.terminal.lines.whole.iter().cloned().collect::<Vec<_>>();
            lines.extend(screen.terminal.lines.begun.clone());
            prop_assert_eq!(joined(&lines), joined(&lost));
        }

        #[test]
        fn scrolls_a_region_as_a_terminal_does(
            parts in proptest::collection::vec(
                prop_oneof![
                    3 => words(),
                    1 => region(),
                    1 => (1_u16..4).prop_map(|count| format!("\x1b[{count}S")),
                    1 => (1_u16..4).prop_map(|count| format!("\x1b[{count}T")),
                    1 => (1_u16..7).prop_map(|row| format!("\x1b[{row};3H")),
                ],
                0..60,
            ),
        ) {
            let bytes = parts.concat().into_bytes();
            prop_assert_eq!(screen(&bytes).rows(), reference(&bytes).0);
        }

        #[test]
        fn shows_the_alternate_screen_as_a_terminal_does(
            before in proptest::collection::vec(words(), 0..9),
            during in proptest::collection::vec(prop_oneof![words(), moves()], 0..30),
            after in proptest::option::of(proptest::collection::vec(words(), 0..9)),
        ) {
            let mut bytes = format!("{}\x1b[?1049h\x1b[H{}", before.concat(), during.concat());
            if let Some(after) = after {
                bytes += &format!("\x1b[?1049l{}", after.concat());
            }
            prop_assert_eq!(screen(bytes.as_bytes()).rows(), reference(bytes.as_bytes()).0);
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
    fn a_short_sequence_causes_little_work() {
        let begun = std::time::Instant::now();
        let mut screen = Screen::new(Some(Size { rows: 9999, columns: 9999 }));
        for _ in 0..3000 {
            screen.feed(b"x\x1b[65535b\x1b[65535S\x1b[65535T\x1b[65535L\x1b[65535M\x1b[65535@\x1b[65535I");
        }
        let terminal = &screen.terminal;
        assert!(terminal.lines.whole.len() <= LINES_MAX && terminal.lines.bytes <= BYTES_MAX);
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{:?}", begun.elapsed());
    }
}
