//! `known_secrets`: values that must not pass, in every spelling and in pieces.
//!
//! Two searches share one idea (see `grams`): the spellings in the text, and the letters of each secret in the
//! letters of the text, which finds what was cut, spaced out or spread over fields. Neither gets slower with
//! the number of secrets.

use std::fmt;
use std::ops::Range;

use bottle_contract::secret::Secret;
use zeroize::Zeroizing;

use crate::forms;
use crate::grams::{self, Builder, Grams};
use crate::redact::TooLarge;
use crate::rules::public_prefix;

/// So many letters and digits of a secret in a row give it away.
pub(crate) const PIECE: usize = 12;
/// Fewer letters and digits than this are not looked for apart from their text.
const SHORTEST_LETTERS: usize = grams::SHORTEST;
/// Different characters that a piece must have: a row of zeros is in every text.
const DISTINCT: usize = 4;
/// Fewer bytes than this begin nothing: every text ends like something.
const SHORTEST_BEGINNING: usize = 4;
/// A longer value is no secret but a file.
const LONGEST: usize = 64 << 10;

/// The values that must not pass.
///
/// Values shorter than [`crate::SHORTEST_ANYWHERE`] turn up by chance and are not looked for. The tables hold
/// the secrets, live in processes that cannot be dumped, and are wiped when they are dropped.
pub struct KnownSecrets {
    spellings: Zeroizing<Vec<u8>>,
    /// Where in `spellings` each stands, and whose it is.
    index: Vec<(Range<usize>, usize)>,
    in_text: Grams,
    letters: Vec<(Zeroizing<Vec<u8>>, usize)>,
    in_letters: Grams,
    longest: usize,
}

impl KnownSecrets {
    /// Prepares `secrets`. Findings name them by their place in this order. Spaces around a value do not
    /// belong to it.
    ///
    /// # Errors
    /// [`TooLarge`] if a value is longer than 64 KiB; without all of them nothing may be let through.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Self, TooLarge> {
        let mut known = Self {
            spellings: Zeroizing::default(),
            index: Vec::new(),
            in_text: Builder::default().build(),
            letters: Vec::new(),
            in_letters: Builder::default().build(),
            longest: 0,
        };
        let (mut in_text, mut in_letters) = (Builder::default(), Builder::default());
        for (owner, secret) in secrets.into_iter().enumerate() {
            let value = secret.expose().trim();
            if value.len() > LONGEST {
                return Err(TooLarge);
            }
            if value.len() >= crate::SHORTEST_ANYWHERE {
                known.add_spellings(value, owner, &mut in_text)?;
                known.add_letters(value, owner, &mut in_letters)?;
            }
        }
        known.in_text = in_text.build();
        known.in_letters = in_letters.build();
        Ok(known)
    }

    fn add_spellings(&mut self, value: &str, owner: usize, pieces: &mut Builder) -> Result<(), TooLarge> {
        for form in forms::every(value).into_iter().filter(|form| form.len() >= grams::SHORTEST) {
            let number = u32::try_from(self.index.len()).map_err(|_| TooLarge)?;
            // In the middle, where nobody's public prefix is.
            pieces.enter_at(number, &form, (form.len() - grams::SHORTEST) / 2);
            let start = self.spellings.len();
            grow(&mut self.spellings, &form);
            self.index.push((start..start + form.len(), owner));
            self.longest = self.longest.max(form.len());
        }
        Ok(())
    }

    fn add_letters(&mut self, value: &str, owner: usize, pieces: &mut Builder) -> Result<(), TooLarge> {
        for part in private_parts(value) {
            let letters: Zeroizing<Vec<u8>> = Zeroizing::new(
                part.bytes()
                    .filter(u8::is_ascii_alphanumeric)
                    .map(|byte| byte.to_ascii_lowercase())
                    .collect(),
            );
            if letters.len() >= SHORTEST_LETTERS {
                pieces.enter_all(u32::try_from(self.letters.len()).map_err(|_| TooLarge)?, &letters);
                self.letters.push((letters, owner));
            }
        }
        Ok(())
    }

    /// The longest spelling: how far two ends of a finding may be apart.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// How many bytes at the end of `text` begin a secret in one of its spellings, and are not all of it.
    pub(crate) fn begins(&self, text: &[u8]) -> usize {
        let mut most = 0;
        for (place, _) in &self.index {
            let spelling = &self.spellings[place.clone()];
            let end = &text[text.len().saturating_sub(spelling.len() - 1)..];
            let begins = memchr::memchr_iter(spelling[0], end)
                .map(|at| &end[at..])
                .find(|end| spelling.starts_with(end));
            most = most.max(begins.map_or(0, <[u8]>::len));
        }
        if most < SHORTEST_BEGINNING { 0 } else { most }
    }

    /// Every place of `text` where a secret stands in one of its spellings.
    pub(crate) fn find(&self, text: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        self.in_text.each(text, |at, number, offset| {
            let (place, owner) = &self.index[number as usize];
            let spelling = &self.spellings[place.clone()];
            if let Some(start) = at.checked_sub(offset as usize)
                && text.get(start..start + spelling.len()) == Some(spelling)
            {
                found(*owner, start..start + spelling.len());
            }
        });
    }

    /// Every place of `letters`, which are a text's letters and digits in lower case, with a piece of a secret.
    pub(crate) fn find_letters(&self, letters: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        self.in_letters.each(letters, |at, number, offset| {
            let (secret, owner) = &self.letters[number as usize];
            let offset = offset as usize;
            let before = pairs_back(&letters[..at], &secret[..offset]);
            let after =
                letters[at..].iter().zip(&secret[offset..]).take_while(|(one, other)| one == other).count();
            let piece = &secret[offset - before..offset + after];
            if piece.len() >= PIECE.min(secret.len()) && is_varied(piece) {
                found(*owner, at - before..at + after);
            }
        });
    }
}

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownSecrets").field("spellings", &self.index.len()).finish_non_exhaustive()
    }
}

/// Appends without leaving a copy behind in freed memory.
fn grow(all: &mut Zeroizing<Vec<u8>>, more: &[u8]) {
    if all.capacity() - all.len() < more.len() {
        let mut larger = Zeroizing::new(Vec::with_capacity((all.len() + more.len()) * 2));
        larger.extend_from_slice(all);
        *all = larger;
    }
    all.extend_from_slice(more);
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

/// The parts of a secret that are its own: without a vendor's prefix, the head of a signed token, the armour
/// of a key, and all of an address but its password.
fn private_parts(value: &str) -> Vec<&str> {
    if let Some(password) = url_password(value) {
        return vec![password];
    }
    if value.starts_with("-----BEGIN ") {
        return armoured(value);
    }
    if value.starts_with("eyJ")
        && let Some((_, rest)) = value.split_once('.')
    {
        return vec![rest];
    }
    vec![&value[public_prefix(value)..]]
}

fn url_password(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("://")?;
    let (login, _) = rest.rsplit_once('@')?;
    login.split_once(':').map(|(_, password)| password)
}

/// What stands between the lines of dashes, without the heads that keys of one kind share.
fn armoured(value: &str) -> Vec<&str> {
    const HEADS: [&str; 3] =
        ["b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAAB", "b3BlbnNzaC1rZXktdjE", "MII"];
    let body = value.split_once("-----\n").map_or(value, |(_, rest)| rest);
    let body = body.split_once("-----END").map_or(body, |(body, _)| body).trim();
    vec![HEADS.iter().find_map(|head| body.strip_prefix(head)).unwrap_or(body)]
}
