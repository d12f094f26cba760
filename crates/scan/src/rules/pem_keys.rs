//! Finds private keys that are written as lines of base64 between a header line and a footer line.
//!
//! ```text
//! header line ─► proof: enough base64 soon after it ─► end: the next marker, or the end of the base64
//! ```
//! The body of a key is the base64 between the two lines. The body is recognized by its runs of base64. The text around
//! the lines of the body does not matter: the lines may be surrounded by quotes, comment signs, line numbers, escapes
//! and colours. The length and the layout of the body do not matter either.

/// The number of bytes before `PRIVATE KEY` that must contain `BEGIN` and the key's type.
const OPENING: usize = 48;
/// The maximum number of bytes between a key's header line and the end of the base64 that proves its body. Headers and
/// comments may precede this base64.
const PROOF: usize = 3800;
/// The minimum number of base64 characters that prove a body.
const MIN_PROOF: usize = 40;
/// The minimum length of a run of base64 that is recognized without the adjacent lines.
const MIN_RUN: usize = 20;
/// The base64 of a part of the algorithm identifier in X25519, X448, Ed25519 and Ed448 keys (RFC 8410, section 3). The
/// identifier is a SEQUENCE that contains one of the OIDs 1.3.101.110 to 1.3.101.113.
const CURVE_KEY: &[u8] = b"wBQYDK2V";
/// The number of bytes that are checked for base64 in one step, to find the end of a body.
const STEP: usize = 256;
/// The maximum number of consecutive steps without base64 within a body. One more step without base64 ends
/// the body, if no marker ends it earlier.
const GAP: usize = 4;
/// The number of bytes after the last step with base64 that still belong to a body. These bytes contain the last line
/// of the body, which may be too short to be recognized as base64.
const LAST_LINE: usize = 80;

/// The marks at the start and at the end of the body in one kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Armour {
    /// The words `BEGIN` and `PRIVATE KEY` start the body, with exactly the given words between them. `None` accepts
    /// all words that are not in [`KINDS`].
    Pem(Option<&'static str>),
    /// The rule's key alone starts the body. Any of the given words ends the body.
    Until(&'static [&'static str]),
}

/// The words between `BEGIN` and `PRIVATE KEY` that have separate rules.
const KINDS: [&str; 8] = ["", "RSA", "EC", "DSA", "OPENSSH", "ENCRYPTED", "PGP", "SSH2 ENCRYPTED"];

/// The end of a key's body within a text, and whether the body may continue after the end of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) end: usize,
    pub(crate) open: bool,
}

impl Armour {
    /// Returns the start and the end of the body that follows the rule's key. The key is at `place..end` of `text`.
    /// Returns `None` if no body follows.
    pub(super) fn at(self, text: &[u8], place: usize, end: usize) -> Option<(usize, Body)> {
        if let Self::Pem(kind) = self {
            let found = opening(&text[place.saturating_sub(OPENING)..place])?;
            let fits = match kind {
                Some(kind) => found == kind,
                None => !KINDS.contains(&found.as_str()),
            };
            if !fits {
                return None;
            }
        }
        let rest = &text[end..];
        let soon = &rest[..rest.len().min(PROOF)];
        let first = proof(&soon[..self.stop(soon).unwrap_or(soon.len())])?;
        let body = self.body(&rest[first..]);
        let line = rest.strip_prefix(b" BLOCK").unwrap_or(rest);
        let dashes = line.iter().take_while(|byte| b" -".contains(byte)).count();
        let start = text.len() - line.len() + dashes.min(first);
        Some((start, Body { end: end + first + body.end, ..body }))
    }

    /// Finds the end of a body that begins at the start of `text`.
    pub(crate) fn body(self, text: &[u8]) -> Body {
        let (mut at, mut last, mut gap) = (0, 0, 0);
        while at < text.len() {
            let step = &text[at..text.len().min(at + STEP)];
            // A marker may cross the boundary between two steps.
            let marked = &text[at..text.len().min(at + STEP + OPENING)];
            if let Some(stop) = self.stop(marked).filter(|stop| *stop < STEP) {
                return Body { end: at + stop, open: false };
            }
            at += step.len();
            if has_body(step) {
                (last, gap) = (at, 0);
            } else {
                gap += 1;
            }
            if gap > GAP {
                return Body { end: text.len().min(last + LAST_LINE), open: false };
            }
        }
        Body { end: text.len(), open: true }
    }

    /// Returns the position of the first marker in `text` that ends a body.
    fn stop(self, text: &[u8]) -> Option<usize> {
        let word = match self {
            Self::Pem(_) => None,
            Self::Until(words) => {
                words.iter().filter_map(|word| memchr::memmem::find(text, word.as_bytes())).min()
            }
        };
        let mark = memchr::memchr3_iter(b'B', b'b', b'E', text).find(|at| {
            let rest = &text[*at..];
            let length = match rest {
                [b'E', b'N', b'D', ..] => 3,
                _ if rest.get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"begin")) => 5,
                _ => return false,
            };
            rest.get(length).is_some_and(|next| b" +%_".contains(next))
        });
        let mark = mark
            .map(|at| text[..at].trim_ascii_end())
            .map(|before| before.len() - before.iter().rev().take_while(|byte| **byte == b'-').count());
        [word, mark].into_iter().flatten().min()
    }
}

/// Returns the words between `BEGIN` and the end of `before`. Returns `None` if `before` does not contain `BEGIN`.
fn opening(before: &[u8]) -> Option<String> {
    if !before.windows(5).any(|word| word.eq_ignore_ascii_case(b"begin")) {
        return None;
    }
    let before = before.to_ascii_uppercase();
    let begin = memchr::memmem::rfind(&before, b"BEGIN")? + 5;
    // Spaces may be percent-encoded as `%20`, and a string literal may be split between words.
    let words = before[begin..].split(|byte| !byte.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.filter(|word| *word != b"20").map(String::from_utf8_lossy).collect();
    Some(words.join(" "))
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// Returns the start of a body in `text`. Returns `None` if `text` does not contain enough base64 to prove a body.
fn proof(text: &[u8]) -> Option<usize> {
    let (mut first, mut count) = (None, 0);
    for (start, run) in runs(text).filter(|(_, run)| run.len() >= MIN_RUN && Mixture::new(run).is_random()) {
        first.get_or_insert(start);
        count += run.len();
        if count >= MIN_PROOF {
            return first;
        }
    }
    // Also accepts consecutive lines that are individually too short to be recognized as base64.
    text.chunks(STEP).position(is_narrow).map(|step| step * STEP).or_else(|| curve_key(text))
}

/// Returns the start of an RFC 8410 key in `text`. The lines of the key may have any width.
///
/// Such a key has few base64 characters. A third of them, mostly capitals, are the same in all such keys. The other
/// characters may by chance not look random, so [`CURVE_KEY`] proves the key instead.
fn curve_key(text: &[u8]) -> Option<usize> {
    let letters: Vec<(usize, u8)> = letters(text).collect();
    let joined: Vec<u8> = letters.iter().map(|(_, letter)| *letter).collect();
    let header = memchr::memmem::find(&joined, CURVE_KEY)?;
    (joined.len() - header >= CURVE_KEY.len() + MIN_PROOF).then(|| letters[header].0)
}

/// Returns whether one step of the text contains part of a body.
fn has_body(step: &[u8]) -> bool {
    runs(step).any(|(_, run)| run.len() >= MIN_RUN && Mixture::new(run).is_random()) || is_narrow(step)
}

/// Returns whether the complete text is base64. The lines may have any width.
fn is_narrow(text: &[u8]) -> bool {
    let letters: Vec<u8> = letters(text).map(|(_, letter)| letter).collect();
    let mixture = Mixture::new(&letters);
    letters.len() >= MIN_PROOF && mixture.is_random() && mixture.is_even()
}

/// Returns the base64 characters of `text` with their positions. The letter of an escape such as `\n` is left out.
fn letters(text: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let mut escape = false;
    text.iter().copied().enumerate().filter(move |(_, byte)| {
        let is_escape = escape && matches!(byte, b'n' | b'r' | b't');
        escape = *byte == b'\\';
        is_letter(*byte) && !is_escape
    })
}

fn runs(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].iter().position(|byte| is_letter(*byte))?;
        let length = text[at..].iter().position(|byte| !is_letter(*byte)).unwrap_or(text.len() - at);
        at += length;
        Some((at - length, &text[at - length..at]))
    })
}

/// Counts the capitals, small letters and digits in a text, and how often a character is of another kind than the
/// preceding one.
#[derive(Debug, Default)]
struct Mixture {
    upper: usize,
    lower: usize,
    digits: usize,
    changes: usize,
}

impl Mixture {
    fn new(text: &[u8]) -> Self {
        let mut mixture = Self::default();
        let mut before = None;
        for byte in text.iter().filter(|byte| byte.is_ascii_alphanumeric()) {
            let count = match byte {
                b'A'..=b'Z' => &mut mixture.upper,
                b'a'..=b'z' => &mut mixture.lower,
                _ => &mut mixture.digits,
            };
            *count += 1;
            let kind = (byte.is_ascii_digit(), byte.is_ascii_uppercase());
            mixture.changes += usize::from(before.is_some_and(|before| before != kind));
            before = Some(kind);
        }
        mixture
    }

    fn all(&self) -> usize {
        self.upper + self.lower + self.digits
    }

    /// Returns whether the text looks like the base64 of a key. In random base64, six of ten characters are of another
    /// kind than the preceding character. In short words and names, only three of ten are.
    fn is_random(&self) -> bool {
        let least = if self.all() < MIN_PROOF { 45 } else { 30 };
        self.upper > 0 && self.lower > 0 && self.digits > 0 && self.changes * 100 >= self.all() * least
    }

    /// Returns whether each kind of character has about the same frequency as in base64. The alphabet of base64 has 26
    /// capitals, 26 small letters and 10 digits among its 64 characters.
    fn is_even(&self) -> bool {
        let part = |count: usize| count * 100 / self.all().max(1);
        part(self.upper) >= 22 && part(self.lower) >= 22 && (4..=32).contains(&part(self.digits))
    }
}
