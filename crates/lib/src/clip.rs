//! Keeps the beginning and the end of a program's output.

use std::collections::VecDeque;

/// Keeps at most `limit` bytes of a stream: one half from the beginning, and the other half from the end. A long build
/// usually prints its first steps at the beginning, and its messages and its result at the end.
#[derive(Debug, Default)]
pub struct Clip {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    bytes: u64,
    limit: usize,
}

impl Clip {
    /// Creates a clip that keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let begins = bytes.len().min(self.head_limit() - self.head.len());
        let (head, rest) = bytes.split_at(begins);
        self.head.extend_from_slice(head);
        let room = self.limit - self.head_limit();
        let rest = &rest[rest.len().saturating_sub(room)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(room);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    fn head_limit(&self) -> usize {
        self.limit / 2
    }

    /// The number of bytes of the whole stream.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of bytes between the kept beginning and the kept end.
    pub fn omitted(&self) -> u64 {
        self.bytes - (self.head.len() + self.tail.len()) as u64
    }

    /// Returns the kept bytes as text. A separate line says how many bytes are missing. Bytes that are not UTF-8 become
    /// U+FFFD. A character is left out if only some of its bytes were kept.
    pub fn text(&self) -> String {
        let (one, two) = self.tail.as_slices();
        let tail = [one, two].concat();
        if self.omitted() == 0 {
            return String::from_utf8_lossy(&[&self.head[..], &tail].concat()).into_owned();
        }
        let head = match std::str::from_utf8(&self.head) {
            Err(error) if error.error_len().is_none() => &self.head[..error.valid_up_to()],
            _ => &self.head[..],
        };
        let continued = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        format!(
            "{}\n[{} bytes omitted]\n{}",
            String::from_utf8_lossy(head),
            self.omitted(),
            String::from_utf8_lossy(&tail[continued..])
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clip(limit: usize, pieces: &[&[u8]]) -> Clip {
        let mut clip = Clip::new(limit);
        pieces.iter().for_each(|piece| clip.push(piece));
        clip
    }

    #[test]
    fn short_output_is_unchanged() {
        for text in ["", "one\n", "é日"] {
            let clip = clip(8, &[text.as_bytes()]);
            assert_eq!((clip.text().as_str(), clip.bytes(), clip.omitted()), (text, text.len() as u64, 0));
        }
        assert_eq!(clip(8, &[b"a\xffb"]).text(), "a\u{fffd}b");
        // A character that is split between two pieces stays whole.
        assert_eq!(clip(3, &["日".as_bytes()]).text(), "日");
    }

    #[test]
    fn the_middle_of_long_output_is_omitted() {
        assert_eq!(clip(4, &[b"abc", b"def", b"gh"]).text(), "ab\n[4 bytes omitted]\ngh");
        assert_eq!(clip(6, &["é日xyé日".as_bytes()]).text(), "é\n[6 bytes omitted]\n日");
        assert_eq!(clip(0, &[b"abc"]).text(), "\n[3 bytes omitted]\n");
    }

    proptest! {
        #[test]
        fn both_ends_are_kept(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12), limit in 0usize..64) {
            let whole = pieces.concat();
            let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let clip = clip(limit, &borrowed);
            let tail: Vec<u8> = clip.tail.iter().copied().collect();
            prop_assert!(whole.starts_with(&clip.head) && whole.ends_with(&tail));
            prop_assert_eq!(clip.head.len() + tail.len(), whole.len().min(limit));
            prop_assert_eq!(clip.bytes(), whole.len() as u64);
        }
    }
}
