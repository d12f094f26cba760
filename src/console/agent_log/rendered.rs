//! Renders the agent's output as lines of text. Plain output is rendered line by line. Output that moves the cursor is
//! rendered with a model of the screen.

use bottle_protocol::session::guest::Size;
use vte::{Params, Perform};

use super::screen::Screen;
use crate::console::output::inert;
use crate::console::plain::Plain;

/// Renders all lines of the output. `size` is the size of the agent's terminal, if the size is known.
pub(super) fn render(bytes: &[u8], size: Option<Size>) -> Vec<String> {
    let mut rendered = Rendered::new(size);
    if rendered.detector.moves_cursor(bytes) {
        rendered.output = Output::Screen(Box::new(Screen::new(size)));
    }
    let mut lines = rendered.feed(bytes);
    lines.extend(rendered.finish());
    lines
}

/// Renders output while it arrives. Output is plain until it moves the cursor for the first time.
pub(crate) struct Rendered {
    output: Output,
    detector: Detector,
    size: Option<Size>,
}

enum Output {
    Plain(Plain),
    Screen(Box<Screen>),
}

impl Rendered {
    pub(crate) fn new(size: Option<Size>) -> Self {
        Self { output: Output::Plain(Plain::default()), detector: Detector::default(), size }
    }

    /// Returns the completed lines. For plain output, returns each complete line. For a screen, returns the lines that
    /// scrolled out of the screen.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        if let Output::Plain(plain) = &mut self.output
            && self.detector.moves_cursor(bytes)
        {
            let mut screen = Screen::new(self.size);
            screen.feed(&plain.take_begun());
            self.output = Output::Screen(Box::new(screen));
        }
        match &mut self.output {
            Output::Plain(plain) => plain.feed(bytes),
            Output::Screen(screen) => {
                screen.feed(bytes);
                harmless(screen.take_lines())
            }
        }
    }

    /// Returns the remaining lines: the unfinished line of plain output, or the lines on the screen.
    pub(crate) fn finish(self) -> Vec<String> {
        match self.output {
            Output::Plain(mut plain) => plain.finish().into_iter().collect(),
            Output::Screen(screen) => harmless(screen.finish()),
        }
    }
}

fn harmless(lines: Vec<String>) -> Vec<String> {
    lines.iter().map(|line| inert(line)).collect()
}

/// Detects output that moves the cursor in a way that plain lines cannot represent.
#[derive(Default)]
struct Detector {
    parser: vte::Parser,
    found: Found,
}

#[derive(Default)]
struct Found(bool);

impl Detector {
    fn moves_cursor(&mut self, bytes: &[u8]) -> bool {
        self.parser.advance(&mut self.found, bytes);
        self.found.0
    }
}

impl Perform for Found {
    fn esc_dispatch(&mut self, intermediates: &[u8], _: bool, byte: u8) {
        self.0 |= intermediates.is_empty() && matches!(byte, b'8' | b'D' | b'M' | b'c');
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], _: bool, action: char) {
        self.0 |= match intermediates {
            [] => matches!(action, '@'..='J' | 'L' | 'M' | 'P' | 'S' | 'T' | 'X' | 'd' | 'f' | 'r' | 'u'),
            [b'?'] => action == 'h' && params.iter().any(|param| matches!(param, [47 | 1047 | 1049])),
            _ => false,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(rows: u16, columns: u16) -> Option<Size> {
        Some(Size { rows, columns })
    }

    #[test]
    fn plain_output_stays_as_it_is() {
        let long = "word ".repeat(100);
        for (bytes, expected) in [
            ("one\r\n\x1b[1;31mtwo\x1b[0m\r\n\r\n", vec!["one", "two", ""]),
            ("10%\r\x1b[K55%\r\x1b[K100%\n", vec!["100%"]),
            ("\x1b]0;title\x07\x1b[?25l\x1b[?2004hnamed", vec!["named"]),
            (&format!("{long}\n"), vec![&long]),
        ] {
            assert_eq!(render(bytes.as_bytes(), size(3, 10)), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_screen_shows_what_scrolled_out_and_what_is_left() {
        // A program redraws its input box below each new message.
        let mut bytes = String::new();
        for n in 1..=6 {
            bytes += &format!("\r\x1b[Jmessage {n}\r\n+----+\r\n> {}\x1b[1A", "x".repeat(n));
        }
        assert_eq!(
            render(bytes.as_bytes(), size(4, 20)),
            [
                "message 1",
                "message 2",
                "message 3",
                "message 4",
                "message 5",
                "message 6",
                "+----+",
                "> xxxxxx"
            ]
        );
        // A long line that wraps is rendered as one line.
        let long = "0123456789 123456789".repeat(3);
        let bytes = format!("{long}\x1b[8;1Hend");
        assert_eq!(render(bytes.as_bytes(), size(9, 10)), [long.as_str(), "", "end"]);
    }

    #[test]
    fn output_of_a_program_on_pipes_has_no_carriage_returns() {
        assert_eq!(render(b"one\ntwo\n\x1b[1A\x1b[2Kthree\nfour", None), ["one", "three", "four"]);
    }

    #[test]
    fn the_alternate_screen_is_shown_also_after_its_end() {
        let during = "before\r\n\x1b[?1049h\x1b[2J\x1b[Hleft\x1b[1;10Hright\r\nbelow";
        let expected = ["before", "left     right", "below"];
        assert_eq!(render(during.as_bytes(), size(5, 20)), expected);
        let after = format!("{during}\x1b[?1049lafter\r\n");
        assert_eq!(render(after.as_bytes(), size(5, 20)), ["left     right", "below", "before", "after"]);
    }

    #[test]
    fn lines_of_a_followed_screen_appear_once() {
        let mut followed = Rendered::new(size(3, 20));
        assert_eq!(followed.feed(b"one\r\ntwo"), ["one"]);
        let mut lines = followed.feed(b"\x1b[1G2\r\nthree\r\nfour\r\nfive");
        assert_eq!(lines, ["2wo"]);
        lines.extend(followed.finish());
        assert_eq!(lines, ["2wo", "three", "four", "five"]);
    }

    proptest! {
        #[test]
        fn any_output_becomes_bounded_harmless_lines(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0x1b), Just(b'['), Just(b'9'), Just(b';'), b'@'..=b'z'], 0..3000),
            rows in 0_u16..40, columns in 0_u16..90,
        ) {
            let mut followed = Rendered::new(size(rows, columns));
            let mut lines = Vec::new();
            for chunk in bytes.chunks(97) {
                lines.extend(followed.feed(chunk));
            }
            lines.extend(followed.finish());
            for line in lines.iter().chain(&render(&bytes, size(rows, columns))) {
                prop_assert!(!line.contains(|c: char| c.is_control() && c != '\t'), "{line:?}");
            }
        }
    }
}
