//! Fuzzes the scanner. Its findings must not depend on how the text is divided into chunks.
#![no_main]

use std::sync::{Arc, LazyLock};

use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecrets, Scanner};

static SCANNER: LazyLock<Scanner> = LazyLock::new(|| {
    let secret = Secret::new("Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc".to_owned());
    let known = KnownSecrets::new([&secret]).expect("secrets");
    Scanner::outbound(Arc::new(known)).with_entropy(true)
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((cut, text)) = bytes.split_first() else { return };
    let whole = SCANNER.scan(text).findings;
    let mut stream = SCANNER.stream();
    for piece in text.chunks(usize::from(*cut) + 1) {
        stream.feed(piece);
    }
    assert_eq!(stream.finish().findings, whole);
});
