//! A text's letters and digits in lower case, and the way back.

/// What a byte counts as: itself in lower case, or nothing.
const LOWER: [u8; 256] = {
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

/// Whether a byte after a backslash stands for a space of some kind, as in JSON.
fn is_escape(byte: u8) -> bool {
    matches!(byte, b'b' | b'f' | b'n' | b'r' | b't')
}

/// Letters and digits of a text.
pub(crate) struct Letters {
    pub(crate) bytes: Vec<u8>,
}

impl Letters {
    /// Those of `text` after `before`, which come from earlier text. The `n` of `\n` is none.
    pub(crate) fn of(before: &[u8], text: &[u8]) -> Self {
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

/// The places in `text` of those of its letters and digits that have these numbers; `numbers` ascend.
pub(crate) fn places(text: &[u8], numbers: &[usize]) -> Vec<usize> {
    let (mut count, mut escape) = (0, false);
    let mut places = Vec::with_capacity(numbers.len());
    for (place, byte) in text.iter().enumerate() {
        let letter = LOWER[usize::from(*byte)] != 0 && !(escape && is_escape(*byte));
        escape = *byte == b'\\' && !escape;
        if letter {
            while numbers.get(places.len()) == Some(&count) {
                places.push(place);
            }
            count += 1;
        }
        if places.len() == numbers.len() {
            break;
        }
    }
    places
}

/// The last `most` letters and digits of `text` with their places, in order.
pub(crate) fn last(text: &[u8], most: usize) -> Vec<(u8, usize)> {
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
    fn letters_are_what_is_left() {
        assert_eq!(Letters::of(b"ab", br#"-C.d\n1\\x "#).bytes, b"abcd1x");
    }

    proptest! {
        #[test]
        fn forwards_and_backwards_agree(text in "[a-cnX1\\\\ .é]{0,40}", most in 0_usize..12) {
            let letters = Letters::of(b"", text.as_bytes()).bytes;
            let numbers: Vec<usize> = (letters.len().saturating_sub(most)..letters.len()).collect();
            let forwards = places(text.as_bytes(), &numbers);
            let backwards = last(text.as_bytes(), most);
            prop_assert_eq!(forwards, backwards.iter().map(|(_, place)| *place).collect::<Vec<_>>());
            prop_assert!(letters.ends_with(&backwards.iter().map(|(letter, _)| *letter).collect::<Vec<_>>()));
        }
    }
}
