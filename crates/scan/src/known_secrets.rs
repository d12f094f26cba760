//! Implements the `known_secrets` detector, which finds known secrets and pieces of known secrets, plain and in encoded
//! forms.
//!
//! The detector runs two searches. Both searches use the index of the module `windows`. The first search finds private
//! characters of a secret in the text. The second search compares only the letters and digits of the secret and the
//! text, so it finds a secret even if it is split, spaced or spread over several fields. Both searches find pieces of
//! at least [`PIECE`] characters within one private part of a secret (see `matchable_parts`). The cost of a search does
//! not grow with the number of secrets. Most encoded forms of a secret are not in the index. Instead, the scanned text
//! is decoded (see `view`, `dense_regions` and `encoded_secrets`).

use std::fmt;
use std::ops::Range;

use bottle_policy::lock_out::Piece;
use bottle_policy::secret::Secret;
use zeroize::Zeroizing;

use crate::alphanumerics::{Letters, positions};
use crate::matchable_parts::{KnownSecret, Leaf, PIECE, Part};
use crate::prefilter::Prefilter;
use crate::redact::TooLarge;
use crate::secret_spellings;
use crate::view::View;
use crate::windows::{self, Builder, Windows};

/// The minimum number of letters and digits in a secret. A secret with fewer letters and digits is excluded from the
/// search that compares only letters and digits.
const SHORTEST_LETTERS: usize = windows::SHORTEST;
/// The minimum number of distinct characters in a piece. Without this limit, a sequence of zeros would match in any
/// text.
const DISTINCT: usize = 4;
/// The maximum length of a secret's value, in bytes. A longer value is refused with [`TooLarge`].
const MAX_SECRET: usize = 64 << 10;
/// The maximum number of hits in one text by the search for letters and digits. Further hits are dropped,
/// because the text is blocked anyway.
const MAX_HITS: usize = 1000;

/// The known secrets, prepared for search.
///
/// Values shorter than [`crate::SHORTEST_ANYWHERE`] are ignored because they would match by chance. The tables contain
/// the secrets. The tables exist only in processes that are not dumpable, and are wiped when they are dropped.
pub struct KnownSecrets {
    texts: Vec<Needle>,
    in_texts: Windows,
    letters: Vec<Needle>,
    in_letters: Windows,
    reach: usize,
    /// The minimum number of adjacent bytes in a match of `texts`.
    least: usize,
    /// The minimum number of bytes in a text with a match of `texts` or `letters`.
    shortest: usize,
    /// Whether all secrets consist of ASCII characters.
    is_ascii: bool,
}

/// The secret and the piece that a hit matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    /// The index of the secret, in the order passed to [`KnownSecrets::new`].
    pub(crate) secret: usize,
    pub(crate) piece: Piece,
}

/// A text that the scanner searches for, or only the letters and digits of that text, together with its private parts.
/// The memory of `bytes` is wiped when the needle is dropped.
struct Needle {
    bytes: Zeroizing<Vec<u8>>,
    parts: Vec<Part>,
    owner: usize,
}

impl Needle {
    /// Returns whether a match of `range` contains enough of a private part to reveal the secret.
    fn is_piece(&self, range: &Range<usize>) -> bool {
        self.parts.iter().any(|part| {
            let (start, end) = (part.range.start.max(range.start), part.range.end.min(range.end));
            let Some(piece) = self.bytes.get(start..end) else { return false };
            let characters = piece.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            characters >= part.need
                && (piece.len() == part.range.len() && part.need < PIECE || is_varied(piece))
        })
    }
}

impl KnownSecrets {
    /// Prepares `secrets` for the search and derives the private parts of each secret from its value. A finding
    /// contains the index of the secret in `secrets`. Whitespace at the start and end of a value is ignored.
    ///
    /// # Errors
    /// Fails with [`TooLarge`] if a value is longer than 64 KiB. The caller must then reject all text.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Self, TooLarge> {
        Self::from_known(secrets.into_iter().map(KnownSecret::new))
    }

    /// Works like [`new`](Self::new), but the caller can state the form of a value, such as `user:password`.
    ///
    /// # Errors
    /// Fails in the same cases as [`new`](Self::new).
    pub fn from_known<'a>(secrets: impl IntoIterator<Item = KnownSecret<'a>>) -> Result<Self, TooLarge> {
        let (mut texts, mut letters) = (NeedleTable::default(), NeedleTable::default());
        let mut reach = 0;
        for (owner, secret) in secrets.into_iter().enumerate() {
            let value = secret.value.expose().trim();
            if value.len() > MAX_SECRET {
                return Err(TooLarge);
            }
            if value.len() < crate::SHORTEST_ANYWHERE {
                continue;
            }
            for leaf in secret.leaves() {
                let whole = leaf.parts.iter().map(|part| part.need).max().unwrap_or_default();
                reach = reach.max(whole);
                letters.add_letters(&leaf, owner)?;
                texts.add_text(&leaf, owner)?;
            }
        }
        let ((texts, in_texts), (letters, in_letters)) = (texts.build(), letters.build());
        let least = least_match(&texts);
        let shortest = least.min(least_match(&letters));
        let is_ascii = texts.iter().all(|needle| needle.bytes.is_ascii());
        Ok(Self { texts, in_texts, letters, in_letters, reach, least, shortest, is_ascii })
    }

    /// Returns whether there are no secrets to find.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.letters.is_empty()
    }

    /// Returns the maximum number of characters that a match needs, over all secrets. A window needs this many
    /// characters of context.
    pub(crate) fn reach(&self) -> usize {
        self.reach
    }

    /// Finds every position in `text` with enough private characters of a secret. A hit also covers the adjacent
    /// characters if they match the secret.
    pub(crate) fn find(&self, text: &[u8], found: impl FnMut(Match, Range<usize>)) {
        find_pieces(&self.texts, &self.in_texts, text, found);
    }

    /// Returns the minimum number of adjacent bytes in a match of [`find`](Self::find).
    pub(crate) fn least(&self) -> usize {
        self.least
    }

    /// Returns the minimum number of bytes in a text that contains a match of any search.
    pub(crate) fn shortest(&self) -> usize {
        self.shortest
    }

    /// Works like [`find`](Self::find), but searches only the parts of decoded data that can match. `prefilter` has read
    /// `data` with [`least`](Self::least).
    pub(crate) fn find_in_data(
        &self,
        data: &[u8],
        prefilter: &Prefilter,
        mut found: impl FnMut(Match, Range<usize>),
    ) {
        if !self.is_ascii {
            return self.find(data, found);
        }
        for part in prefilter.ascii() {
            let start = part.start;
            self.find(&data[part], |matched, range| found(matched, start + range.start..start + range.end));
        }
    }

    /// Finds every piece of a secret in `letters`, the letters and digits of a text in lower case.
    pub(crate) fn find_letters(&self, letters: &[u8], found: impl FnMut(Match, Range<usize>)) {
        find_pieces(&self.letters, &self.in_letters, letters, found);
    }

    /// Runs both searches on a text that is not part of the scanned stream, such as decoded data.
    pub(crate) fn find_all(&self, text: &[u8], found: &mut dyn FnMut(Match, Range<usize>)) {
        self.find(text, &mut *found);
        self.find_split(text, found);
    }

    /// Finds every piece of a secret in the letters and digits of a text that is not part of the scanned stream.
    pub(crate) fn find_split(&self, text: &[u8], found: &mut dyn FnMut(Match, Range<usize>)) {
        let letters = Letters::new(b"", text);
        let mut hits: Vec<(Match, Range<usize>)> = Vec::new();
        self.find_letters(&letters.bytes, |matched, range| {
            if hits.len() < MAX_HITS {
                hits.push((matched, range));
            }
        });
        if hits.is_empty() {
            return;
        }
        let mut numbers: Vec<usize> =
            hits.iter().flat_map(|(_, range)| [range.start, range.end - 1]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let positions = positions(text, &numbers);
        let place = |number: usize| positions.get(numbers.binary_search(&number).ok()?).copied();
        for (matched, range) in hits {
            if let (Some(start), Some(last)) = (place(range.start), place(range.end - 1)) {
                found(matched, start..last + 1);
            }
        }
    }
}

/// Returns the minimum number of bytes that a match of any needle has.
fn least_match(needles: &[Needle]) -> usize {
    let needs = needles.iter().flat_map(|needle| &needle.parts).map(|part| part.need.min(part.range.len()));
    needs.min().unwrap_or(windows::SHORTEST).max(windows::SHORTEST)
}

/// Finds every piece of `needles` in `text`. Each hit is extended in both directions as long as the needle and the text
/// match.
fn find_pieces(
    needles: &[Needle],
    windows: &Windows,
    text: &[u8],
    mut found: impl FnMut(Match, Range<usize>),
) {
    // The needle, the shift and the end of the last comparison. Positions before this end are not compared again for
    // the same needle and shift.
    let mut last: Option<(u32, usize, usize)> = None;
    windows.each(text, |at, number, offset| {
        let Some(needle) = needles.get(number as usize) else { return };
        let offset = offset as usize;
        let shift = at.wrapping_sub(offset);
        if last.is_some_and(|last| (last.0, last.1) == (number, shift) && at < last.2) {
            return;
        }
        let before = common_suffix(&text[..at], &needle.bytes[..offset]);
        let after =
            text[at..].iter().zip(&needle.bytes[offset..]).take_while(|(one, other)| one == other).count();
        last = Some((number, shift, at + after));
        let matched = offset - before..offset + after;
        if needle.is_piece(&matched) {
            let piece = Piece::of(&needle.bytes[matched]);
            found(Match { secret: needle.owner, piece }, at - before..at + after);
        }
    });
}

/// Collects needles together with their entries in the search index.
#[derive(Default)]
struct NeedleTable {
    needles: Vec<Needle>,
    builder: Builder,
}

impl NeedleTable {
    fn add(&mut self, needle: Needle) -> Result<(), TooLarge> {
        let number = u32::try_from(self.needles.len()).map_err(|_| TooLarge)?;
        for part in &needle.parts {
            self.builder.enter(number, &needle.bytes, part.range.clone(), part.need);
        }
        self.needles.push(needle);
        Ok(())
    }

    /// Adds a secret's text unchanged, reversed, and in base 58. If the text is entirely private, also adds its
    /// percent-encoded, escaped, unescaped and folded forms.
    fn add_text(&mut self, leaf: &Leaf, owner: usize) -> Result<(), TooLarge> {
        let bytes = Zeroizing::new(leaf.text.as_bytes().to_vec());
        let reversed: Zeroizing<Vec<u8>> =
            Zeroizing::new(leaf.text.chars().rev().collect::<String>().into_bytes());
        let back = reversed_parts(&leaf.parts, bytes.len());
        // Only the complete base 58 number can match, so a match reveals nothing to an agent that does not know the
        // complete value.
        let mut others: Vec<secret_spellings::Form> = secret_spellings::base58(&bytes).into_iter().collect();
        if leaf.parts.iter().all(|part| part.range == (0..bytes.len())) {
            let views = [Some(View::plain(&bytes)), View::unescaped(&bytes)];
            others.extend(secret_spellings::written(&leaf.text));
            others.extend(views.into_iter().flatten().map(|view| Zeroizing::new(view.bytes.into_owned())));
            others.sort_unstable_by(|one, other| one.as_slice().cmp(other.as_slice()));
            others.dedup();
        }
        for bytes in others.into_iter().filter(|other| other.as_slice() != bytes.as_slice()) {
            // The encoded forms do not preserve the characters of the value, so only a match of a complete form counts.
            if bytes.len() >= windows::SHORTEST {
                let need = bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
                self.add(Needle { parts: vec![Part { range: 0..bytes.len(), need }], bytes, owner })?;
            }
        }
        self.add(Needle { bytes: reversed, parts: back, owner })?;
        self.add(Needle { bytes, parts: leaf.parts.clone(), owner })
    }

    /// Adds the letters and digits of a secret in lower case, also reversed and in ROT13.
    fn add_letters(&mut self, leaf: &Leaf, owner: usize) -> Result<(), TooLarge> {
        let text = leaf.text.as_bytes();
        let is_letter = |byte: &u8| byte.is_ascii_alphanumeric();
        let lower: Zeroizing<Vec<u8>> =
            Zeroizing::new(text.iter().filter(|byte| is_letter(byte)).map(u8::to_ascii_lowercase).collect());
        let before = |place: usize| text[..place].iter().copied().filter(|byte| is_letter(byte)).count();
        let parts: Vec<Part> = leaf
            .parts
            .iter()
            .filter_map(|part| {
                let range = before(part.range.start)..before(part.range.end);
                let own = &text[part.range.clone()];
                let first = own.iter().position(is_letter)?;
                let last = own.iter().rposition(is_letter)?;
                // Without its punctuation, a part is shorter. The shorter part must not match with fewer characters
                // than the original part.
                let wide = range.len() >= PIECE || last + 1 - first >= PIECE.min(own.len());
                let all = part.need >= own.len();
                let need = if all { range.len() } else { range.len().min(PIECE) };
                let varied = is_varied(&lower[range.clone()]);
                (wide && varied && range.len() >= SHORTEST_LETTERS).then_some(Part { range, need })
            })
            .collect();
        if parts.is_empty() {
            return Ok(());
        }
        let reversed = Zeroizing::new(lower.iter().rev().copied().collect::<Vec<u8>>());
        let rot13 = Zeroizing::new(lower.iter().map(rot13).collect::<Vec<u8>>());
        let back = reversed_parts(&parts, lower.len());
        for (bytes, parts) in [(reversed, back), (rot13, parts.clone()), (lower, parts)] {
            self.add(Needle { bytes, parts, owner })?;
        }
        Ok(())
    }

    fn build(self) -> (Vec<Needle>, Windows) {
        (self.needles, self.builder.build())
    }
}

/// Returns the ranges that `parts` have after their text is reversed. `length` is the length of the text in bytes.
fn reversed_parts(parts: &[Part], length: usize) -> Vec<Part> {
    let turn = |part: &Part| Part { range: length - part.range.end..length - part.range.start, ..*part };
    parts.iter().map(turn).collect()
}

/// Applies ROT13 to a lower-case letter.
fn rot13(letter: &u8) -> u8 {
    match letter {
        b'a'..=b'm' => letter + 13,
        b'n'..=b'z' => letter - 13,
        other => *other,
    }
}

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownSecrets").field("texts", &self.texts.len()).finish_non_exhaustive()
    }
}

fn common_suffix(text: &[u8], secret: &[u8]) -> usize {
    text.iter().rev().zip(secret.iter().rev()).take_while(|(one, other)| one == other).count()
}

fn is_varied(piece: &[u8]) -> bool {
    let mut seen: Vec<u8> = Vec::with_capacity(DISTINCT);
    for byte in piece {
        if !seen.contains(byte) {
            seen.push(*byte);
        }
        if seen.len() == DISTINCT {
            return true;
        }
    }
    false
}
