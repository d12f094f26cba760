//! What a program switches on in a terminal, seen in its output, and how to switch it off again.
//!
//! An agent that is killed, or detached from, leaves the mouse reported, the cursor hidden or the
//! alternate screen shown. Only what was seen is undone: leaving an alternate screen that was never
//! entered would move the cursor.

use std::collections::BTreeSet;

/// Private modes that bother a shell when they stay on: cursor keys, mouse, focus, alternate screens,
/// pasting.
const BOTHERSOME: [u16; 13] = [1, 9, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004];

/// The cursor: the one mode that has to be on.
const CURSOR: u16 = 25;

/// Digits of one sequence that are looked at; no real one is longer.
const LONGEST: usize = 64;

/// What is on.
#[derive(Debug, Default)]
pub(crate) struct Modes {
    on: BTreeSet<u16>,
    cursor_hidden: bool,
    coloured: bool,
    keypad: bool,
    keyboard_pushed: u8,
    state: State,
}

/// Where in a sequence the last piece of output ended.
#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    Sequence(Vec<u8>),
}

impl Modes {
    /// Looks at a piece of output; sequences may be cut anywhere between pieces.
    pub(crate) fn note(&mut self, output: &[u8]) {
        for &byte in output {
            self.state = match std::mem::take(&mut self.state) {
                State::Text if byte == 0x1b => State::Escape,
                State::Text => State::Text,
                State::Escape => match byte {
                    b'[' => State::Sequence(Vec::new()),
                    0x1b => State::Escape,
                    b'=' | b'>' => {
                        self.keypad = byte == b'=';
                        State::Text
                    }
                    _ => State::Text,
                },
                State::Sequence(mut parameters) => match byte {
                    0x40..=0x7e => {
                        self.finish(&parameters, byte);
                        State::Text
                    }
                    0x1b => State::Escape,
                    0x20..=0x3f if parameters.len() < LONGEST => {
                        parameters.push(byte);
                        State::Sequence(parameters)
                    }
                    _ => State::Text,
                },
            };
        }
    }

    fn finish(&mut self, parameters: &[u8], last: u8) {
        match (parameters, last) {
            ([b'?', list @ ..], b'h' | b'l') => {
                for mode in list.split(|&byte| byte == b';').filter_map(number) {
                    self.set(mode, last == b'h');
                }
            }
            ([b'>', ..], b'u') => self.keyboard_pushed = self.keyboard_pushed.saturating_add(1),
            ([b'<', ..], b'u') => self.keyboard_pushed = self.keyboard_pushed.saturating_sub(1),
            (_, b'm') => self.coloured = true,
            _ => {}
        }
    }

    fn set(&mut self, mode: u16, on: bool) {
        if mode == CURSOR {
            self.cursor_hidden = !on;
        } else if on && BOTHERSOME.contains(&mode) {
            self.on.insert(mode);
        } else {
            self.on.remove(&mode);
        }
    }

    /// What a terminal has to be sent to be as before. The alternate screen is left last.
    pub(crate) fn undo(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.keyboard_pushed > 0 {
            bytes.extend_from_slice(format!("\x1b[<{}u", self.keyboard_pushed).as_bytes());
        }
        if self.coloured {
            bytes.extend_from_slice(b"\x1b[0m");
        }
        if self.keypad {
            bytes.extend_from_slice(b"\x1b>");
        }
        let (screens, others): (Vec<u16>, Vec<u16>) = self.on.iter().partition(|mode| is_screen(**mode));
        for mode in others.into_iter().chain(screens) {
            bytes.extend_from_slice(format!("\x1b[?{mode}l").as_bytes());
        }
        if self.cursor_hidden {
            bytes.extend_from_slice(b"\x1b[?25h");
        }
        bytes
    }
}

fn is_screen(mode: u16) -> bool {
    matches!(mode, 47 | 1047 | 1049)
}

fn number(digits: &[u8]) -> Option<u16> {
    std::str::from_utf8(digits).ok()?.parse().ok()
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
    fn what_was_switched_on_is_switched_off_and_nothing_else() {
        for (output, expected) in [
            (&b"plain text\r\n"[..], ""),
            (b"\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"),
            (b"\x1b[?1049h\x1b[?1000;1006hx\x1b[?1049l", "\x1b[?1000l\x1b[?1006l"),
            (b"\x1b[?25l\x1b[?25h", ""),
            (b"\x1b[1;31mred", "\x1b[0m"),
            (b"\x1b=\x1b[>1u", "\x1b[<1u\x1b>"),
            (b"\x1b[>1u\x1b[<u", ""),
            (b"\x1b[?7h\x1b[?99999999h", ""),
        ] {
            assert_eq!(undo(output), expected, "{:?}", String::from_utf8_lossy(output));
        }
    }

    proptest! {
        #[test]
        fn pieces_mean_the_same_as_the_whole(output in "(\\x1b\\[\\?(1049|25|1000|2004)[hl]|x|\\x1b)*", cut in 0usize..64) {
            let output = output.as_bytes();
            let cut = cut.min(output.len());
            let mut pieces = Modes::default();
            pieces.note(&output[..cut]);
            pieces.note(&output[cut..]);
            prop_assert_eq!(String::from_utf8(pieces.undo()).expect("text"), undo(output));
        }

        #[test]
        fn no_output_is_remembered_without_bound(output in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut modes = Modes::default();
            modes.note(&output);
            prop_assert!(modes.on.len() <= BOTHERSOME.len());
            if let State::Sequence(parameters) = &modes.state {
                prop_assert!(parameters.len() <= LONGEST);
            }
        }
    }
}
