//! Finds the keys of rules in a text. A key is a fixed string, and every match of a rule contains one of the rule's
//! keys. Case is ignored. A space in the key of a phrase matches anything that separates two words.
//!
//! A bitmap of 16 KiB rejects nearly every position of a text with one lookup. At the remaining positions, a hash table
//! gives the keys, and the text is compared with the complete keys. Both tables are small, because for most texts they
//! are not in the processor's caches when a scan begins.

use crate::prefilter::ascii_set;
use crate::words;

/// The number of bytes of each key that the bitmap contains.
const PIECE: usize = 4;
const BITS: u32 = 17;
/// The number of bits of a hash that select the bucket of an entry.
const BUCKET_BITS: u32 = 10;
/// A mask that sets the case bit of ASCII letters, so that upper and lower case are equal. Some other characters become
/// equal too. The comparison with the complete key distinguishes these characters.
const FOLD: u32 = 0x2020_2020;

/// The number of positions that are read together.
const BLOCK: usize = 64 - PIECE + 1;

/// The kind of rules that a search index covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Tokens,
    Phrases,
}

/// The search index over the keys of all rules.
pub(super) struct Filter {
    kind: Keys,
    bits: Box<[u64; 1 << (BITS - 6)]>,
    /// The end of each bucket in `entries`.
    ends: Box<[u32; 1 << BUCKET_BITS]>,
    /// The entries, sorted by bucket.
    entries: Vec<Entry>,
    keys: Vec<Box<[u8]>>,
}

/// A piece of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    piece: u32,
    /// The index of the key.
    key: u32,
    /// The offset of the piece in the key.
    offset: u32,
}

impl Filter {
    pub(super) fn new<'k>(kind: Keys, keys: impl IntoIterator<Item = &'k [u8]>) -> Self {
        let (mut entries, mut all) = (Vec::new(), Vec::new());
        for (key, number) in keys.into_iter().zip(0..) {
            let part = indexed_part(kind, key);
            let mut add = |piece, offset| entries.push(Entry { piece: fold(piece), key: number, offset });
            if let [first, second, third] = *part {
                let next = (0..=u8::MAX).filter(|byte| may_follow(kind, *byte) && !byte.is_ascii_uppercase());
                next.for_each(|next| add([first, second, third, next], 0));
            } else if let Some((piece, offset)) = rarest(part) {
                add(piece, offset);
            }
            all.push(key.into());
        }
        entries.sort_unstable_by_key(|entry| (bucket(hash(entry.piece)), *entry));
        entries.dedup();
        let (mut bits, mut ends) = (Box::new([0; 1 << (BITS - 6)]), Box::new([0; 1 << BUCKET_BITS]));
        for (entry, end) in entries.iter().zip(1..) {
            let hash = hash(entry.piece);
            let place = place(hash);
            bits[place / 64] |= 1 << (place % 64);
            ends[bucket(hash)..].fill(end);
        }
        Self { kind, bits, ends, entries, keys: all }
    }

    /// Returns whether `text` begins with `key`.
    fn matches(&self, text: &[u8], key: &[u8]) -> bool {
        match self.kind {
            Keys::Tokens => text.get(..key.len()).is_some_and(|there| there.eq_ignore_ascii_case(key)),
            Keys::Phrases => words::prefix(text, key).is_some(),
        }
    }

    /// Calls `found(key, position)` for every key in `text`. The calls are ordered by the position of the piece that is
    /// in the index.
    pub(super) fn each(&self, text: &[u8], mut found: impl FnMut(usize, usize)) {
        let mut probe = |at: usize, piece: u32| {
            let hash = hash(piece);
            let place = place(hash);
            if self.bits[place / 64] >> (place % 64) & 1 == 1 {
                self.report_matches(text, at, piece, &mut found);
            }
        };
        let mut all = |start: usize, part: &[u8]| {
            for (at, window) in part.windows(PIECE).enumerate() {
                probe(start + at, fold(window.try_into().unwrap_or_default()));
            }
        };
        if matches!(self.kind, Keys::Phrases) || text.is_ascii() {
            return all(0, text);
        }
        for start in (0..text.len()).step_by(BLOCK) {
            let block = &text[start..text.len().min(start + BLOCK + PIECE - 1)];
            if block.is_ascii() {
                all(start, block);
            } else {
                // The keys of tokens are ASCII, so most positions of binary data are skipped.
                each_ascii(block, |at| all(start + at, &block[at..at + PIECE]));
            }
        }
    }

    #[cold]
    fn report_matches(&self, text: &[u8], at: usize, piece: u32, found: &mut impl FnMut(usize, usize)) {
        let bucket = bucket(hash(piece));
        let start = bucket.checked_sub(1).map_or(0, |before| self.ends[before]);
        let entries = self.entries.get(start as usize..self.ends[bucket] as usize).unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry.piece == piece) {
            let number = entry.key as usize;
            if let Some(start) = at.checked_sub(entry.offset as usize)
                && self.matches(&text[start..], &self.keys[number])
            {
                found(number, start);
            }
        }
    }
}

/// Calls `found` with the position of each piece of `block` that consists of ASCII characters.
fn each_ascii(block: &[u8], mut found: impl FnMut(usize)) {
    let mut starts = ascii_set(block);
    starts &= starts >> 1;
    starts &= starts >> 2;
    while starts != 0 {
        found(starts.trailing_zeros() as usize);
        starts &= starts - 1;
    }
}

/// Returns the part of a key from which the indexed piece is taken. For a phrase, this part is the first word, because
/// anything may separate the first word from the second.
fn indexed_part(kind: Keys, key: &[u8]) -> &[u8] {
    let end = key.iter().position(|byte| matches!(byte, b' ' | b'\''));
    match (kind, end) {
        (Keys::Phrases, Some(end)) => &key[..end],
        _ => key,
    }
}

/// Returns whether `byte` may follow an indexed part of three bytes. In a token, any visible character may follow. In a
/// phrase, the start of a gap may follow too.
fn may_follow(kind: Keys, byte: u8) -> bool {
    byte.is_ascii_graphic() || kind == Keys::Phrases && words::begins_gap(byte)
}

fn fold(piece: [u8; PIECE]) -> u32 {
    u32::from_le_bytes(piece) | FOLD
}

fn hash(piece: u32) -> u64 {
    u64::from(piece).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn place(hash: u64) -> usize {
    (hash >> (64 - BITS)) as usize
}

fn bucket(hash: u64) -> usize {
    (hash >> (64 - BUCKET_BITS)) as usize
}

/// Returns the piece of a key that is rarest in ordinary text, and its offset in the key.
fn rarest(key: &[u8]) -> Option<([u8; PIECE], u32)> {
    let rare = |byte: &u8| match byte.to_ascii_lowercase() {
        b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b's' | b'r' | b' ' | b'/' | b':' | b'"' => 0,
        b'l' | b'd' | b'c' | b'u' | b'm' | b'p' | b'h' | b'-' | b'.' | b'=' => 1,
        b'g' | b'b' | b'f' | b'y' | b'w' | b'k' | b'v' | b'0'..=b'9' => 2,
        _ => 3,
    };
    key.windows(PIECE)
        .zip(0..)
        .max_by_key(|(window, at)| (window.iter().map(rare).sum::<u32>(), std::cmp::Reverse(*at)))
        .and_then(|(window, at)| Some((window.try_into().ok()?, at)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_each_key_in_binary_data(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..90), 0_usize..4), 0..6),
        ) {
            const KEYS: [&[u8]; 4] = [b"eyJ", b"sk-ant-", b"PRIVATE KEY", b"://"];
            let filter = Filter::new(Keys::Tokens, KEYS);
            let mut text = Vec::new();
            let mut expected = Vec::new();
            for (noise, key) in parts {
                text.extend(noise);
                expected.push((key, text.len()));
                text.extend(KEYS[key].iter().map(u8::to_ascii_lowercase).chain(*b"x"));
            }
            let mut found = Vec::new();
            filter.each(&text, |key, at| found.push((key, at)));
            for hit in expected {
                prop_assert!(found.contains(&hit), "{:?} {:?}", hit, found);
            }
        }
    }
}
