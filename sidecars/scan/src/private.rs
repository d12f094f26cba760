//! Which characters of a known secret are private, and so give it away.
//!
//! A verdict on a text is an answer to whoever wrote the text. If a piece of a secret counted that is partly
//! public, an agent could write that part, guess one character more, and read the secret from verdicts. So a
//! value is cut into parts, each of which is public or private as a whole, and a piece counts only within one
//! part: what is known of one part says nothing of another.
//!
//! ```text
//! user:password, scheme://user:password@host, name=value    the password, the value
//! a=b;c=d  a=b&c=d  lines  quotes  words                    each item by itself
//! JSON                                                      each string by itself
//! PEM                                                       the numbers that the public key does not have
//! head.payload.signature                                    the signature
//! base64 of text                                            what it says
//! anything else                                             each run of letters, digits, `+` and `=`
//! ```
//! Of a token with several runs those are public that are numbers or words; so is a vendor's prefix, and what a long
//! token in base64 says in text.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bottle_contract::secret::Secret;
use zeroize::Zeroizing;

use crate::pem;
use crate::redact::SHORTEST_ANYWHERE;
use crate::rules::public_prefix;

/// So many private characters in a row give a secret away.
pub(crate) const PIECE: usize = 12;
/// Structures within structures are looked into so deep.
const DEPTH: usize = 4;
/// The longest run of letters that may be a word.
const LONGEST_WORD: usize = 20;
/// Passwords that forges document for a token that stands as the user's name.
const NO_PASSWORDS: [&str; 3] = ["x-oauth-basic", "x-access-token", "x-token-auth"];

/// A value that must not pass, with what is known of its form.
#[derive(Debug, Clone, Copy)]
pub struct KnownSecret<'s> {
    pub(crate) value: &'s Secret,
    login: bool,
}

impl<'s> KnownSecret<'s> {
    /// A value of any form: its private parts are told from the value itself.
    #[must_use]
    pub fn new(value: &'s Secret) -> Self {
        Self { value, login: false }
    }

    /// `user:password`, as in the scheme `basic`: the password alone is looked for. One shorter than
    /// [`SHORTEST_ANYWHERE`] is not looked for at all: it would turn up by chance.
    #[must_use]
    pub fn login(value: &'s Secret) -> Self {
        Self { value, login: true }
    }

    /// The texts to look for.
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

/// A text that holds something private.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) text: Zeroizing<String>,
    pub(crate) parts: Vec<Part>,
}

/// A private part of a text.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) range: Range<usize>,
    /// So many characters of it in a row count.
    pub(crate) need: usize,
}

impl Leaf {
    /// A text that is private throughout; none if it is too short to be looked for.
    fn private(text: &str) -> Option<Self> {
        let need = text.chars().count().min(PIECE);
        (need >= SHORTEST_ANYWHERE).then(|| Self::of(text, vec![Part { range: 0..text.len(), need }]))
    }

    /// A text of which nothing counts but all of it.
    fn whole(text: &str) -> Option<Self> {
        let need = text.chars().count();
        (need >= SHORTEST_ANYWHERE).then(|| Self::of(text, vec![Part { range: 0..text.len(), need }]))
    }

    fn of(text: &str, parts: Vec<Part>) -> Self {
        Self { text: Zeroizing::new(text.to_owned()), parts }
    }
}

/// Takes `value` apart. Says whether it has a form by which some of it is public.
fn structure(value: &str, depth: usize, leaves: &mut Vec<Leaf>) -> bool {
    if depth > DEPTH {
        return false;
    }
    if value.contains("-----BEGIN ") {
        leaves.extend(armoured(value));
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
        address(rest, depth, leaves);
        return true;
    }
    if value.contains(is_border) {
        let mut formed = false;
        for item in value.split(is_border).filter(|item| !item.is_empty()) {
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
            leaves.extend(Leaf::private(rest));
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
                leaves.extend(Leaf::private(rest));
            }
        } else {
            token(value, depth + 1, leaves);
        }
        return depth == 0;
    }
    token(value, depth, leaves)
}

/// Whatever stands between the items of a list, the fields of a record, or words.
fn is_border(character: char) -> bool {
    character.is_whitespace() || ";,&|\"'`()[]{}<>".contains(character)
}

/// Whether it may name something: a user, a variable, a scheme, a number.
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

/// What follows `scheme://`: the password, and what in user, path and query may be a token.
fn address(rest: &str, depth: usize, leaves: &mut Vec<Leaf>) {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A password may hold what should have been encoded.
    let end = rest.rfind('@').map_or(end, |at| at.max(end));
    let (authority, path) = rest.split_at(end);
    let (login, path) = match rest.rsplit_once('@') {
        Some((login, after)) => (Some(login), after.split_once(['/', '?', '#']).map_or("", |(_, path)| path)),
        None => (None, path),
    };
    if let Some(login) = login.or_else(|| authority.rsplit_once('@').map(|(login, _)| login)) {
        match login.split_once(':') {
            Some((_, secret)) if !secret.is_empty() && !NO_PASSWORDS.contains(&secret) => {
                password(secret, depth, leaves);
            }
            Some((user, _)) => drop(token(user, depth + 1, leaves)),
            None => drop(token(login, depth + 1, leaves)),
        }
    }
    let mut found = Vec::new();
    for item in path.split(|letter: char| is_border(letter) || "/?#".contains(letter)) {
        if !item.is_empty() {
            structure(item, depth + 1, &mut found);
        }
    }
    if found.iter().any(|leaf| leaf.parts.iter().any(is_long)) {
        found.retain(|leaf| leaf.parts.iter().any(is_long));
    }
    leaves.append(&mut found);
}

/// A password: private throughout, if it is not a token with a form of its own.
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

/// A text without borders: a token, a password of unknown use, a name. Says whether some of it is public.
fn token(text: &str, depth: usize, leaves: &mut Vec<Leaf>) -> bool {
    if let Some(said) = base64_of_text(text).filter(|_| depth < DEPTH) {
        leaves.extend(Leaf::whole(text));
        structure(&said, depth + 1, leaves);
        return true;
    }
    let segments: Vec<&str> = text.split('.').collect();
    if text.starts_with("eyJ") && segments.len() >= 3 {
        // RFC 7515: head, payload, signature; RFC 7516: head, key, vector, text, tag.
        let public = if segments.len() == 3 { 2 } else { 1 };
        let from: usize = segments[..public].iter().map(|segment| segment.len() + 1).sum();
        let mut parts = Vec::new();
        let mut at = from;
        for segment in &segments[public..] {
            parts.extend(part(at..at + segment.len()));
            at += segment.len() + 1;
        }
        leaves.push(Leaf::of(text, parts));
        return true;
    }
    let prefix = public_prefix(text) + account(text);
    let runs = without(runs(text, prefix), &said(text, prefix));
    let several = runs.len() > 1 || depth > 0;
    let private = |run: &&Range<usize>| !(several && is_public(&text[run.start..run.end]));
    let mut parts: Vec<Part> = runs.iter().filter(private).cloned().filter_map(part).collect();
    // Beside a long run the short ones are names.
    if parts.iter().any(is_long) {
        parts.retain(is_long);
    }
    if parts.is_empty() {
        return false;
    }
    leaves.push(Leaf::of(text, parts));
    prefix > 0
}

fn is_long(part: &Part) -> bool {
    part.range.len() >= PIECE
}

fn part(range: Range<usize>) -> Option<Part> {
    let need = range.len().min(PIECE);
    (need >= SHORTEST_ANYWHERE).then_some(Part { range, need })
}

/// What stands behind the prefix and is public too: the account in Stripe's newer keys (it is in published keys as
/// well), the id of a key of SendGrid and of a fine-grained token of GitHub.
fn account(text: &str) -> usize {
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

/// Runs of what may be random: everything but signs of ASCII that stand between parts.
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

/// Where OpenAI's keys say what they are.
const WITHIN: &str = "T3BlbkFJ";
/// Letters of base64 of the shortest token that is more than one random number.
const COMPOUND: usize = 100;
/// Printed bytes in a row that are a text and not chance.
const SAID: usize = 9;
/// Bytes around a text that frame it: lengths, kinds, the heads of what follows.
const FRAMING: usize = 12;

/// What a token says behind its prefix, which others of its kind say too: macaroons (PyPI) hold their identifiers and
/// permissions, session tokens of AWS their issuer and region. In order.
fn said(text: &str, prefix: usize) -> Vec<Range<usize>> {
    let mut said: Vec<Range<usize>> =
        text.match_indices(WITHIN).map(|(at, word)| at..at + word.len()).collect();
    let body: Zeroizing<String> = Zeroizing::new(text[prefix..].replace('-', "+").replace('_', "/"));
    let body = body.trim_end_matches('=');
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    if body.len() < COMPOUND || !body.bytes().all(is_letter) {
        return said;
    }
    // A vendor's prefix may end within a group of four letters.
    let readings = (0..4).map(|skip| {
        let letters = &body[skip..];
        let letters = &letters[..letters.len() - usize::from(letters.len() % 4 == 1)];
        let engine = GeneralPurpose::new(&STANDARD, LENIENT.with_decode_allow_trailing_bits(true));
        let bytes = Zeroizing::new(engine.decode(letters).unwrap_or_default());
        let from = prefix + skip;
        let texts = printed(&bytes).map(|range| {
            let start = range.start.saturating_sub(FRAMING) * 8 / 6;
            let end = ((range.end + FRAMING) * 8).div_ceil(6);
            from + start..text.len().min(from + end)
        });
        texts.collect::<Vec<_>>()
    });
    said.extend(readings.max_by_key(|texts| texts.iter().map(Range::len).sum::<usize>()).unwrap_or_default());
    said.sort_unstable_by_key(|range| range.start);
    said
}

/// The texts in `bytes`.
fn printed(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    let rows = bytes.split(|byte| !matches!(byte, b' '..=b'~')).map(move |row| {
        let start = at;
        at += row.len() + 1;
        start..start + row.len()
    });
    rows.filter(|row| row.len() >= SAID)
}

/// `runs` without `public`; both are in order.
fn without(runs: Vec<Range<usize>>, public: &[Range<usize>]) -> Vec<Range<usize>> {
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

/// A number, a word, or JSON in base64.
fn is_public(run: &str) -> bool {
    let bytes = run.as_bytes();
    let word = bytes.iter().all(u8::is_ascii_alphabetic)
        && bytes.len() <= LONGEST_WORD
        && (bytes[1..].iter().all(u8::is_ascii_lowercase) || bytes.iter().all(u8::is_ascii_uppercase));
    word || bytes.iter().all(u8::is_ascii_digit) || run.starts_with("eyJ")
}

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// What a value in base64 says, if that is text.
fn base64_of_text(text: &str) -> Option<Zeroizing<String>> {
    if text.len() < 16 || text.len() % 4 == 1 {
        return None;
    }
    [&STANDARD, &URL_SAFE].into_iter().find_map(|alphabet| {
        let bytes =
            GeneralPurpose::new(alphabet, LENIENT.with_decode_allow_trailing_bits(true)).decode(text).ok()?;
        let said = Zeroizing::new(String::from_utf8(bytes).ok()?);
        let plain = said.chars().all(|character| !character.is_control() || character.is_whitespace());
        plain.then_some(said)
    })
}

/// The private numbers of each key in PEM, as the letters that are made of nothing else.
fn armoured(value: &str) -> Vec<Leaf> {
    // As it stands in variables and in JSON.
    let value = Zeroizing::new(value.replace("\\r", "").replace("\\n", "\n"));
    let mut leaves = Vec::new();
    for block in value.split("-----BEGIN ").skip(1) {
        let Some((label, rest)) = block.split_once("-----") else { continue };
        let body = rest.split_once("-----END").map_or(rest, |(body, _)| body);
        if !label.contains("PRIVATE KEY") {
            continue;
        }
        // Heads such as `Proc-Type: 4,ENCRYPTED` are no part of it.
        let lines = body.lines().map(str::trim).filter(|line| !line.contains(':'));
        let body: Zeroizing<String> = Zeroizing::new(lines.collect());
        let letters = body.trim_end_matches('=').len();
        let parts = pem::private(&body);
        let parts: Vec<Part> = parts
            .iter()
            // Six bits each: the first letter that has no bit of what is before, the last without one behind.
            .map(|range| (range.start * 8).div_ceil(6)..(range.end * 8 / 6).min(letters))
            .filter(|range| range.start < range.end)
            .filter_map(part)
            .collect();
        if parts.is_empty() {
            leaves.extend(Leaf::whole(&body));
        } else {
            leaves.push(Leaf::of(&body, parts));
        }
    }
    leaves
}
