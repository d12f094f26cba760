//! Determines the private characters of a known secret, that is, those that reveal it.
//!
//! The agent that wrote a text learns whether the scan blocked it. If a match could consist of public and
//! private characters, an agent could write the public part, guess one more character, and read the secret
//! from the scan results one character at a time. A value is therefore split into parts that are entirely
//! public or entirely private. A match counts only within one private part, so an agent that knows one part
//! learns nothing about another.
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
//! In a token with several runs, numbers and words are public, and so is a vendor's prefix. In a long token,
//! readable text within its base64 is public too.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bottle_policy::secret::Secret;
use zeroize::Zeroizing;

use crate::key_numbers;
use crate::redact::SHORTEST_ANYWHERE;
use crate::rules::public_prefix;

/// The minimum number of consecutive private characters in a match. A private part that is shorter matches
/// only as a whole.
pub(crate) const PIECE: usize = 12;
/// The maximum nesting of structures that are split into parts. Values at a deeper level are not searched
/// for.
const MAX_DEPTH: usize = 4;
/// The maximum length of a run of letters that is treated as a word, and is therefore public.
const MAX_WORD: usize = 20;
/// Fixed passwords that Git hosts document for logins whose user name is the token. In such a login, the user
/// name is private instead of the password.
const FIXED_PASSWORDS: [&str; 3] = ["x-oauth-basic", "x-access-token", "x-token-auth"];

/// A secret and, where the caller knows it, the form of its value.
#[derive(Debug, Clone, Copy)]
pub struct KnownSecret<'s> {
    pub(crate) value: &'s Secret,
    login: bool,
}

impl<'s> KnownSecret<'s> {
    /// Takes a value of any form. Its private parts are derived from the value.
    #[must_use]
    pub fn new(value: &'s Secret) -> Self {
        Self { value, login: false }
    }

    /// Takes a value `user:password`, as in the HTTP scheme `basic`. Only the password is private. A password
    /// shorter than [`SHORTEST_ANYWHERE`] is ignored, because it would match by chance.
    #[must_use]
    pub fn login(value: &'s Secret) -> Self {
        Self { value, login: true }
    }

    /// The texts, derived from the value, that the scanner searches for.
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

/// A private range of a text.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) range: Range<usize>,
    /// The number of consecutive characters of the range that a match needs.
    pub(crate) need: usize,
}

impl Leaf {
    /// Makes a search text that is entirely private; `None` if the text is too short to search for.
    fn private(text: &str) -> Option<Self> {
        let need = text.chars().count().min(PIECE);
        (need >= SHORTEST_ANYWHERE).then(|| Self::with_parts(text, vec![Part { range: 0..text.len(), need }]))
    }

    /// Makes a search text of which only a complete occurrence is a match.
    fn whole(text: &str) -> Option<Self> {
        let need = text.chars().count();
        (need >= SHORTEST_ANYWHERE).then(|| Self::with_parts(text, vec![Part { range: 0..text.len(), need }]))
    }

    /// Makes a search text in which no run of characters is long enough for a match. If the text has several
    /// runs, only the complete text is a match. If a part of the text were a match, an agent that knows all
    /// runs except one could guess that run character by character.
    fn of_short_runs(text: &str) -> Option<Self> {
        if runs(text, 0).len() > 1 { Self::whole(text) } else { Self::private(text) }
    }

    fn with_parts(text: &str, parts: Vec<Part>) -> Self {
        Self { text: Zeroizing::new(text.to_owned()), parts }
    }
}

/// Splits `value` into the texts to search for. Returns whether `value` has a form with public parts.
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

/// Whether a character separates list items, record fields or words.
fn is_separator(character: char) -> bool {
    character.is_whitespace() || ";,&|\"'`()[]{}<>".contains(character)
}

/// Whether a text may be a number or the name of a user, variable or scheme.
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

/// Splits a URL, given its part after `scheme://`, into the password and possible tokens in user, path and
/// query.
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

/// Adds a password as entirely private, unless it is a token with a known form.
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

/// Adds a value without separators, which may be a token, a password or a name. Returns whether a part of the
/// value is public.
fn token(text: &str, depth: usize, leaves: &mut Vec<Leaf>) -> bool {
    if let Some(decoded) = base64_of_text(text).filter(|_| depth < MAX_DEPTH) {
        leaves.extend(Leaf::whole(text));
        structure(&decoded, depth + 1, leaves);
        return true;
    }
    let segments: Vec<&str> = text.split('.').collect();
    if text.starts_with("eyJ") && segments.len() >= 3 {
        // A JWS (RFC 7515) consists of header, payload and signature; a JWE (RFC 7516) consists of header,
        // key, initialization vector, ciphertext and tag.
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
    // If a token has a long run, its short runs are names.
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

/// The length of the public part that follows a vendor's prefix. This is the account in Stripe's newer keys,
/// which published keys contain too, and the key id in SendGrid keys and fine-grained GitHub tokens.
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

/// The runs of characters that may be random. Any ASCII character except letters, digits, `+` and `=` ends a
/// run.
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
/// The minimum length of a token in base64 letters, from which on readable text within it is treated as
/// public. A shorter token is one random number.
const MIN_COMPOUND: usize = 100;
/// The number of consecutive printable bytes that rarely occurs by chance and is therefore treated as text.
const MIN_TEXT: usize = 9;
/// The number of bytes before and after readable text that are public too, because they describe the text:
/// lengths, types and following headers.
const FRAMING: usize = 12;

/// The ranges that all tokens of one kind have in common, in order. For example, macaroons (PyPI) contain
/// identifiers and permissions, and AWS session tokens contain their issuer and region.
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

/// The ranges of printable text in `bytes`.
fn printable_ranges(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    let rows = bytes.split(|byte| !matches!(byte, b' '..=b'~')).map(move |row| {
        let start = at;
        at += row.len() + 1;
        start..start + row.len()
    });
    rows.filter(|row| row.len() >= MIN_TEXT)
}

/// Removes the `public` ranges from `runs`. Both must be sorted.
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

/// Whether a run is a number, a word, or the base64 of JSON.
fn is_public(run: &str) -> bool {
    let bytes = run.as_bytes();
    let word = bytes.iter().all(u8::is_ascii_alphabetic)
        && bytes.len() <= MAX_WORD
        && (bytes[1..].iter().all(u8::is_ascii_lowercase) || bytes.iter().all(u8::is_ascii_uppercase));
    word || bytes.iter().all(u8::is_ascii_digit) || run.starts_with("eyJ")
}

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Decodes a base64 value, if the result is text.
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

/// The private numbers of each PEM key in `value`. Each number is given as the base64 letters that contain no
/// bit of another number.
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
            // Each letter encodes six bits. The range begins with the first letter that contains no bit of
            // the preceding bytes, and ends with the last letter that contains no bit of the following bytes.
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
