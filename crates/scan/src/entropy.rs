//! Implements the `entropy` detector, which finds text that is random enough to be a key. The detector is off by
//! default, and its findings are warnings.

use std::ops::Range;

/// The size of a window, in bytes.
const WINDOW: usize = 64;
/// The distance between the starts of two windows, in bytes.
const STEP: usize = 32;

/// Returns the Shannon entropy of a text, in bits per byte. Returns 0 for an empty text.
pub(crate) fn bits_per_byte(text: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in text {
        counts[usize::from(*byte)] += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "texts are short")]
    let total = text.len() as f64;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / total)
        .map(|part| -part * part.log2())
        .sum()
}

/// Returns the entropy that random text in the alphabet of `window` reaches and that ordinary text does not reach. In
/// windows of 64 characters, random hexadecimal digits average 3.8 bits per character, random base64 5.2, random
/// printable ASCII 5.5, and random bytes 5.7. English text has 4.1 bits per character, and text with identifiers up to
/// 4.6. UTF-8 text in other scripts has at most 5.1 bits per byte.
fn threshold(window: &[u8]) -> f64 {
    let all = |fits: fn(&u8) -> bool| window.iter().all(fits);
    if all(u8::is_ascii_digit) {
        // A window that consists of decimal digits is never a key.
        f64::INFINITY
    } else if all(u8::is_ascii_hexdigit) {
        3.5
    } else if all(|byte| byte.is_ascii_alphanumeric() || b"+/=_-".contains(byte)) {
        4.8
    } else if all(|byte| matches!(byte, b' '..=b'~')) {
        5.2
    } else {
        5.5
    }
}

/// Returns the windows of `text` that are random enough to be a key. `base` is the offset of `text` in the stream.
/// Windows are aligned to offsets in the stream, so the result does not depend on how the stream is divided.
pub(crate) fn random_windows(text: &[u8], base: u64) -> impl Iterator<Item = Range<usize>> {
    let step = STEP as u64;
    let first = usize::try_from((step - base % step) % step).unwrap_or(0);
    (first..text.len()).step_by(STEP).filter_map(move |at| {
        let window = text.get(at..at + WINDOW)?;
        (bits_per_byte(window) >= threshold(window)).then_some(at..at + WINDOW)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_random_and_prose_is_not() {
        let mut state = 7_u64;
        let mut random = |alphabet: &[u8]| -> Vec<u8> {
            (0..256)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    alphabet[usize::try_from(state >> 40).expect("small") % alphabet.len()]
                })
                .collect()
        };
        let base64: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"+/").collect();
        assert!(random_windows(&random(b"0123456789abcdef"), 0).count() >= 6);
        assert!(random_windows(&random(&base64), 0).count() >= 6);
        assert_eq!(random_windows(&random(b"0123456789"), 0).count(), 0);
        let bytes: Vec<u8> = (0..=255).collect();
        assert!(random_windows(&random(&bytes), 0).count() >= 6);
        for text in [
            "Окна текста случайны для своего алфавита, а обычная проза такой никогда не бывает. ",
            "文本的窗口对其字母表来说是随机的，而这样的普通散文从来不是随机的，所以不会被报告。",
            "普通の文章はこのように無作為ではないため、検出器はそれを報告することはありません。",
        ] {
            assert_eq!(random_windows(text.repeat(4).as_bytes(), 0).count(), 0, "{text}");
        }
        let prose =
            "The windows of a text are random for their alphabet, and ordinary prose such as this never is. "
                .repeat(4);
        assert_eq!(random_windows(prose.as_bytes(), 0).count(), 0);
        let code =
            "pub_fn_random_windows_of_the_text_with_identifiers_that_are_long/and/paths/as/in/a/module"
                .repeat(4);
        assert_eq!(random_windows(code.as_bytes(), 0).count(), 0);
        assert!(bits_per_byte(b"").abs() < f64::EPSILON);
    }
}
