//! Finds the key sequences for the client in typed input: the sequence that detaches, and the sequence that shows
//! proposals.

/// What the user asked the client to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientKey {
    /// Detach from the session.
    Detach,
    /// Show the proposals.
    Proposals,
}

/// Searches the keyboard input of the user for the keys of the client.
#[derive(Debug, Clone)]
pub(crate) struct Detach {
    /// The key sequences. No sequence is the start of another one.
    keys: Vec<(Vec<u8>, ClientKey)>,
    /// Typed bytes that match the start of a sequence. They are buffered until further bytes show whether the sequence
    /// is complete.
    buffered: Vec<u8>,
}

/// The possible last keys of the sequence that shows proposals. This sequence consists of the detach keys, with another
/// last key. The second value is used if the detach keys end with the first value.
const PROPOSALS: [u8; 2] = [b's', b'q'];

impl Detach {
    /// Creates a search for these keys. An empty sequence never matches.
    pub(crate) fn new(keys: &[u8]) -> Self {
        let keys = if keys.is_empty() { Vec::new() } else { vec![(keys.to_owned(), ClientKey::Detach)] };
        Self { keys, buffered: Vec::new() }
    }

    /// Also searches for the keys that show proposals: the detach keys with `s` as the last key, or with `q` if the
    /// last detach key is `s`. If the detach keys are a single byte, no keys show proposals.
    pub(crate) fn with_proposals(mut self) -> Self {
        if let Some((keys, _)) = self.keys.first().filter(|(keys, _)| keys.len() > 1) {
            let mut keys = keys.clone();
            let last = keys.pop();
            keys.extend(PROPOSALS.into_iter().find(|key| Some(*key) != last));
            self.keys.push((keys, ClientKey::Proposals));
        }
        self
    }

    /// Processes typed bytes. Returns the bytes to forward, and the key sequence of the client that was typed
    /// completely, if any. Bytes after this sequence are dropped.
    pub(crate) fn feed(&mut self, typed: &[u8]) -> (Vec<u8>, Option<ClientKey>) {
        if self.keys.is_empty() {
            return (typed.to_owned(), None);
        }
        let mut passed = Vec::with_capacity(typed.len());
        for &byte in typed {
            self.buffered.push(byte);
            while !self.keys.iter().any(|(keys, _)| keys.starts_with(&self.buffered)) {
                passed.push(self.buffered.remove(0));
            }
            if let Some((_, key)) = self.keys.iter().find(|(keys, _)| *keys == self.buffered) {
                self.buffered.clear();
                return (passed, Some(*key));
            }
        }
        (passed, None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_the_keys_across_chunks_and_forwards_the_rest() {
        let mut detach = Detach::new(&[0x1d, b'd']);
        assert_eq!(detach.feed(b"abc"), (b"abc".to_vec(), None));
        assert_eq!(detach.feed(&[0x1d]), (vec![], None));
        assert_eq!(detach.feed(b"x"), (vec![0x1d, b'x'], None));
        assert_eq!(detach.feed(&[0x1d, 0x1d]), (vec![0x1d], None));
        assert_eq!(detach.feed(b"drest"), (vec![], Some(ClientKey::Detach)));
        assert_eq!(detach.feed(&[0x1d, b's']), (vec![0x1d, b's'], None));
    }

    #[test]
    fn finds_the_keys_that_show_proposals() {
        let mut keys = Detach::new(&[0x1d, b'd']).with_proposals();
        assert_eq!(keys.feed(&[b'a', 0x1d]), (b"a".to_vec(), None));
        assert_eq!(keys.feed(b"s"), (vec![], Some(ClientKey::Proposals)));
        assert_eq!(keys.feed(&[0x1d, b'd']), (vec![], Some(ClientKey::Detach)));
        let mut keys = Detach::new(&[0x10, b's']).with_proposals();
        assert_eq!(keys.feed(&[0x10, b's']), (vec![], Some(ClientKey::Detach)));
        assert_eq!(keys.feed(&[0x10, b'q']), (vec![], Some(ClientKey::Proposals)));
        assert_eq!(Detach::new(&[0x1d]).with_proposals().feed(b"s"), (b"s".to_vec(), None));
        assert_eq!(Detach::new(&[]).with_proposals().feed(b"s"), (b"s".to_vec(), None));
    }

    #[test]
    fn finds_keys_with_a_repeated_prefix() {
        assert_eq!(Detach::new(b"aab").feed(b"aaab"), (b"a".to_vec(), Some(ClientKey::Detach)));
        assert_eq!(Detach::new(b"").feed(b"\x1dd"), (b"\x1dd".to_vec(), None));
    }

    proptest! {
        #[test]
        fn forwards_all_bytes_unchanged(keys in "[ab]{1,4}", typed in "[abc]{0,40}", cut in 0usize..40) {
            let mut detach = Detach::new(keys.as_bytes());
            let cut = cut.min(typed.len());
            let (mut seen, mut found) = detach.feed(&typed.as_bytes()[..cut]);
            if found.is_none() {
                let (rest, later) = detach.feed(&typed.as_bytes()[cut..]);
                seen.extend(rest);
                found = later;
            }
            let found_at = typed.find(&keys);
            prop_assert_eq!(found.is_some(), found_at.is_some());
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
