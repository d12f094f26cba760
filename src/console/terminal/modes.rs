//! Tracks the terminal modes that a program's output switches on, so that they can be switched off
//! afterwards.
//!
//! An agent that is killed, or from which the user detaches, does not switch off mouse reports, show the
//! cursor, or leave the alternate screen. Only modes that were switched on are undone, because leaving an
//! alternate screen that was not entered would move the cursor.

use std::collections::BTreeSet;

use vte::{Params, Perform};

/// The private modes that the filter allows and that are off in a shell: keys, colours and margins, mouse, focus,
/// alternate screens, paste, synchronized output.
const OFF_IN_SHELL: [u16; 25] = [
    1, 5, 6, 9, 45, 47, 66, 67, 69, 80, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1045, 1047,
    1049, 2004, 2026, 2031,
];

/// The private modes that are on in a shell: line wrap, cursor.
const ON_IN_SHELL: [u16; 2] = [7, 25];

/// The standard modes that are off in a shell: insertion, line feed with carriage return.
const STANDARD: [u16; 2] = [4, 20];

/// The sequences that restore a terminal whose state is unknown after a kill. If no mode was on, these sequences have
/// no visible effect. They save the cursor first, because leaving an alternate screen that is not shown would move the
/// cursor.
pub(super) const EVERYTHING: &[u8] = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\
    \x1b[?2026l\x1b[?1l\x1b>\x1b[>4m\x1b[=0u\x1b[4l\x1b[?7h\x1b(B\x0f\x1b[0m\x1b]8;;\x1b\\\x1b[0 q\
    \x1b7\x1b[?1049l\x1b[?25h\x1b]112\x07\x1b[23;0t";

/// The modes that the output so far has changed and has not restored.
#[derive(Default)]
pub(crate) struct Modes {
    parser: vte::Parser,
    tracked: Tracked,
}

impl Modes {
    /// Processes a chunk of output. Escape sequences may be split between chunks.
    pub(crate) fn note(&mut self, output: &[u8]) {
        self.parser.advance(&mut self.tracked, output);
    }

    /// Returns the sequences that restore the terminal. Leaving the alternate screen comes last.
    pub(crate) fn undo(&self) -> Vec<u8> {
        self.tracked.undo()
    }
}

/// The tracked modes.
#[derive(Debug, Default)]
struct Tracked {
    on: BTreeSet<u16>,
    off: BTreeSet<u16>,
    standard: BTreeSet<u16>,
    /// These flags record which settings the output changed: colours, keypad, margins, cursor shape, hyperlinks,
    /// line-drawing characters.
    coloured: bool,
    keypad: bool,
    margins: bool,
    cursor_shape: bool,
    hyperlink: bool,
    line_drawing: bool,
    shifted_out: bool,
    key_reporting: bool,
    keyboard_set: bool,
    keyboard_pushed: u8,
}

impl Perform for Tracked {
    fn execute(&mut self, control: u8) {
        // The control characters "shift out" and "shift in" select the character set.
        if matches!(control, 0x0e | 0x0f) {
            self.shifted_out = control == 0x0e;
        }
    }

    fn esc_dispatch(&mut self, intermediates: &[u8], _ignored: bool, last: u8) {
        match (intermediates, last) {
            (b"(", letters) => self.line_drawing = letters != b'B',
            (b"", b'=' | b'>') => self.keypad = last == b'=',
            // The sequence for a full reset.
            (b"", b'c') => *self = Self::default(),
            _ => {}
        }
    }

    fn osc_dispatch(&mut self, parameters: &[&[u8]], _bell: bool) {
        self.hyperlink |= parameters.first().is_some_and(|number| *number == b"8");
    }

    fn csi_dispatch(&mut self, parameters: &Params, intermediates: &[u8], _ignored: bool, last: char) {
        let numbers = parameters.iter().filter_map(|parameter| parameter.first().copied());
        match (intermediates, last) {
            (b"?", 'h' | 'l') => numbers.for_each(|mode| self.set(mode, last == 'h')),
            (b">", 'u') => self.keyboard_pushed = self.keyboard_pushed.saturating_add(1),
            (b"<", 'u') => self.keyboard_pushed = self.keyboard_pushed.saturating_sub(1),
            (b"=", 'u') => self.keyboard_set = true,
            (b">", 'm') => self.key_reporting = true,
            (b" ", 'q') => self.cursor_shape = true,
            (b"", 'm') => self.coloured = true,
            (b"", 'r') => self.margins = parameters.iter().any(|parameter| parameter != [0]),
            (b"", 'h') => self.standard.extend(numbers.filter(|mode| STANDARD.contains(mode))),
            (b"", 'l') => numbers.for_each(|mode| {
                self.standard.remove(&mode);
            }),
            _ => {}
        }
    }
}

impl Tracked {
    fn set(&mut self, mode: u16, on: bool) {
        let (list, changed) =
            if ON_IN_SHELL.contains(&mode) { (&mut self.off, !on) } else { (&mut self.on, on) };
        if changed && (OFF_IN_SHELL.contains(&mode) || ON_IN_SHELL.contains(&mode)) {
            list.insert(mode);
        } else {
            list.remove(&mode);
        }
    }

    fn undo(&self) -> Vec<u8> {
        let mut words = String::new();
        let mut say = |changed: bool, word: &str| {
            if changed {
                words.push_str(word);
            }
        };
        say(self.keyboard_pushed > 0, &format!("\x1b[<{}u", self.keyboard_pushed));
        say(self.keyboard_set, "\x1b[=0u");
        say(self.key_reporting, "\x1b[>4m");
        say(self.coloured, "\x1b[0m");
        say(self.hyperlink, "\x1b]8;;\x1b\\");
        say(self.line_drawing, "\x1b(B");
        say(self.shifted_out, "\x0f");
        say(self.keypad, "\x1b>");
        say(self.cursor_shape, "\x1b[0 q");
        // Setting the margins moves the cursor, so the cursor is saved and restored.
        say(self.margins, "\x1b7\x1b[r\x1b8");
        self.standard.iter().for_each(|mode| say(true, &format!("\x1b[{mode}l")));
        let (screens, others): (Vec<u16>, Vec<u16>) = self.on.iter().partition(|mode| is_screen(**mode));
        others.into_iter().chain(screens).for_each(|mode| say(true, &format!("\x1b[?{mode}l")));
        self.off.iter().for_each(|mode| say(true, &format!("\x1b[?{mode}h")));
        words.into_bytes()
    }
}

fn is_screen(mode: u16) -> bool {
    matches!(mode, 47 | 1047 | 1049)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn undo(output: &[u8]) -> String {
        let mut modes = Modes::default();
        modes.note(output);
        String::from_utf8(modes.undo()).expect("text")
    }

    #[test]
    fn undoes_exactly_the_modes_switched_on() {
        for (output, expected) in [
            (&b"plain text\r\n"[..], ""),
            (b"\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"),
            (b"\x1b[?1049h\x1b[?1000;1006hx\x1b[?1049l", "\x1b[?1000l\x1b[?1006l"),
            (b"\x1b[?25l\x1b[?25h", ""),
            (b"\x1b[1;31mred", "\x1b[0m"),
            (b"\x1b=\x1b[>1u", "\x1b[<1u\x1b>"),
            (b"\x1b[>1u\x1b[<u", ""),
            (b"\x1b[?7h\x1b[?99999999h", ""),
            (b"\x1b[?7l\x1b[?5h\x1b[?2026h", "\x1b[?5l\x1b[?2026l\x1b[?7h"),
            (b"\x1b[4h\x1b[20h\x1b[20l\x1b[2h", "\x1b[4l"),
            (b"\x1b[2;10r", "\x1b7\x1b[r\x1b8"),
            (b"\x1b[2;10r\x1b[r", ""),
            (b"\x1b[3 q\x1b[>4;2m\x1b[=5u", "\x1b[=0u\x1b[>4m\x1b[0 q"),
            (b"\x1b(0\x0eqqq", "\x1b(B\x0f"),
            (b"\x1b(0qqq\x1b(B\x0e\x0f", ""),
            (b"\x1b]8;;https://example.com\x1b\\a link that does not end", "\x1b]8;;\x1b\\"),
            (b"\x1b]80;x\x07", ""),
            (b"\x1b[?1049h\x1b[?1000h\x1b[1m\x1bcafresh", ""),
        ] {
            assert_eq!(undo(output), expected, "{:?}", String::from_utf8_lossy(output));
        }
    }

    proptest! {
        #[test]
        fn chunks_give_the_same_result_as_the_whole(output in "(\\x1b\\[\\?(1049|25|7|1000|2004)[hl]|\\x1b\\(0|\\x1b\\]8;|\\x1b\\[4h|x|\\x1b)*", cut in 0usize..64) {
            let output = output.as_bytes();
            let cut = cut.min(output.len());
            let mut pieces = Modes::default();
            pieces.note(&output[..cut]);
            pieces.note(&output[cut..]);
            prop_assert_eq!(String::from_utf8(pieces.undo()).expect("text"), undo(output));
        }

        #[test]
        fn memory_use_is_bounded(output in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut modes = Modes::default();
            modes.note(&output);
            prop_assert!(modes.tracked.on.len() <= OFF_IN_SHELL.len());
        }
    }
}
