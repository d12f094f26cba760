//! Implements pattern rules: the tables of token rules and phrase rules, and the engine that runs them.
//!
//! ```text
//! filter            the search for keys
//! row               one rule
//! clouds, forges, services, standard_formats    the tables of token rules
//! hex_tokens        tokens of hexadecimal digits in the place of a credential
//! phrases           prompt injection phrases
//! dummies           example values of documentation
//! pem_keys          PEM-like private keys, of any length
//! binary_keys       binary private keys
//! ```
//! A rule's pattern runs only where the text contains one of the rule's keys, and reads only as many bytes as
//! the rule's row allows. The cost is therefore bounded even if an attacker fills a text with keys.

pub(crate) mod binary_keys;
mod clouds;
mod dummies;
mod filter;
mod forges;
mod hex_tokens;
pub(crate) mod pem_keys;
mod phrases;
pub(crate) mod row;
mod services;
mod standard_formats;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use regex::bytes::{Regex, RegexBuilder};

use crate::entropy::bits_per_byte;
use crate::finding::Severity;
use crate::view::View;
use crate::words::words;
use filter::{Filter, Keys};
use row::{BESIDE, Row, USUAL_FLOOR};

/// The expansion of `@=` in a pattern: the rest of a name, quotes as they appear in nested JSON, and an assignment
/// sign.
const ASSIGNMENT: &str = r#"[A-Za-z0-9_.-]{0,24}\\{0,3}["'`]?\s{0,4}(?:=>|:=|=|:)\s{0,4}\\{0,3}["'`]?"#;

/// The expansion of `@~` in a pattern: the text between a name and its value, in more notations than [`ASSIGNMENT`].
/// The additional notations are a space (`ENV NAME value`), a comma (CSV), an XML tag, and a separate field `value`
/// (Kubernetes, ECS).
const WIDE_ASSIGNMENT: &str = r#"[A-Za-z0-9_.-]{0,24}\\{0,3}["'`]?\]?(?:\s{0,4}(?:=>|:=|=|:|,|>)\s{0,4}|(?:\s|\\[nt]){1,4}|(?:</name>)?(?:["'`,\s]|\\{1,3}[nrt"]?){0,40}<?value\\{0,3}["'`]?\s{0,4}[:=>]\s{0,4})\\{0,3}["'`]?"#;

/// The expansion of `@!` in a pattern: an assignment directly after a name, on the same line. Unlike [`ASSIGNMENT`], it
/// contains no rest of the name. The notations are a type (`token: str = `), a comma between strings, an XML tag, and a
/// separate field `value` (Kubernetes, ECS), which may be on the next line.
const NARROW_ASSIGNMENT: &str = r#"(?:\\{0,3}["'`]?\]?(?:[ \t]{0,4}(?::[ \t]{0,2}&?(?:'static )?(?:str|[Ss]tring)[ \t]{1,2})?(?:=>|:=|={1,3}|:|>)|\\{0,3}["'`][ \t]{0,4},)[ \t]{0,4}|(?:["'`,\s]|\\{1,3}[nrt"]?){1,40}<?value\\{0,3}["'`]?[ \t]{0,4}[:=>][ \t]{0,4})\\{0,3}(?:[bfru]?["'`])?"#;

/// The expansion of `@//` in a pattern: the rest of a URL with a login, after the first part of the scheme. Group 1 is
/// the password. Many passwords contain an unescaped `@`, which SQLAlchemy and other parsers accept.
const LOGIN: &str = r"(?:\+[a-z0-9_]{1,24})?://[^\s:/@]{0,80}:([^\s@/]{1,60}@[^\s@/:?=&,]{3,60}|[^\s@/]{4,128})@[A-Za-z0-9\[(_.{$<%/*-]";

/// The size in bytes of the windows in which the entropy of a secret is measured. Because the size is fixed, appended
/// text cannot lower the result.
const ENTROPY_WINDOW: usize = 32;

/// The maximum number of characters that may continue a token after a match and are redacted together with the match.
const MAX_TAIL: usize = 4096;

/// The maximum number of bytes before or after a text that a rule may read as context.
pub(crate) const REACH: usize = 4096;

/// The compiled rules of one or more tables.
pub(crate) struct RuleSet {
    kind: Keys,
    filter: Filter,
    /// The index of the rule and the length of each key in the search index.
    owners: Vec<(usize, usize)>,
    rules: Vec<Rule>,
}

struct Rule {
    row: &'static Row,
    id: Arc<str>,
    /// The punctuation that may continue a token beyond the match.
    joiners: &'static str,
    /// Whether the pattern consists only of letters, digits and gaps. If it does, matching the view that `words`
    /// returns finds all matches in the text itself.
    only_words: bool,
    /// The compiled pattern. The pattern is compiled when a key of the rule is first found in a text, because the keys
    /// of most rules are never found.
    regex: OnceLock<Option<Regex>>,
}

/// A match of a rule.
pub(crate) struct Match {
    pub(crate) span: Range<usize>,
    pub(crate) id: Arc<str>,
    pub(crate) words: Cow<'static, str>,
    pub(crate) severity: Severity,
    /// The row of the rule, if the match is a private key that may continue after the end of the text.
    pub(crate) open: Option<&'static Row>,
}

/// Returns the token rules.
pub(crate) fn tokens() -> &'static RuleSet {
    static SET: LazyLock<RuleSet> = LazyLock::new(|| RuleSet::new(Keys::Tokens, token_rows()));
    &SET
}

/// Returns the prompt injection rules.
pub(crate) fn phrases() -> &'static RuleSet {
    static SET: LazyLock<RuleSet> = LazyLock::new(|| RuleSet::new(Keys::Phrases, phrases::ROWS.iter()));
    &SET
}

fn token_rows() -> impl Iterator<Item = &'static Row> {
    [clouds::ROWS, forges::ROWS, services::ROWS, standard_formats::ROWS, hex_tokens::ROWS]
        .into_iter()
        .flatten()
}

/// Returns the number of token rules.
#[must_use]
pub fn token_kinds() -> usize {
    token_rows().count()
}

/// Returns the ids and descriptions of the token rules, for example `("github-oauth-token", "a GitHub OAuth token")`.
pub fn token_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    token_rows().map(|row| (row.id, row.words))
}

/// Returns the length in bytes of the vendor's prefix at the start of `value`, or 0 if there is none.
pub(crate) fn public_prefix(value: &str) -> usize {
    let known =
        token_rows().filter(|row| row.lookbehind == 0 && row.place.is_none()).flat_map(|row| row.keys);
    known.filter(|key| value.starts_with(**key)).map(|key| key.len()).max().unwrap_or(0)
}

impl RuleSet {
    fn new(kind: Keys, rows: impl Iterator<Item = &'static Row>) -> Self {
        let rules: Vec<Rule> = rows.map(Rule::new).collect();
        let (mut owners, mut keys) = (Vec::new(), Vec::new());
        for (number, rule) in rules.iter().enumerate() {
            owners.extend(rule.row.keys.iter().map(|key| (number, key.len())));
            keys.extend(rule.row.keys.iter().map(|key| key.as_bytes()));
        }
        Self { kind, filter: Filter::new(kind, keys), owners, rules }
    }

    /// Finds every match in `text`. Matches of one rule do not overlap. A phrase is also found if gaps other than
    /// spaces separate its words.
    pub(crate) fn find(&self, text: &[u8], mut found: impl FnMut(Match)) {
        // The end of each rule's last match. A key before this end does not begin another match of the rule.
        let mut ends: Vec<(usize, usize)> = Vec::new();
        // The view is built when the first key of a phrase is found, so it costs nothing for other texts.
        let mut read: Option<View<'_>> = None;
        self.filter.each(text, |key, place| {
            let (owner, length) = self.owners[key];
            if ends.iter().any(|(rule, end)| *rule == owner && place < *end) {
                return;
            }
            let rule = &self.rules[owner];
            let found_here = match self.kind {
                Keys::Tokens => rule.at(text, place, length),
                Keys::Phrases => {
                    let words = read.get_or_insert_with(|| words(text));
                    rule.phrase_at(text, words, place, length)
                }
            };
            if let Some(found_here) = found_here {
                ends.retain(|(rule, _)| *rule != owner);
                ends.push((owner, found_here.span.end));
                found(found_here);
            }
        });
    }
}

impl Rule {
    fn new(row: &'static Row) -> Self {
        Self {
            row,
            id: row.id.into(),
            joiners: joiners(row.pattern),
            only_words: has_only_words(row.pattern),
            regex: OnceLock::new(),
        }
    }

    /// Returns the match of the rule at one of its keys. The key is at `place` and has `length` bytes. Returns `None`
    /// if the rule's pattern or a condition of its row does not match.
    fn at(&self, text: &[u8], place: usize, length: usize) -> Option<Match> {
        let row = self.row;
        if let Some(armour) = row.armour {
            let (start, body) = armour.at(text, place, place + length)?;
            let open = body.open.then_some(row);
            return Some(self.matched(start..body.end, row.severity, open));
        }
        let begin = place.saturating_sub(row.lookbehind);
        let before = begin.checked_sub(1).and_then(|at| text.get(at));
        // A key that does not begin a word does not match, because base64 contains many such keys by chance.
        let joined =
            [before, text.get(begin)].into_iter().all(|byte| byte.is_some_and(u8::is_ascii_alphanumeric));
        let may_be_joined = row.lookbehind > 0 || row.place.is_some() || is_distinctive(row, length);
        let strict = joined && !may_be_joined && !after_escape(text, begin);
        // A correct checksum proves a token even if the token does not begin a word.
        if strict && row.check.is_none() {
            return None;
        }
        let seen = &text[begin..text.len().min(place + row.longest)];
        if !has_hex_run(seen, row.hex_digits) {
            return None;
        }
        let captures = self.regex.get_or_init(|| compile(row)).as_ref()?.captures(seen)?;
        let whole = captures.get(0)?;
        let secret = captures.iter().skip(1).flatten().next().unwrap_or(whole);
        if let Some(near) = row.beside {
            let (start, end) = (begin + whole.start(), begin + whole.end());
            if !near(&text[start.saturating_sub(BESIDE)..start], &text[end..text.len().min(end + BESIDE)]) {
                return None;
            }
        }
        if let Some(is_place) = row.place {
            let start = begin + whole.start();
            let before = &text[start.saturating_sub(BESIDE)..start];
            if !is_place(before, &text[start..begin + secret.start()], secret.as_bytes()) {
                return None;
            }
        }
        // Phrases have no entropy floor, and match even if they contain an example value.
        let is_token = row.entropy > 0.0;
        // A vendor's prefix is not part of the secret, so the entropy of the prefix does not count.
        let public = if captures.len() == 1 && row.lookbehind == 0 { length } else { 0 };
        if is_token
            && (!is_random(secret.as_bytes(), public, row.entropy) || dummies::is_dummy(secret.as_bytes()))
        {
            return None;
        }
        let fits = row.check.is_none() || crc_matches(whole.as_bytes());
        if strict && !fits {
            return None;
        }
        let severity = if fits { row.severity } else { Severity::Warn };
        let mut span = begin + secret.start()..begin + secret.end();
        if is_token {
            span.end += self.tail(&text[span.end..]);
        }
        let mut found = self.matched(span, severity, None);
        if !fits {
            found.words = format!("{} with a wrong checksum", row.words).into();
        }
        Some(found)
    }

    /// Works like [`at`](Self::at), but searches the text and its words. `place` is a position in the text.
    fn phrase_at(&self, text: &[u8], words: &View<'_>, place: usize, length: usize) -> Option<Match> {
        let is_same = matches!(words.bytes, Cow::Borrowed(_));
        let in_text = if is_same || !self.only_words { self.at(text, place, length) } else { None };
        if is_same || in_text.is_some() {
            return in_text;
        }
        let mut found = self.at(&words.bytes, words.offset(place), length)?;
        found.span = words.source_range(&found.span);
        Some(found)
    }

    /// Returns the length of the rest of a token that is longer than its pattern. `text` is the text after the match.
    /// The rest consists of letters, digits, the punctuation of the pattern's last character class, and base64 padding.
    /// Other text after a token, such as the rest of a path or a query, is not a part of the secret.
    fn tail(&self, text: &[u8]) -> usize {
        let joins = |byte: &u8| byte.is_ascii_alphanumeric() || self.joiners.as_bytes().contains(byte);
        let length = text.iter().take(MAX_TAIL).take_while(|byte| joins(byte)).count();
        let padding = text[length..].iter().take_while(|byte| **byte == b'=').count();
        let pads = !self.joiners.is_empty() && padding <= 2 && !text.get(length + padding).is_some_and(joins);
        length + if pads { padding } else { 0 }
    }

    fn matched(&self, span: Range<usize>, severity: Severity, open: Option<&'static Row>) -> Match {
        Match { span, id: self.id.clone(), words: self.row.words.into(), severity, open }
    }
}

/// Returns whether the letter before `place` is part of an escape such as `\n` rather than part of a word.
fn after_escape(text: &[u8], place: usize) -> bool {
    place >= 2 && text[place - 2] == b'\\' && matches!(text[place - 1], b'n' | b'r' | b't' | b'f' | b'v')
}

/// Compiles the pattern of a row. Returns `None` if the pattern is invalid. A test checks that all patterns are valid.
fn compile(row: &Row) -> Option<Regex> {
    let assignments =
        [("@=", ASSIGNMENT), ("@~", WIDE_ASSIGNMENT), ("@!", NARROW_ASSIGNMENT), ("@//", LOGIN)];
    let pattern =
        assignments.iter().fold(row.pattern.to_owned(), |pattern, (mark, text)| pattern.replace(mark, text));
    // A token matches even if more text follows it immediately, so the end anchor of the pattern is removed. A pattern
    // with a lookbehind keeps its end anchor, because its key does not identify the token.
    let pattern =
        if row.lookbehind == 0 && row.entropy > 0.0 { without_end_anchor(&pattern) } else { &pattern };
    let pattern = if row.lookbehind == 0 { format!(r"\A(?:{pattern})") } else { pattern.to_owned() };
    RegexBuilder::new(&pattern).unicode(false).size_limit(4 << 20).build().ok()
}

/// Returns the punctuation with which a token of this pattern may end. If the pattern ends with a negated character
/// class, returns the punctuation of both base64 alphabets.
fn joiners(pattern: &str) -> &'static str {
    let pattern = without_end_anchor(pattern);
    let class = pattern.rfind('[').map_or("", |start| &pattern[start + 1..]);
    let class = class.split(']').next().unwrap_or_default();
    let (url_safe, standard) = (class.ends_with('-') || class.contains('_'), class.contains('/'));
    match (class.starts_with('^') || url_safe && standard, url_safe, standard) {
        (true, ..) => "_-+/",
        (_, true, _) => "_-",
        (_, _, true) => "+/",
        _ => "",
    }
}

/// Returns whether a space is the only character of a pattern that can match a part of a gap.
fn has_only_words(pattern: &str) -> bool {
    let classes = [r"\s", r"\W", r"\w", r"\b"];
    let rest = classes.into_iter().fold(pattern.to_owned(), |rest, class| rest.replace(class, ""));
    rest.chars().all(|it| it.is_alphanumeric() || " '(?:)|[]{},".contains(it))
}

/// Removes the condition on the text after the token from the end of a pattern.
fn without_end_anchor(pattern: &str) -> &str {
    let class = pattern.strip_suffix(r"|\z)").and_then(|rest| Some(&rest[..rest.rfind("(?:[^")?]));
    class.unwrap_or_else(|| pattern.strip_suffix(r"\b").unwrap_or(pattern))
}

/// Returns whether a key of `length` bytes occurs only in tokens. Such a key counts even within a longer word.
fn is_distinctive(row: &Row, length: usize) -> bool {
    let sign = |key: &&&str| key.len() == length && key.bytes().any(|byte| !byte.is_ascii_alphanumeric());
    length >= 4 && row.entropy == USUAL_FLOOR && row.keys.iter().any(|key| sign(&key))
}

/// Returns whether `text` contains `count` consecutive hexadecimal digits.
fn has_hex_run(text: &[u8], count: usize) -> bool {
    let digits =
        |bytes: &mut dyn Iterator<Item = &u8>| bytes.take_while(|byte| byte.is_ascii_hexdigit()).count();
    // Each run of this length contains a position that is tested.
    let mut tested = (count.saturating_sub(1)..text.len()).step_by(count.max(1));
    count == 0
        || tested.any(|at| digits(&mut text[..at].iter().rev()) + digits(&mut text[at..].iter()) >= count)
}

/// Returns whether the complete secret, or a window of the secret after its first `public` bytes, reaches the entropy
/// `floor`. Appended text can lower the entropy of the complete secret, so windows are measured too.
fn is_random(secret: &[u8], public: usize, floor: f64) -> bool {
    let rest = &secret[public.min(secret.len())..];
    bits_per_byte(secret) >= floor
        || rest.windows(ENTROPY_WINDOW).step_by(ENTROPY_WINDOW / 4).any(|part| bits_per_byte(part) >= floor)
}

/// Returns whether the last six characters are the checksum of the other characters after the prefix.
fn crc_matches(token: &[u8]) -> bool {
    let body = token.iter().rposition(|byte| *byte == b'_').map_or(token, |at| &token[at + 1..]);
    body.len().checked_sub(6).is_some_and(|at| base62(crc32(&body[..at])) == body[at..])
}

/// Computes the CRC-32 that zlib uses.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

fn base62(mut number: u32) -> [u8; 6] {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut text = [b'0'; 6];
    for digit in text.iter_mut().rev() {
        *digit = DIGITS[(number % 62) as usize];
        number /= 62;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks that a rule with `only_words` finds its examples in the words of a text.
    #[test]
    fn phrases_of_words_are_found_as_words() {
        let rules: Vec<_> = phrases().rules.iter().filter(|rule| rule.only_words).collect();
        let ids: Vec<_> = rules.iter().map(|rule| &*rule.id).collect();
        for (id, has) in [
            ("override-en", true),
            ("override-ru", true),
            ("override-fr", false),
            ("turn-plain", false),
            ("execute-download", false),
        ] {
            assert_eq!(ids.contains(&id), has, "{id}");
        }
        for rule in rules {
            for like in rule.row.like {
                // The first text has an additional gap, so that the view of its words differs from the text.
                for text in [format!("one\ttwo {like}"), like.replace(' ', " \n")] {
                    let mut found = Vec::new();
                    phrases().find(text.as_bytes(), |found_here| found.push(found_here.id));
                    assert!(found.contains(&rule.id), "{}: {text:?}", rule.id);
                }
            }
        }
    }

    /// Replaces placeholders such as `<36w>` by generated characters (here 36), so that the repository contains no
    /// token. A `#` in the placeholder appends the checksum.
    fn generated(template: &str) -> String {
        let mut text = String::new();
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut rest = template;
        while let Some((before, tail)) = rest.split_once('<') {
            text.push_str(before);
            rest = tail;
            if !tail.starts_with(|letter: char| letter.is_ascii_digit()) {
                text.push('<');
                continue;
            }
            let (inside, tail) = tail.split_once('>').expect("closed");
            rest = tail;
            let digits = inside.trim_end_matches(|letter: char| !letter.is_ascii_digit());
            let alphabet: &[u8] = match inside[digits.len()..].trim_end_matches('#') {
                "w" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                "h" => b"0123456789abcdef",
                "U" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
                "A" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
                "l" => b"abcdefghijklmnopqrstuvwxyz0123456789",
                "d" => b"0123456789",
                "b" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-",
                "B" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
                "Q" => b"QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
                "K" => b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
                other => panic!("no alphabet {other}"),
            };
            let mut made = Vec::new();
            for place in 0..digits.parse::<usize>().expect("a count") {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // The first character is not a separator: in alphabets with separators, they are the last two
                // characters.
                let plain = if place == 0 { alphabet.len() - 2 } else { alphabet.len() };
                made.push(alphabet[usize::try_from(state >> 33).expect("small") % plain]);
            }
            if inside.ends_with('#') {
                let sum = base62(crc32(&made));
                made.extend(sum);
            }
            if let Some(last) = made.last_mut().filter(|last| !last.is_ascii_alphanumeric()) {
                *last = b'Q';
            }
            text.push_str(std::str::from_utf8(&made).expect("ASCII"));
        }
        text + rest
    }

    fn ids(set: &RuleSet, text: &str) -> Vec<(String, Severity)> {
        let mut ids = Vec::new();
        set.find(text.as_bytes(), |found| ids.push((found.id.to_string(), found.severity)));
        ids
    }

    /// Returns the examples of `rows` that give a wrong result.
    fn wrong(set: &RuleSet, rows: &[&Row]) -> Vec<String> {
        let mut wrong = Vec::new();
        for row in rows {
            assert!(!row.like.is_empty() && !row.unlike.is_empty(), "{}: examples", row.id);
            for template in row.like {
                for text in [generated(template), format!("{{\"a\": \"b {}\"}}\n", generated(template))] {
                    let found = ids(set, &text);
                    if !found.contains(&(row.id.to_owned(), row.severity)) {
                        wrong.push(format!("{} is not found in {text}: {found:?}", row.id));
                    }
                }
            }
            for text in row.unlike.iter().map(|template| generated(template)) {
                if ids(set, &text).iter().any(|(id, _)| id == row.id) {
                    wrong.push(format!("{} is found in {text}", row.id));
                }
            }
        }
        wrong
    }

    #[test]
    fn adjacent_text_does_not_hide_a_secret() {
        let mut missed = Vec::new();
        for host in ["192.0.2.7", "localhost:5432", "127.0.0.1", "example.com", "db.example.org:1", "db.test"]
        {
            for password in [
                "qX7zR2mK9pL4wT8v",
                "$qX7zR2mK9pL4wT8v",
                "{qX7zR2mK9pL4wT8v}",
                "qX7zR2mK9pexample",
                "qX7zR2mK9pxxxxxx",
            ] {
                for scheme in ["postgres", "mysql", "mongodb", "redis", "amqp", "https"] {
                    let text = format!("{scheme}://u:{password}@{host}/x");
                    if ids(tokens(), &text).is_empty() {
                        missed.push(text);
                    }
                }
            }
        }
        for row in token_rows().filter(|row| row.armour.is_none() && row.severity == Severity::Block) {
            let token = generated(row.like[0]);
            let spaced = [
                ("", " example"),
                ("", " # example"),
                ("example ", ""),
                ("your-", " placeholder changeme redacted"),
                ("sha512-", ""),
                ("h1:", ""),
            ];
            // Pairs of texts that directly precede and directly follow a token. These pairs are used only for rules
            // without a lookbehind.
            let joined = [
                ("", "example"),
                ("", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
                ("", "EXAMPLE"),
                ("", "_placeholder"),
            ];
            let ends_open = row.lookbehind == 0;
            for (before, after) in spaced.into_iter().chain(joined.into_iter().filter(|_| ends_open)) {
                let text = format!("{before}{token}{after}");
                if !ids(tokens(), &text)
                    .iter()
                    .any(|(id, severity)| id == row.id && *severity == Severity::Block)
                {
                    missed.push(text);
                }
            }
        }
        assert!(missed.is_empty(), "{missed:#?}");
    }

    #[test]
    fn redacts_appended_characters_with_a_token() {
        let token = generated("glpat-<20b>");
        for added in ["example", &"x".repeat(900)] {
            let mut spans = Vec::new();
            let text = format!("a {token}{added} b");
            tokens().find(text.as_bytes(), |found| spans.push(found.span));
            assert_eq!(spans, vec![2..text.len() - 2]);
        }
    }

    #[test]
    fn text_after_a_token_is_no_part_of_it() {
        for (token, after, taken) in [
            ("glpat-<20b>", "/-/merge_requests/12", ""),
            ("glpat-<20b>", "=value&x=1", ""),
            ("glpat-<20b>", "@example.com", ""),
            ("ghp_<30w#>", "-branch", ""),
            ("ghp_<30w#>", "_suffix/x", ""),
            ("ghp_<30w#>", "=", ""),
            ("ghp_<30w#>", "more/x", "more"),
            ("sk-ant-api03-<95b>", "/v1/messages?a=b", ""),
            ("sk-ant-api03-<95b>", "_x-y/z", "_x-y"),
            ("whsec_<32B>", "+/x==,", "+/x=="),
            ("whsec_<32B>", "=x", ""),
            ("AWS_SECRET_ACCESS_KEY=<40B>", "+more==&", "+more=="),
            ("AWS_SECRET_ACCESS_KEY=<40B>", "=1", ""),
        ] {
            let token = generated(token);
            let text = format!("{token}{after}");
            let mut ends = Vec::new();
            tokens().find(text.as_bytes(), |found| ends.push(found.span.end));
            assert!(
                !ends.is_empty() && ends.iter().all(|end| *end == token.len() + taken.len()),
                "{text}: {ends:?}"
            );
        }
    }

    #[test]
    fn joiners_are_the_punctuation_of_the_last_characters() {
        let of = |id: &str| {
            let row = token_rows().find(|row| row.id == id).expect("a rule");
            joiners(row.pattern)
        };
        for (id, punctuation) in [
            ("gitlab-runner-token", "_-"),
            ("github-personal-token", ""),
            ("gcp-api-key", "_-"),
            ("aws-secret-access-key", "+/"),
            ("onepassword-service-token", "_-+/"),
            ("aws-mws-token", ""),
            ("netrc-login", "_-+/"),
            ("slack-other-token", "_-"),
        ] {
            assert_eq!(of(id), punctuation, "{id}");
        }
    }

    #[test]
    fn ignores_documentation_examples() {
        for text in [
            "aws_access_key_id = AKIAIOSFODNN7EXAMPLE",
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "postgres://user:password@localhost:5432/app",
            "postgres://postgres:postgres@db/app",
            "https://user:${PASSWORD}@db.example.com/",
            "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            "glpat-xxxxxxxxxxxxxxxxxxxx",
            "sk-ant-api03-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ] {
            assert_eq!(ids(tokens(), text), [], "{text}");
        }
    }

    #[test]
    fn every_rule_matches_its_examples_only() {
        assert_eq!(wrong(tokens(), &token_rows().collect::<Vec<_>>()), [""; 0]);
        assert_eq!(wrong(phrases(), &phrases::ROWS.iter().collect::<Vec<_>>()), [""; 0]);
    }

    #[test]
    fn rows_are_complete() {
        assert!(token_kinds() >= 120, "{}", token_kinds());
        let mut ids = BTreeSet::new();
        for row in token_rows().chain(phrases::ROWS) {
            assert!(ids.insert(row.id), "{} appears twice", row.id);
            assert!(compile(row).is_some(), "{}: {}", row.id, row.pattern);
            assert!(row.lookbehind + row.longest <= REACH, "{}", row.id);
            assert!(!row.keys.is_empty() && row.keys.iter().all(|key| key.len() >= 3), "{}", row.id);
        }
        for key in phrases::ROWS.iter().flat_map(|row| row.keys) {
            // The search index contains only the first word of a phrase.
            assert!(key.split([' ', '\'']).next().is_some_and(|word| word.len() >= 3), "{key}");
        }
    }

    #[test]
    fn a_wrong_checksum_only_warns() {
        let right = generated("ghp_<30w#>");
        let wrong = format!("{}000000", &right[..34]);
        assert_eq!(ids(tokens(), &right), [("github-personal-token".to_owned(), Severity::Block)]);
        assert_eq!(ids(tokens(), &wrong), [("github-personal-token".to_owned(), Severity::Warn)]);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_run_of_digits_is_found_at_each_position() {
        for before in 0..70 {
            for after in [0, 1, 40] {
                let text =
                    |digits| format!("{}{}{}", "x".repeat(before), "a".repeat(digits), "x".repeat(after));
                assert!(has_hex_run(text(32).as_bytes(), 32), "{before} {after}");
                assert!(!has_hex_run(text(31).as_bytes(), 32), "{before} {after}");
            }
        }
        assert!(has_hex_run(b"", 0) && !has_hex_run(b"", 32));
    }

    #[test]
    fn ignores_words_that_end_in_a_key() {
        let token = generated("hf_<34w>");
        assert!(ids(tokens(), &format!("x{token}")).is_empty());
        assert_eq!(ids(tokens(), &format!("\\n{token}")).len(), 1);
        // If the key or a checksum identifies the token, the surrounding text does not matter.
        for token in [generated("ghp_<30w#>"), generated("glpat-<20w>"), generated("sk-ant-api03-<95b>")] {
            assert_eq!(ids(tokens(), &format!("x{token}")).len(), 1, "{token}");
            assert_eq!(ids(tokens(), &format!("-{token}_")).len(), 1, "{token}");
        }
        let wrong = format!("x{}000000", &generated("ghp_<30w#>")[..34]);
        assert_eq!(ids(tokens(), &wrong), [("github-personal-token".to_owned(), Severity::Warn)]);
    }

    #[test]
    fn repeated_keys_have_bounded_cost() {
        for key in token_rows().flat_map(|row| row.keys) {
            let text = key.repeat(1 + 20_000 / key.len());
            assert!(ids(tokens(), &text).len() <= text.len() / 8, "{key}");
        }
    }
}
