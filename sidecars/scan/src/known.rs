//! `known_secrets`: values that must not pass, in every spelling and in pieces.
//!
//! Two searches share one idea (see `windows`): the private characters in the text, and their letters and digits
//! in the letters and digits of the text, which finds what was cut, spaced out or spread over fields. Both find
//! pieces from [`PIECE`] characters on, wholly within a private part (see `private`), and neither gets slower
//! with the number of secrets. Spellings are undone in the text (see `view`, `dense` and `spelled`), not listed.

use std::fmt;
use std::ops::Range;

use bottle_contract::secret::Secret;
use zeroize::Zeroizing;

use crate::forms;
use crate::letters::{Letters, places};
use crate::private::{KnownSecret, Leaf, PIECE, Part};
use crate::redact::TooLarge;
use crate::view::View;
use crate::windows::{self, Builder, Windows};

/// Fewer letters and digits than this are not looked for apart from their text.
const SHORTEST_LETTERS: usize = windows::SHORTEST;
/// Different characters that a piece must have: a row of zeros is in every text.
const DISTINCT: usize = 4;
/// A longer value is no secret but a file.
const LONGEST: usize = 64 << 10;
/// Places in one text at which secrets are found; a text with more is refused anyway.
const MOST_HITS: usize = 1000;

/// The values that must not pass.
///
/// Values shorter than [`crate::SHORTEST_ANYWHERE`] turn up by chance and are not looked for. The tables hold
/// the secrets, live in processes that cannot be dumped, and are wiped when they are dropped.
pub struct KnownSecrets {
    texts: Vec<Thing>,
    in_texts: Windows,
    letters: Vec<Thing>,
    in_letters: Windows,
    reach: usize,
}

/// A text or its letters, with what of it is private; wiped when it is dropped.
struct Thing {
    bytes: Zeroizing<Vec<u8>>,
    parts: Vec<Part>,
    owner: usize,
}

impl Thing {
    /// Whether a range of it gives the secret away.
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
    /// Prepares `secrets`, of whatever form. Findings name them by their place in this order. Spaces around a
    /// value do not belong to it.
    ///
    /// # Errors
    /// [`TooLarge`] if a value is longer than 64 KiB; without all of them nothing may be let through.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Self, TooLarge> {
        Self::of(secrets.into_iter().map(KnownSecret::new))
    }

    /// The same for values of which more is known than the value.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of<'a>(secrets: impl IntoIterator<Item = KnownSecret<'a>>) -> Result<Self, TooLarge> {
        let (mut texts, mut letters) = (Table::default(), Table::default());
        let mut reach = 0;
        for (owner, secret) in secrets.into_iter().enumerate() {
            let value = secret.value.expose().trim();
            if value.len() > LONGEST {
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
        Ok(Self { texts, in_texts, letters, in_letters, reach })
    }

    /// Whether there is nothing to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.letters.is_empty()
    }

    /// So many characters may have to be seen together.
    pub(crate) fn reach(&self) -> usize {
        self.reach
    }

    /// Every place of `text` where private characters of a secret stand, with what else of it is around them.
    pub(crate) fn find(&self, text: &[u8], found: impl FnMut(usize, Range<usize>)) {
        pieces(&self.texts, &self.in_texts, text, found);
    }

    /// Every place of `letters`, which are a text's letters and digits in lower case, with a piece of a secret.
    pub(crate) fn find_letters(&self, letters: &[u8], found: impl FnMut(usize, Range<usize>)) {
        pieces(&self.letters, &self.in_letters, letters, found);
    }

    /// Both searches in a text of its own.
    pub(crate) fn find_all(&self, text: &[u8], found: &mut dyn FnMut(usize, Range<usize>)) {
        self.find(text, &mut *found);
        let letters = Letters::of(b"", text);
        let mut hits: Vec<(usize, Range<usize>)> = Vec::new();
        self.find_letters(&letters.bytes, |owner, range| {
            if hits.len() < MOST_HITS {
                hits.push((owner, range));
            }
        });
        if hits.is_empty() {
            return;
        }
        let mut numbers: Vec<usize> =
            hits.iter().flat_map(|(_, range)| [range.start, range.end - 1]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let places = places(text, &numbers);
        let place = |number: usize| places.get(numbers.binary_search(&number).ok()?).copied();
        for (owner, range) in hits {
            if let (Some(start), Some(last)) = (place(range.start), place(range.end - 1)) {
                found(owner, start..last + 1);
            }
        }
    }
}

/// Every place of `text` with a piece of one of `things`, as far as the two are the same.
fn pieces(things: &[Thing], windows: &Windows, text: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
    // Of each thing, where its last comparison lay: what it covered is not compared again.
    let mut last: Option<(u32, usize, usize)> = None;
    windows.each(text, |at, number, offset| {
        let Some(thing) = things.get(number as usize) else { return };
        let offset = offset as usize;
        let shift = at.wrapping_sub(offset);
        if last.is_some_and(|last| (last.0, last.1) == (number, shift) && at < last.2) {
            return;
        }
        let before = pairs_back(&text[..at], &thing.bytes[..offset]);
        let after =
            text[at..].iter().zip(&thing.bytes[offset..]).take_while(|(one, other)| one == other).count();
        last = Some((number, shift, at + after));
        if thing.is_piece(&(offset - before..offset + after)) {
            found(thing.owner, at - before..at + after);
        }
    });
}

/// Things under collection.
#[derive(Default)]
struct Table {
    things: Vec<Thing>,
    builder: Builder,
}

impl Table {
    fn add(&mut self, thing: Thing) -> Result<(), TooLarge> {
        let number = u32::try_from(self.things.len()).map_err(|_| TooLarge)?;
        for part in &thing.parts {
            self.builder.enter(number, &thing.bytes, part.range.clone(), part.need);
        }
        self.things.push(thing);
        Ok(())
    }

    /// The text, backwards too, and as it is after folding and unescaping, which texts are looked at after.
    fn add_text(&mut self, leaf: &Leaf, owner: usize) -> Result<(), TooLarge> {
        let bytes = Zeroizing::new(leaf.text.as_bytes().to_vec());
        let reversed: Zeroizing<Vec<u8>> =
            Zeroizing::new(leaf.text.chars().rev().collect::<String>().into_bytes());
        let back = backwards(&leaf.parts, bytes.len());
        // All of it in one number says nothing to who does not know all of it.
        let mut others: Vec<forms::Form> = forms::base58(&bytes).into_iter().collect();
        if leaf.parts.iter().all(|part| part.range == (0..bytes.len())) {
            let views = [Some(View::plain(&bytes)), View::unescaped(&bytes)];
            others.extend(forms::written(&leaf.text));
            others.extend(views.into_iter().flatten().map(|view| Zeroizing::new(view.bytes.into_owned())));
            others.sort_unstable_by(|one, other| one.as_slice().cmp(other.as_slice()));
            others.dedup();
        }
        for bytes in others.into_iter().filter(|other| other.as_slice() != bytes.as_slice()) {
            // Nothing of it tells where a character ends: it counts as a whole only.
            if bytes.len() >= windows::SHORTEST {
                let need = bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
                self.add(Thing { parts: vec![Part { range: 0..bytes.len(), need }], bytes, owner })?;
            }
        }
        self.add(Thing { bytes: reversed, parts: back, owner })?;
        self.add(Thing { bytes, parts: leaf.parts.clone(), owner })
    }

    /// Its letters and digits in lower case, backwards and rotated too.
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
                // Letters alone are less than the piece they are from, and must not be had for less.
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
        let rotated = Zeroizing::new(lower.iter().map(rotated).collect::<Vec<u8>>());
        let back = backwards(&parts, lower.len());
        for (bytes, parts) in [(reversed, back), (rotated, parts.clone()), (lower, parts)] {
            self.add(Thing { bytes, parts, owner })?;
        }
        Ok(())
    }

    fn build(self) -> (Vec<Thing>, Windows) {
        (self.things, self.builder.build())
    }
}

/// The same parts of a text of `length` bytes written backwards.
fn backwards(parts: &[Part], length: usize) -> Vec<Part> {
    let turn = |part: &Part| Part { range: length - part.range.end..length - part.range.start, ..*part };
    parts.iter().map(turn).collect()
}

/// ROT13.
fn rotated(letter: &u8) -> u8 {
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

fn pairs_back(text: &[u8], secret: &[u8]) -> usize {
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
