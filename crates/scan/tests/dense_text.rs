//! Tests that the cost of dense text stays linear, also where the scanner can skip none of the decoded data.

mod clock;

use std::sync::Arc;

use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecrets, Scanner};
use clock::cpu_time;

fn scanner() -> Scanner {
    let secrets =
        ["q7Kd93vXwpT2mB8ySe4Lh5Rf0NcZu6Jt1Gy", "kW3-pQ8z"].map(|text| Secret::new(text.to_owned()));
    Scanner::outbound(Arc::new(KnownSecrets::new(&secrets).expect("secrets")))
}

/// Returns `length` characters of `alphabet` in a random order.
fn random(alphabet: &str, length: usize) -> String {
    let alphabet = alphabet.as_bytes();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(alphabet[usize::try_from(state >> 33).expect("small") % alphabet.len()])
    };
    (0..length).map(letter).collect()
}

#[test]
fn dense_text_has_linear_cost() {
    let scanner = scanner();
    for (name, alphabet) in [
        ("base64 that is ASCII at each alignment", "ABEFQRUV"),
        ("hexadecimal that is ASCII at each alignment", "01234567"),
        ("base64 of zero bytes", "A"),
        ("headers of zlib", "eJ"),
        ("backslashes and letters", "\\nA"),
        (
            "base32 and few backslashes",
            "ABCDEFGHIJKLMNOPQRSTUVABCDEFGHIJKLMNOPQRSTUVABCDEFGHIJKLMNOPQRSTUV\\",
        ),
        ("backslashes before a digit of base32", "\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\A2"),
        ("base32 and punctuation", "AB2 ,.;-"),
        ("short rows of base32", "ABCDEFGHIJKLMNOPQRSTUVWXYZ2345670"),
        ("base85", "0123456789ABCDEFGHIJabcdefghij!#$%&()*+;<=>?@^_`"),
        ("base85 of zero bytes", "0!"),
        ("short rows of base85", "0123456789!#$%&()*~{|}[];_vwxyz\n"),
    ] {
        let cost = |length: usize| {
            let text = random(alphabet, length);
            let start = cpu_time();
            let _ = scanner.scan(text.as_bytes());
            (cpu_time() - start).as_secs_f64()
        };
        // A text that is four times as long must cost about four times as much. Both texts fit into one window, which is
        // decoded as a whole.
        let (short, long) = (cost(16 << 10), cost(64 << 10));
        assert!(long < 9.0 * short, "{name}: {short} s, {long} s");
    }
}
