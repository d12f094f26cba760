//! Reads the compressed bitmaps of a split index (git's `technical/bitmap-format`, "Serialization format for an EWAH
//! bitmap").
//!
//! ```text
//!  number of bits (4 bytes) · number of words (4) · words (8 each) · place of the last marker (4)
//!  marker: the repeated bit (1 bit) · how many words repeat it (32) · how many words with bits follow (31)
//! ```

use super::{IndexError, Rest};

/// The number of bits of a word.
const WORD: usize = 64;

/// Decompresses a bitmap for `count` entries.
///
/// # Errors
/// Returns [`IndexError::Malformed`], also if the bitmap has a bit for an entry that does not exist.
pub(super) fn bits(rest: &mut Rest<'_>, count: usize) -> Result<Vec<bool>, IndexError> {
    let malformed = || IndexError::Malformed;
    let _ = rest.u32()?;
    let words = usize::try_from(rest.u32()?).map_err(|_| IndexError::Malformed)?;
    let mut words = Rest(rest.take(words.checked_mul(8).ok_or_else(malformed)?)?);
    let _ = rest.u32()?;
    let mut bits = vec![false; count];
    let mut at = 0_usize;
    while !words.0.is_empty() {
        let marker = words.u64()?;
        let repeated = usize::try_from(marker >> 1 & 0xffff_ffff).map_err(|_| IndexError::Malformed)?;
        let end = repeated.checked_mul(WORD).and_then(|more| at.checked_add(more)).ok_or_else(malformed)?;
        if marker & 1 == 1 {
            bits.get_mut(at..end).ok_or_else(malformed)?.fill(true);
        }
        at = end;
        for _ in 0..marker >> 33 {
            let word = words.u64()?;
            let set = (0..WORD).filter(|bit| word >> bit & 1 == 1);
            for bit in set {
                *at.checked_add(bit).and_then(|at| bits.get_mut(at)).ok_or_else(malformed)? = true;
            }
            at = at.checked_add(WORD).ok_or_else(malformed)?;
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(words: &[u64]) -> Vec<u8> {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        [&[0, 0, 0, 9], &u32::try_from(words.len() / 8).expect("few").to_be_bytes()[..], &words, &[0; 4]]
            .concat()
    }

    /// Returns the positions of the set bits among `count` entries.
    fn set(bytes: &[u8], count: usize) -> Option<Vec<usize>> {
        let bits = bits(&mut Rest(bytes), count).ok()?;
        Some((0..count).filter(|at| bits[*at]).collect())
    }

    #[test]
    fn reads_repeated_and_single_bits() {
        const REPEATS: u64 = 1 << 1;
        const FOLLOWS: u64 = 1 << 33;
        for (words, count, expected) in [
            (&[][..], 3, Some(vec![])),
            (&[FOLLOWS, 0b101], 3, Some(vec![0, 2])),
            (&[REPEATS + FOLLOWS, 1], 65, Some(vec![64])),
            (&[1 + REPEATS], 64, Some((0..64).collect())),
            (&[2 * FOLLOWS, 1, 2], 66, Some(vec![0, 65])),
            (&[FOLLOWS, 1, FOLLOWS, 1], 65, Some(vec![0, 64])),
            // A bitmap with a bit that has no entry, and bitmaps in which a word is missing.
            (&[FOLLOWS, 0b1000], 3, None),
            (&[1 + REPEATS], 63, None),
            (&[2 * FOLLOWS, 1], 128, None),
            // A long run of zeros needs neither memory nor much time.
            (&[u64::MAX >> 31 & !1], 3, Some(vec![])),
            (&[u64::MAX >> 31], 3, None),
        ] {
            assert_eq!(set(&encoded(words), count), expected, "{words:x?}");
        }
    }

    #[test]
    fn refuses_what_is_cut_off() {
        let bytes = encoded(&[1 << 33, 1]);
        for length in 0..bytes.len() {
            assert_eq!(set(&bytes[..length], 8), None, "{length}");
        }
    }
}
