//! The state machine of the filter. The filter buffers only the sequence that it is currently parsing.
//!
//! The state machine is written by hand, because the crate `vte` drops APC strings, does not support 8-bit
//! controls, clamps large numbers and does not keep the raw bytes.

use super::string::{ControlString, Kind};
use super::{Pass, csi};

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;

/// Filters one stream of terminal output. The stream may be split at any byte: the output is the same.
///
/// ```
/// use bottle_text::terminal::{Filter, Pass};
///
/// let mut filter = Filter::new(Pass::default());
/// let mut shown = Vec::new();
/// filter.filter(b"\x1b[1mbold\x1b]52;c;c2VjcmV0", &mut shown);
/// filter.filter(b"\x07 text", &mut shown);
/// assert_eq!(shown, b"\x1b[1mbold text");
/// ```
#[derive(Debug)]
pub struct Filter {
    pass: Pass,
    state: State,
    /// The bytes of an incomplete UTF-8 character.
    partial: Partial,
}

#[derive(Debug)]
enum State {
    Ground,
    Escape,
    /// After `ESC` and one intermediate byte, which is the value. The value is `None` after more than one intermediate
    /// byte, because no allowed sequence has more than one.
    EscapeMiddle(Option<u8>),
    Csi(Vec<u8>),
    /// Inside a sequence that is too long. The filter drops the rest of the sequence.
    CsiDropped,
    String(ControlString),
    /// After `ESC` inside a string. The string's terminator or another sequence follows.
    StringEscape(ControlString),
}

#[derive(Debug, Default)]
struct Partial {
    bytes: [u8; 4],
    have: usize,
    need: usize,
}

/// The input to one step of the state machine.
#[derive(Debug, Clone, Copy)]
enum Unit<'a> {
    Ascii(u8),
    /// A C1 control (0x80 to 0x9f), encoded as one raw byte or as a UTF-8 character.
    C1(u8),
    /// A non-ASCII character, or the replacement character for invalid bytes.
    Text(&'a [u8]),
}

impl Filter {
    /// Creates a filter for the start of a stream.
    #[must_use]
    pub fn new(pass: Pass) -> Self {
        Self { pass, state: State::Ground, partial: Partial::default() }
    }

    /// Whether the input so far ends between two characters or sequences. Only then may the caller insert other output.
    #[must_use]
    pub fn is_between(&self) -> bool {
        matches!(self.state, State::Ground) && self.partial.have == 0
    }

    /// Appends the allowed part of `output` to `shown`.
    pub fn filter(&mut self, output: &[u8], shown: &mut Vec<u8>) {
        for &byte in output {
            self.byte(byte, shown);
        }
    }

    fn byte(&mut self, byte: u8, shown: &mut Vec<u8>) {
        if self.partial.need > 0 {
            if (0x80..=0xbf).contains(&byte) {
                self.continuation(byte, shown);
                return;
            }
            self.partial = Partial::default();
            self.invalid(shown);
        }
        match byte {
            0..=0x7f => self.step(Unit::Ascii(byte), shown),
            0x80..=0x9f => self.step(Unit::C1(byte), shown),
            0xc2..=0xdf => self.partial = Partial::start(byte, 2),
            0xe0..=0xef => self.partial = Partial::start(byte, 3),
            0xf0..=0xf4 => self.partial = Partial::start(byte, 4),
            _ => self.invalid(shown),
        }
    }

    fn continuation(&mut self, byte: u8, shown: &mut Vec<u8>) {
        if let Some(slot) = self.partial.bytes.get_mut(self.partial.have) {
            *slot = byte;
        }
        self.partial.have += 1;
        if self.partial.have < self.partial.need {
            return;
        }
        let Partial { bytes, have, .. } = std::mem::take(&mut self.partial);
        match bytes.get(..have).and_then(|bytes| std::str::from_utf8(bytes).ok()) {
            // Terminals treat the UTF-8 form of U+0080 to U+009F as a control character.
            Some(_) if have == 2 && bytes[0] == 0xc2 && bytes[1] < 0xa0 => {
                self.step(Unit::C1(bytes[1]), shown);
            }
            Some(character) => self.step(Unit::Text(character.as_bytes()), shown),
            None => self.invalid(shown),
        }
    }

    fn invalid(&mut self, shown: &mut Vec<u8>) {
        self.step(Unit::Text("\u{fffd}".as_bytes()), shown);
    }

    fn step(&mut self, unit: Unit<'_>, shown: &mut Vec<u8>) {
        self.state = match (std::mem::replace(&mut self.state, State::Ground), unit) {
            (state, Unit::C1(control)) => self.c1(state, control, shown),
            (State::Ground, Unit::Ascii(byte)) => ground(byte, shown),
            (
                State::Ground | State::Escape | State::EscapeMiddle(_) | State::Csi(_) | State::CsiDropped,
                Unit::Text(character),
            ) => {
                shown.extend_from_slice(character);
                State::Ground
            }
            (State::Escape, Unit::Ascii(byte)) => self.escape(byte, shown),
            (State::EscapeMiddle(middle), Unit::Ascii(byte)) => escape_middle(middle, byte, shown),
            (State::Csi(body), Unit::Ascii(byte)) => self.csi(body, byte, shown),
            (State::CsiDropped, Unit::Ascii(byte)) => csi_dropped(byte, shown),
            (State::String(mut string), Unit::Text(character)) => {
                string.push(character, self.pass, shown);
                State::String(string)
            }
            (State::String(string), Unit::Ascii(byte)) => self.string(string, byte, shown),
            (State::StringEscape(string), Unit::Ascii(b'\\')) => {
                string.end(self.pass, shown);
                State::Ground
            }
            (State::StringEscape(string), unit) => {
                string.abort(shown);
                self.state = State::Escape;
                return self.step(unit, shown);
            }
        };
    }

    /// Handles a C1 control. The string terminator ends a control string. Every other control aborts the current
    /// sequence and acts like its 7-bit form.
    fn c1(&mut self, before: State, control: u8, shown: &mut Vec<u8>) -> State {
        match before {
            State::String(string) if control == 0x9c => {
                string.end(self.pass, shown);
                return State::Ground;
            }
            State::String(string) | State::StringEscape(string) => string.abort(shown),
            _ => {}
        }
        self.escape(control - 0x40, shown)
    }

    /// Handles the byte after `ESC`.
    fn escape(&mut self, byte: u8, shown: &mut Vec<u8>) -> State {
        let string = |kind| State::String(ControlString::new(kind, self.pass));
        match byte {
            b'[' => State::Csi(Vec::new()),
            b']' => string(Kind::Osc),
            b'P' => string(Kind::Dcs),
            b'_' => string(Kind::Apc),
            b'X' | b'^' => string(Kind::Other),
            b'k' => string(Kind::Title),
            ESC => State::Escape,
            0x20..=0x2f => State::EscapeMiddle(Some(byte)),
            // Saving and restoring the cursor, keypad modes, index, next line, tab stop, reverse index, full reset.
            b'7' | b'8' | b'=' | b'>' | b'D' | b'E' | b'H' | b'M' | b'c' => {
                shown.extend_from_slice(&[ESC, byte]);
                State::Ground
            }
            CAN | SUB => State::Ground,
            0..=0x1f => {
                control(byte, shown);
                State::Escape
            }
            0x7f => State::Escape,
            _ => State::Ground,
        }
    }

    fn csi(&mut self, mut body: Vec<u8>, byte: u8, shown: &mut Vec<u8>) -> State {
        match byte {
            ESC => State::Escape,
            CAN | SUB => State::Ground,
            0..=0x1f => {
                control(byte, shown);
                State::Csi(body)
            }
            0x7f => State::Csi(body),
            _ if body.len() == csi::LONGEST => csi_dropped(byte, shown),
            0x20..=0x3f => {
                body.push(byte);
                State::Csi(body)
            }
            _ => {
                body.push(byte);
                if let Some(body) = csi::allowed_part(&body, self.pass) {
                    shown.extend_from_slice(b"\x1b[");
                    shown.extend_from_slice(&body);
                }
                State::Ground
            }
        }
    }

    fn string(&mut self, mut string: ControlString, byte: u8, shown: &mut Vec<u8>) -> State {
        match byte {
            ESC => State::StringEscape(string),
            BEL if string.ends_with_bell() => {
                string.end(self.pass, shown);
                State::Ground
            }
            CAN | SUB => {
                string.abort(shown);
                State::Ground
            }
            0..=0x1f | 0x7f => State::String(string),
            _ => {
                string.push(&[byte], self.pass, shown);
                State::String(string)
            }
        }
    }
}

impl Partial {
    fn start(byte: u8, need: usize) -> Self {
        Self { bytes: [byte, 0, 0, 0], have: 1, need }
    }
}

fn ground(byte: u8, shown: &mut Vec<u8>) -> State {
    match byte {
        ESC => return State::Escape,
        0x20..=0x7e => shown.push(byte),
        _ => control(byte, shown),
    }
    State::Ground
}

/// Forwards the bell, controls that move the cursor, and character set shifts. Drops all other controls, for example
/// flow control, and ENQ, which makes the terminal respond.
fn control(byte: u8, shown: &mut Vec<u8>) {
    if matches!(byte, BEL..=0x0f) {
        shown.push(byte);
    }
}

fn escape_middle(middle: Option<u8>, byte: u8, shown: &mut Vec<u8>) -> State {
    match byte {
        ESC => State::Escape,
        CAN | SUB => State::Ground,
        0..=0x1f => {
            control(byte, shown);
            State::EscapeMiddle(middle)
        }
        0x20..=0x2f => State::EscapeMiddle(None),
        0x7f => State::EscapeMiddle(middle),
        _ => {
            // Forwards the sequences for character sets, line sizes and the alignment pattern. Drops the sequences for
            // 8-bit responses (space) and for leaving UTF-8 (percent sign).
            if let Some(middle @ (b'('..=b'+' | b'-'..=b'/' | b'#')) = middle {
                shown.extend_from_slice(&[ESC, middle, byte]);
            }
            State::Ground
        }
    }
}

fn csi_dropped(byte: u8, shown: &mut Vec<u8>) -> State {
    match byte {
        ESC => State::Escape,
        CAN | SUB | 0x40..=0x7e => State::Ground,
        0..=0x1f => {
            control(byte, shown);
            State::CsiDropped
        }
        _ => State::CsiDropped,
    }
}
