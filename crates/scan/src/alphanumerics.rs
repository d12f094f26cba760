//! Extracts the letters and digits of a text in lower case, and maps them back to their positions.

/// Maps an ASCII letter to lower case, a digit to itself, and any other byte to 0.
static LOWER: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let letter = byte as u8;
        if letter.is_ascii_alphanumeric() {
            table[byte] = letter.to_ascii_lowercase();
        }
        byte += 1;
    }
    table
};

/// Returns whether a backslash and this byte are the escape of a control character, such as `\n` in JSON.
fn is_escape(byte: u8) -> bool {
    matches!(byte, b'b' | b'f' | b'n' | b'r' | b't')
}

/// The letters and digits of a text, in lower case.
pub(crate) struct Letters {
    pub(crate) bytes: Vec<u8>,
}

impl Letters {
    /// Collects the letters and digits of `text`, and prepends `before`. `before` contains the letters and digits of
    /// the preceding text. The `n` of an escape such as `\n` is left out.
    pub(crate) fn new(before: &[u8], text: &[u8]) -> Self {
        let mut bytes = vec![0; before.len() + text.len() + 1];
        bytes[..before.len()].copy_from_slice(before);
        let (mut length, mut rest) = (before.len(), text);
        loop {
            let (run, tail) = rest.split_at(memchr::memchr(b'\\', rest).unwrap_or(rest.len()));
            for byte in run {
                let letter = LOWER[usize::from(*byte)];
                bytes[length] = letter;
                length += usize::from(letter != 0);
            }
            rest = match tail {
                [] => break,
                [_, next, after @ ..] if *next == b'\\' || is_escape(*next) => after,
                [_, after @ ..] => after,
            };
        }
        bytes.truncate(length);
        Self { bytes }
    }
}

/// Returns the positions in `text` of some of its letters and digits. The letters and digits of `text` are numbered
/// from 0. `numbers` contains the numbers of the wanted letters and digits, in ascending order.
pub(crate) fn positions(text: &[u8], numbers: &[usize]) -> Vec<usize> {
    let (mut count, mut escape) = (0, false);
    let mut positions = Vec::with_capacity(numbers.len());
    for (place, byte) in text.iter().enumerate() {
        let letter = LOWER[usize::from(*byte)] != 0 && !(escape && is_escape(*byte));
        escape = *byte == b'\\' && !escape;
        if letter {
            while numbers.get(positions.len()) == Some(&count) {
                positions.push(place);
            }
            count += 1;
        }
        if positions.len() == numbers.len() {
            break;
        }
    }
    positions
}

/// Returns the last letters and digits of `text` with their positions, in the order of the text. Returns at most `most`
/// of them.
pub(crate) fn last_letters(text: &[u8], most: usize) -> Vec<(u8, usize)> {
    let slashes = |place: usize| text[..place].iter().rev().take_while(|byte| **byte == b'\\').count();
    let mut found: Vec<(u8, usize)> = (0..text.len())
        .rev()
        .filter(|place| LOWER[usize::from(text[*place])] != 0)
        .filter(|place| !is_escape(text[*place]) || slashes(*place) % 2 == 0)
        .take(most)
        .map(|place| (LOWER[usize::from(text[place])], place))
        .collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keeps_letters_and_digits_only() {
        assert_eq!(Letters::new(b"ab", br#"-C.d\n1\\x "#).bytes, b"abcd1x");
    }

    proptest! {
        #[test]
        fn forwards_and_backwards_agree(text in "[a-cnX1\\\\ .é]{0,40}", most in 0_usize..12) {
            let letters = Letters::new(b"", text.as_bytes()).bytes;
            let numbers: Vec<usize> = (letters.len().saturating_sub(most)..letters.len()).collect();
            let forwards = positions(text.as_bytes(), &numbers);
            let backwards = last_letters(text.as_bytes(), most);
            prop_assert_eq!(forwards, backwards.iter().map(|(_, place)| *place).collect::<Vec<_>>());
            prop_assert!(letters.ends_with(&backwards.iter().map(|(letter, _)| *letter).collect::<Vec<_>>()));
        }
    }
}
