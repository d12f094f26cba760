//! The allowlist of control sequences (`ESC [ … final`). The list contains only sequences that draw, and sequences that
//! set how keys, clicks and pastes are reported to the running program.
//!
//! Deliberately excluded are all queries (`c`, `n`, `x`, `$p`, `*y`, `>q`, `?u` …), window operations and
//! their reports (`t`), printing (`i`), locking the keyboard (mode 2), and switching the terminal to 8-bit
//! responses or to another width.

use super::Pass;

/// The longest accepted sequence, in bytes after `ESC [`. A longer sequence is dropped. A complete SGR sequence with
/// three true colours has fewer than a hundred bytes.
pub(super) const LONGEST: usize = 256;

/// The largest accepted number in a sequence. A sequence with a larger number is dropped, because such numbers have
/// crashed terminals.
const LARGEST: u32 = 65_535;

/// DEC private modes that change drawing, or how keys, clicks and pastes are reported to the running program.
const PRIVATE_MODES: [u32; 35] = [
    1, 5, 6, 7, 9, 12, 25, 45, 47, 66, 67, 69, 80, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015,
    1016, 1034, 1035, 1036, 1039, 1045, 1047, 1048, 1049, 2004, 2026, 2027, 2031,
];

/// Standard modes: insertion, and line feed with carriage return.
const MODES: [u32; 2] = [4, 20];

/// Returns the part of a sequence that the filter forwards, or `None` if the filter drops the whole sequence. `body` is
/// everything after `ESC [`, including the final byte.
pub(super) fn allowed_part(body: &[u8], pass: Pass) -> Option<Vec<u8>> {
    let (final_byte, rest) = body.split_last()?;
    let (marker, rest) = match rest.split_first() {
        Some((marker @ b'<'..=b'?', rest)) => (Some(*marker), rest),
        _ => (None, rest),
    };
    let middle = rest.iter().position(|byte| (0x20..=0x2f).contains(byte)).unwrap_or(rest.len());
    let (parameters, intermediates) = rest.split_at(middle);
    let plain = parameters.iter().all(|byte| byte.is_ascii_digit() || *byte == b';');
    let numbers = numbers(parameters)?;
    let unchanged = || Some(body.to_vec());
    match (marker, intermediates, *final_byte) {
        // Colours. Only this sequence may contain colons.
        (None, b"", b'm') => unchanged(),
        _ if !plain => None,
        // Cursor movement, erasing, inserting, scrolling, tabs, margins, repeating, saving the cursor.
        (None, b"", b'@' | b'A'..=b'M' | b'P' | b'S' | b'T' | b'X' | b'Z' | b'`' | b'a' | b'b') => {
            unchanged()
        }
        (None, b"", b'd' | b'e' | b'f' | b'g' | b'r' | b's' | b'u') => unchanged(),
        (None, b"", b'h' | b'l') => modes(None, &numbers, &MODES, *final_byte),
        // Saving and restoring the title.
        (None, b"", b't') if pass.title && matches!(numbers.first(), Some(22 | 23)) => unchanged(),
        // Cursor shape, protected characters, soft reset.
        (None, b" ", b'q') | (None, b"\"", b'q') | (None, b"!", b'p') => unchanged(),
        (Some(b'?'), b"", b'h' | b'l') => modes(marker, &numbers, &PRIVATE_MODES, *final_byte),
        (Some(b'?'), b"", b'J' | b'K') => unchanged(),
        // Key reporting: xterm's modifiers and Kitty's levels. The sequences that query these settings contain a `?`,
        // so this pattern does not match them.
        (Some(b'>'), b"", b'm' | b'n' | b'u') | (Some(b'<' | b'='), b"", b'u') => unchanged(),
        _ => None,
    }
}

/// Returns the parameters as numbers. A missing parameter is 0. Returns `None` if a parameter is too large or not a
/// number.
fn numbers(parameters: &[u8]) -> Option<Vec<u32>> {
    parameters
        .split(|byte| matches!(byte, b';' | b':'))
        .map(|digits| match digits {
            [] => Some(0),
            digits => std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number <= LARGEST),
        })
        .collect()
}

/// Returns the mode sequence without the modes that `list` does not contain. Returns `None` if no mode remains.
fn modes(marker: Option<u8>, numbers: &[u32], list: &[u32], final_byte: u8) -> Option<Vec<u8>> {
    let kept: Vec<String> =
        numbers.iter().filter(|mode| list.contains(mode)).map(ToString::to_string).collect();
    if kept.is_empty() {
        return None;
    }
    let mut body: Vec<u8> = marker.into_iter().collect();
    body.extend_from_slice(kept.join(";").as_bytes());
    body.push(final_byte);
    Some(body)
}
