//! Determines the private characters of a known secret. A match of private characters reveals the secret.
//!
//! The agent that wrote a text learns whether the scan blocked it. If a match could consist of both public and private
//! characters, an agent could write the public part and guess one more character. In this way, the agent could read the
//! secret from the scan results, one character at a time. A value is therefore split into parts that are entirely
//! public or entirely private. A match counts only within one private part, so an agent that knows one part learns
//! nothing about the other parts.
//!
//! ```text
//! user:password, scheme://user:password@host, name=value    the password, the value
//! a=b;c=d  a=b&c=d  lines  quotes  words                    each item by itself
//! JSON                                                      each string by itself
//! PEM                                                       the numbers that the public key does not have
//! head.payload.signature                                    the signature
//! base64 of text                                            the decoded text
//! anything else                                             each run of letters, digits, `+` and `=`
//! ```
//! In a token with several runs, the numbers, the words and a vendor's prefix are public. In a long token that is
//! base64, readable text in the decoded bytes is public too.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bottle_policy::secret::Secret;
use zeroize::Zeroizing;

use crate::key_numbers;
use crate::redact::SHORTEST_ANYWHERE;
use crate::rules::public_prefix;

/// The minimum number of consecutive private characters in a match. A shorter private part matches only as a whole.
pub(crate) const PIECE: usize = 12;
/// The maximum nesting of structures that are split into parts. The scanner does not search for values at a deeper
/// level.
const MAX_DEPTH: usize = 4;
/// The maximum length of a run of letters that is treated as a word, and is therefore public.
const MAX_WORD: usize = 20;
/// Fixed passwords that Git hosts document for logins with a token as the user name. In a login with one of these
/// passwords, the user name is private instead of the password.
const FIXED_PASSWORDS: [&str; 3] = ["x-oauth-basic", "x-access-token", "x-token-auth"];

/// A secret, and the form of its value if the caller knows the form.
#[derive(Debug, Clone, Copy)]
pub struct KnownSecret<'s> {
    pub(crate) value: &'s Secret,
    login: bool,
}

impl<'s> KnownSecret<'s> {
    /// Creates a known secret with a value of any form. The private parts are derived from the value.
    #[must_use]
    pub fn new(value: &'s Secret) -> Self {
        Self { value, login: false }
    }

    /// Creates a known secret with a value `user:password`, as in the HTTP scheme `basic`. Only the password is
    /// private. A password shorter than [`SHORTEST_ANYWHERE`] is ignored, because it would match by chance.
    #[must_use]
    pub fn login(value: &'s Secret) -> Self {
        Self { value, login: true }
    }

    /// Returns the texts that the scanner searches for. These texts are derived from the value.
    pub(crate) fn leaves(&self) -> Vec<Leaf> {
        let value = self.value.expose().trim();
        let mut leaves = Vec::new();
        match value.split_once(':') {
            Some((_, secret)) if self.login => password(secret, 0, &mut leaves),
            _ => {
                if !structure(value, 0, &mut leaves) && leaves.is_empty() {
                    leaves.extend(Leaf::whole(value));
                }
            }
        }
        leaves
    }
}

/// A text that the scanner searches for, with its private ranges.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) text: Zeroizing<String>,
    pub(crate) parts: Vec<Part>,
}

/// A private range of a search text.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) range: Range<usize>,
    /// The minimum number of consecutive characters of `range` in a match.
    pub(crate) need: usize,
}

impl Leaf {
    /// Creates a search text that is entirely private. Returns `None` if `text` is too short to search for.
    fn private(text: &str) -> Option<Self> {
        let need = text.chars().count().min(PIECE);
        (need >= SHORTEST_ANYWHERE).then(|| Self::with_parts(text, vec![Part { range: 0..text.len(), need }]))
    }

    /// Creates a search text that matches only as a whole. Returns `None` if `text` is too short to search for.
    fn whole(text: &str) -> Option<Self> {
        let need = text.chars().count();
        (need >= SHORTEST_ANYWHERE).then(|| Self::with_parts(text, vec![Part { range: 0..text.len(), need }]))
    }

    /// Creates a search text from a text in which no run of characters is long enough for a match. If the text has
    /// several runs, only the complete text is a match. Otherwise, an agent that knows all runs except one could guess
    /// the remaining run character by character.
    fn of_short_runs(text: &str) -> Option<Self> {
        if runs(text, 0).len() > 1 { Self::whole(text) } else { Self::private(text) }
    }

    fn with_parts(text: &str, parts: Vec<Part>) -> Self {
        Self { text: Zeroizing::new(text.to_owned()), parts }
    }
}

/// Splits `value` into search texts and adds them to `leaves`. Returns whether `value` has a form with public parts.
fn structure(value: &str, depth: usize, leaves: &mut Vec<Leaf>) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    if value.contains("-----BEGIN ") {
        leaves.extend(pem_keys(value));
        return true;
    }
    if value.starts_with(['{', '['])
        && let Ok(document) = serde_json::from_str::<serde_json::Value>(value)
    {
        strings(&document, depth, leaves);
        return true;
    }
    if let Some((scheme, rest)) = value.split_once("://")
        && is_name(scheme)
    {
        url(rest, depth, leaves);
        return true;
    }
    if value.contains(is_separator) {
        let mut formed = false;
        for item in value.split(is_separator).filter(|item| !item.is_empty()) {
            formed |= structure(item, depth + 1, leaves);
        }
        return formed;
    }
    if let Some((name, rest)) = value.split_once('=')
        && is_name(name)
        && !rest.trim_matches('=').is_empty()
    {
        let before = leaves.len();
        structure(rest, depth + 1, leaves);
        if depth == 0 && leaves.len() == before {
            leaves.extend(Leaf::of_short_runs(rest));
        }
        return true;
    }
    if let Some((name, rest)) = value.split_once(':')
        && is_name(name)
        && public_prefix(value) == 0
    {
        let before = leaves.len();
        if rest.len() >= SHORTEST_ANYWHERE {
            structure(rest, depth + 1, leaves);
            if leaves.len() == before {
                leaves.extend(Leaf::of_short_runs(rest));
            }
        } else {
            token(value, depth + 1, leaves);
        }
        return depth == 0;
    }
    token(value, depth, leaves)
}

/// Returns whether a character separates list items, record fields or words.
fn is_separator(character: char) -> bool {
    character.is_whitespace() || ";,&|\"'`()[]{}<>".contains(character)
}

/// Returns whether a text may be a number or the name of a user, variable or scheme.
fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@+\\%".contains(&byte))
}

fn strings(document: &serde_json::Value, depth: usize, leaves: &mut Vec<Leaf>) {
    match document {
        serde_json::Value::String(text) => {
            structure(text, depth + 1, leaves);
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| strings(value, depth, leaves)),
        serde_json::Value::Object(fields) => fields.values().for_each(|value| strings(value, depth, leaves)),
        _ => {}
    }
}

/// Adds the password of a URL to `leaves`, and the possible tokens in its user name, path and query. `rest` is the URL
/// without `scheme://`.
fn url(rest: &str, depth: usize, leaves: &mut Vec<Leaf>) {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A password may contain reserved characters that the writer did not encode.
    let end = rest.rfind('@').map_or(end, |at| at.max(end));
    let (authority, path) = rest.split_at(end);
    let (login, path) = match rest.rsplit_once('@') {
        Some((login, after)) => (Some(login), after.split_once(['/', '?', '#']).map_or("", |(_, path)| path)),
        None => (None, path),
    };
    if let Some(login) = login.or_else(|| authority.rsplit_once('@').map(|(login, _)| login)) {
        match login.split_once(':') {
            Some((_, secret)) if !secret.is_empty() && !FIXED_PASSWORDS.contains(&secret) => {
                password(secret, depth, leaves);
            }
            Some((user, _)) => drop(token(user, depth + 1, leaves)),
            None => drop(token(login, depth + 1, leaves)),
        }
    }
    let mut found = Vec::new();
    for item in path.split(|letter: char| is_separator(letter) || "/?#".contains(letter)) {
        if !item.is_empty() {
            structure(item, depth + 1, &mut found);
        }
    }
    if found.iter().any(|leaf| leaf.parts.iter().any(is_long)) {
        found.retain(|leaf| leaf.parts.iter().any(is_long));
    }
    leaves.append(&mut found);
}

/// Adds a password to `leaves` as an entirely private text. If the password is a token with a known form, only the
/// private parts of the token are private.
fn password(secret: &str, depth: usize, leaves: &mut Vec<Leaf>) {
    if public_prefix(secret) > 0 || secret.starts_with("eyJ") {
        token(secret, depth, leaves);
    } else {
        leaves.extend(Leaf::private(secret));
    }
    let decoded = percent_encoding::percent_decode_str(secret).decode_utf8();
    if let Some(decoded) = decoded.ok().filter(|decoded| decoded != secret) {
        leaves.extend(Leaf::private(&decoded));
    }
}

/// Adds a value without separators to `leaves`. The value may be a token, a password or a name. Returns whether a part
/// of the value is public.
fn token(text: &str, depth: usize, leaves: &mut Vec<Leaf>) -> bool {
    if let Some(decoded) = base64_of_text(text).filter(|_| depth < MAX_DEPTH) {
        leaves.extend(Leaf::whole(text));
        structure(&decoded, depth + 1, leaves);
        return true;
    }
    let segments: Vec<&str> = text.split('.').collect();
    if text.starts_with("eyJ") && segments.len() >= 3 {
        // A JWS (RFC 7515) consists of header, payload and signature. A JWE (RFC 7516) consists of header, key,
        // initialization vector, ciphertext and tag.
        let public = if segments.len() == 3 { 2 } else { 1 };
        let from: usize = segments[..public].iter().map(|segment| segment.len() + 1).sum();
        let mut parts = Vec::new();
        let mut at = from;
        for segment in &segments[public..] {
            parts.extend(part(at..at + segment.len()));
            at += segment.len() + 1;
        }
        leaves.push(Leaf::with_parts(text, parts));
        return true;
    }
    let prefix = public_prefix(text) + public_id_length(text);
    let runs = subtract(runs(text, prefix), &shared_text(text, prefix));
    let several = runs.len() > 1 || depth > 0;
    let private = |run: &&Range<usize>| !(several && is_public(&text[run.start..run.end]));
    let mut parts: Vec<Part> = runs.iter().filter(private).cloned().filter_map(part).collect();
    // If a token has a long run, its short runs are names and therefore public.
    if parts.iter().any(is_long) {
        parts.retain(is_long);
    }
    if parts.is_empty() {
        return false;
    }
    leaves.push(Leaf::with_parts(text, parts));
    prefix > 0
}

fn is_long(part: &Part) -> bool {
    part.range.len() >= PIECE
}

fn part(range: Range<usize>) -> Option<Part> {
    let need = range.len().min(PIECE);
    (need >= SHORTEST_ANYWHERE).then_some(Part { range, need })
}

/// Returns the length of the public part that follows a vendor's prefix. In Stripe's newer keys, the public part is the
/// account, which Stripe's publishable keys contain too. In SendGrid keys and fine-grained GitHub tokens, it is the key
/// id.
fn public_id_length(text: &str) -> usize {
    const STRIPE: usize = 24;
    const GITHUB: usize = 23;
    let prefix = public_prefix(text);
    let body = &text[prefix..];
    if !body.is_ascii() {
        return 0;
    }
    let stripe =
        ["sk_live_5", "rk_live_5", "sk_test_5", "rk_test_5"].iter().any(|head| text.starts_with(head));
    let length = if stripe && body.len() > 2 * STRIPE {
        STRIPE
    } else if text.starts_with("github_pat_") && body.as_bytes().get(GITHUB - 1) == Some(&b'_') {
        GITHUB
    } else if text.starts_with("SG.") {
        body.rfind('.').map_or(0, |at| at + 1)
    } else {
        0
    };
    length.min(body.len())
}

/// Returns the runs of characters in `text` that may be random. Any ASCII character except letters, digits, `+` and `=`
/// ends a run.
fn runs(text: &str, from: usize) -> Vec<Range<usize>> {
    let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"+=".contains(&byte) || !byte.is_ascii();
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, byte) in text.bytes().enumerate().skip(from) {
        if belongs(byte) {
            match runs.last_mut().filter(|run| run.end == at) {
                Some(run) => run.end = at + 1,
                None => runs.push(at..at + 1),
            }
        }
    }
    runs
}

/// The fixed string that occurs in OpenAI's keys, and is therefore public.
const OPENAI_MARKER: &str = "T3BlbkFJ";
/// The minimum length, in base64 characters, of a token in which readable text is treated as public. A shorter token is
/// assumed to be one random number.
const MIN_COMPOUND: usize = 100;
/// The minimum number of consecutive printable bytes that are treated as readable text. Such a sequence rarely occurs
/// by chance.
const MIN_TEXT: usize = 9;
/// The number of bytes before and after readable text that are public too. These bytes describe the text: they contain
/// lengths, types and headers.
const FRAMING: usize = 12;

/// Returns the ranges of `text` that are the same in all tokens of its kind, in order. For example, macaroons (PyPI)
/// contain identifiers and permissions, and AWS session tokens contain their issuer and region.
fn shared_text(text: &str, prefix: usize) -> Vec<Range<usize>> {
    let mut shared_text: Vec<Range<usize>> =
        text.match_indices(OPENAI_MARKER).map(|(at, word)| at..at + word.len()).collect();
    let body: Zeroizing<String> = Zeroizing::new(text[prefix..].replace('-', "+").replace('_', "/"));
    let body = body.trim_end_matches('=');
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    if body.len() < MIN_COMPOUND || !body.bytes().all(is_letter) {
        return shared_text;
    }
    // A vendor's prefix may end within a base64 group of four letters, so all four alignments are tried.
    let readings = (0..4).map(|skip| {
        let letters = &body[skip..];
        let letters = &letters[..letters.len() - usize::from(letters.len() % 4 == 1)];
        let engine = GeneralPurpose::new(&STANDARD, LENIENT.with_decode_allow_trailing_bits(true));
        let bytes = Zeroizing::new(engine.decode(letters).unwrap_or_default());
        let from = prefix + skip;
        let texts = printable_ranges(&bytes).map(|range| {
            let start = range.start.saturating_sub(FRAMING) * 8 / 6;
            let end = ((range.end + FRAMING) * 8).div_ceil(6);
            from + start..text.len().min(from + end)
        });
        texts.collect::<Vec<_>>()
    });
    shared_text
        .extend(readings.max_by_key(|texts| texts.iter().map(Range::len).sum::<usize>()).unwrap_or_default());
    shared_text.sort_unstable_by_key(|range| range.start);
    shared_text
}

/// Returns the ranges of at least [`MIN_TEXT`] printable bytes in `bytes`.
fn printable_ranges(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    let rows = bytes.split(|byte| !matches!(byte, b' '..=b'~')).map(move |row| {
        let start = at;
        at += row.len() + 1;
        start..start + row.len()
    });
    rows.filter(|row| row.len() >= MIN_TEXT)
}

/// Removes the `public` ranges from `runs`. Both `public` and `runs` must be sorted.
fn subtract(runs: Vec<Range<usize>>, public: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = Vec::new();
    for mut run in runs {
        for out in public.iter().filter(|out| out.start < run.end) {
            if out.end <= run.start {
                continue;
            }
            if run.start < out.start {
                left.push(run.start..out.start);
            }
            run.start = out.end.min(run.end);
        }
        if run.start < run.end {
            left.push(run);
        }
    }
    left
}

/// Returns whether a run is a number, a word, or base64-encoded JSON.
fn is_public(run: &str) -> bool {
    let bytes = run.as_bytes();
    let word = bytes.iter().all(u8::is_ascii_alphabetic)
        && bytes.len() <= MAX_WORD
        && (bytes[1..].iter().all(u8::is_ascii_lowercase) || bytes.iter().all(u8::is_ascii_uppercase));
    word || bytes.iter().all(u8::is_ascii_digit) || run.starts_with("eyJ")
}

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Decodes a base64 value. Returns `None` if the result is not text.
fn base64_of_text(text: &str) -> Option<Zeroizing<String>> {
    if text.len() < 16 || text.len() % 4 == 1 {
        return None;
    }
    [&STANDARD, &URL_SAFE].into_iter().find_map(|alphabet| {
        let bytes =
            GeneralPurpose::new(alphabet, LENIENT.with_decode_allow_trailing_bits(true)).decode(text).ok()?;
        let decoded = Zeroizing::new(String::from_utf8(bytes).ok()?);
        let plain = decoded.chars().all(|character| !character.is_control() || character.is_whitespace());
        plain.then_some(decoded)
    })
}

/// Returns the private numbers of each PEM key in `value`. Each number is represented by the base64 characters that
/// contain only bits of this number.
fn pem_keys(value: &str) -> Vec<Leaf> {
    // Environment variables and JSON escape the line breaks of a key.
    let value = Zeroizing::new(value.replace("\\r", "").replace("\\n", "\n"));
    let mut leaves = Vec::new();
    for block in value.split("-----BEGIN ").skip(1) {
        let Some((label, rest)) = block.split_once("-----") else { continue };
        let body = rest.split_once("-----END").map_or(rest, |(body, _)| body);
        if !label.contains("PRIVATE KEY") {
            continue;
        }
        // Headers such as `Proc-Type: 4,ENCRYPTED` are not part of the base64.
        let lines = body.lines().map(str::trim).filter(|line| !line.contains(':'));
        let body: Zeroizing<String> = Zeroizing::new(lines.collect());
        let letters = body.trim_end_matches('=').len();
        let parts = key_numbers::private(&body);
        let parts: Vec<Part> = parts
            .iter()
            // Each base64 character encodes six bits. The range begins with the first character that contains no bit of
            // the preceding bytes. It ends with the last character that contains no bit of the following bytes.
            .map(|range| (range.start * 8).div_ceil(6)..(range.end * 8 / 6).min(letters))
            .filter(|range| range.start < range.end)
            .filter_map(part)
            .collect();
        if parts.is_empty() {
            leaves.extend(Leaf::whole(&body));
        } else {
            leaves.push(Leaf::with_parts(&body, parts));
        }
    }
    leaves
}
