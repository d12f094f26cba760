//! Recognizes the detach keys in typed input.

/// Searches the keyboard input of the user for the detach keys.
#[derive(Debug)]
pub(crate) struct Detach {
    keys: Vec<u8>,
    /// Typed bytes that match the start of the detach keys, buffered until the next byte decides.
    buffered: Vec<u8>,
}

impl Detach {
    /// Creates a search for these keys. An empty sequence never matches.
    pub(crate) fn new(keys: &[u8]) -> Self {
        Self { keys: keys.to_owned(), buffered: Vec::new() }
    }

    /// Processes typed bytes. Returns the bytes to forward, and whether the detach keys were typed
    /// completely. Bytes after the detach keys are dropped.
    pub(crate) fn feed(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        if self.keys.is_empty() {
            return (typed.to_owned(), false);
        }
        let mut passed = Vec::with_capacity(typed.len());
        for &byte in typed {
            self.buffered.push(byte);
            while !self.keys.starts_with(&self.buffered) {
                passed.push(self.buffered.remove(0));
            }
            if self.buffered.len() == self.keys.len() {
                self.buffered.clear();
                return (passed, true);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_the_keys_across_chunks_and_forwards_the_rest() {
        let mut detach = Detach::new(&[0x1d, b'd']);
        assert_eq!(detach.feed(b"abc"), (b"abc".to_vec(), false));
        assert_eq!(detach.feed(&[0x1d]), (vec![], false));
        assert_eq!(detach.feed(b"x"), (vec![0x1d, b'x'], false));
        assert_eq!(detach.feed(&[0x1d, 0x1d]), (vec![0x1d], false));
        assert_eq!(detach.feed(b"drest"), (vec![], true));
    }

    #[test]
    fn finds_keys_with_a_repeated_prefix() {
        assert_eq!(Detach::new(b"aab").feed(b"aaab"), (b"a".to_vec(), true));
        assert_eq!(Detach::new(b"").feed(b"\x1dd"), (b"\x1dd".to_vec(), false));
    }

    proptest! {
        #[test]
        fn forwards_all_bytes_unchanged(keys in "[ab]{1,4}", typed in "[abc]{0,40}", cut in 0usize..40) {
            let mut detach = Detach::new(keys.as_bytes());
            let cut = cut.min(typed.len());
            let (mut seen, mut found) = detach.feed(&typed.as_bytes()[..cut]);
            if !found {
                let (rest, later) = detach.feed(&typed.as_bytes()[cut..]);
                seen.extend(rest);
                found = later;
            }
            let found_at = typed.find(&keys);
            prop_assert_eq!(found, found_at.is_some());
            match found_at {
                Some(at) => prop_assert_eq!(seen, &typed.as_bytes()[..at]),
                None => {
                    seen.extend(&detach.buffered);
                    prop_assert_eq!(seen, typed.as_bytes());
                }
            }
        }
    }
}
