//! Rules by shape: one table of tokens, one of phrases, the same machinery for both.
//!
//! ```text
//! gate      keys, in one pass          clouds forges services keys    the tables
//! row       what a rule is             phrases                        what takes over an agent
//! dummies   what documentation writes in place of secrets
//! armour    private keys in lines, of any length       binary     private keys as bytes
//! ```
//! A pattern is tried only where one of its keys stands, at that very place and on so many bytes as the row
//! says, so that its cost is bounded wherever an attacker puts the key.

pub(crate) mod armour;
pub(crate) mod binary;
mod clouds;
mod dummies;
mod forges;
mod gate;
mod keys;
mod phrases;
pub(crate) mod row;
mod services;

use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use regex::bytes::{Regex, RegexBuilder};

use crate::entropy::bits_per_byte;
use crate::finding::Severity;
use gate::Gate;
use row::{BESIDE, Row, USUAL_FLOOR};

/// What `@=` in a pattern stands for: the rest of a name, quotes as they are nested in JSON, and a sign.
const ASSIGNMENT: &str = r#"[A-Za-z0-9_.-]{0,24}\\{0,3}["'`]?\s{0,4}(?:=>|:=|=|:)\s{0,4}\\{0,3}["'`]?"#;

/// Bytes of a secret of which the randomness is measured, so that nothing added to it takes that away.
const MEASURED: usize = 32;

/// A token is taken out with what goes on behind it as it does, up to so many bytes.
const TAIL: usize = 4096;

/// Bytes before or after a piece of text on which a rule may look at most.
pub(crate) const REACH: usize = 4096;

/// The rules of some tables, ready to run.
pub(crate) struct RuleSet {
    gate: Gate,
    /// For each key of the gate, its rule and how long it is.
    owners: Vec<(usize, usize)>,
    rules: Vec<Rule>,
}

struct Rule {
    row: &'static Row,
    id: Arc<str>,
    /// Made when its key is first met: most of them never are.
    regex: OnceLock<Option<Regex>>,
}

/// A match of a rule.
pub(crate) struct Match {
    pub(crate) span: Range<usize>,
    pub(crate) id: Arc<str>,
    pub(crate) words: &'static str,
    pub(crate) severity: Severity,
    /// The row of a private key that may go on behind the text.
    pub(crate) open: Option<&'static Row>,
}

/// The shapes of tokens.
pub(crate) fn tokens() -> &'static RuleSet {
    static SET: LazyLock<RuleSet> = LazyLock::new(|| RuleSet::new(token_rows()));
    &SET
}

/// The phrases that take over an agent.
pub(crate) fn phrases() -> &'static RuleSet {
    static SET: LazyLock<RuleSet> = LazyLock::new(|| RuleSet::new(phrases::ROWS.iter()));
    &SET
}

fn token_rows() -> impl Iterator<Item = &'static Row> {
    [clouds::ROWS, forges::ROWS, services::ROWS, keys::ROWS].into_iter().flatten()
}

/// How many kinds of tokens are known by their shape.
#[must_use]
pub fn token_kinds() -> usize {
    token_rows().count()
}

/// What the rules call themselves and how a user would: `("github-oauth-token", "a GitHub OAuth token")`.
pub fn token_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    token_rows().map(|row| (row.id, row.words))
}

/// How many bytes at the start of `value` belong to a vendor and not to the secret.
pub(crate) fn public_prefix(value: &str) -> usize {
    let known = token_rows().filter(|row| row.lead == 0).flat_map(|row| row.keys);
    known.filter(|key| value.starts_with(**key)).map(|key| key.len()).max().unwrap_or(0)
}

impl RuleSet {
    fn new(rows: impl Iterator<Item = &'static Row>) -> Self {
        let rules: Vec<Rule> =
            rows.map(|row| Rule { row, id: row.id.into(), regex: OnceLock::new() }).collect();
        let (mut owners, mut keys) = (Vec::new(), Vec::new());
        for (number, rule) in rules.iter().enumerate() {
            owners.extend(rule.row.keys.iter().map(|key| (number, key.len())));
            keys.extend(rule.row.keys.iter().map(|key| key.as_bytes()));
        }
        Self { gate: Gate::new(keys), owners, rules }
    }

    /// Every match in `text`, by rule without overlaps.
    pub(crate) fn find(&self, text: &[u8], mut found: impl FnMut(Match)) {
        // Where the last match of a rule ended: keys within it begin no other.
        let mut ends: Vec<(usize, usize)> = Vec::new();
        self.gate.each(text, |key, place| {
            let (owner, length) = self.owners[key];
            if ends.iter().any(|(rule, end)| *rule == owner && place < *end) {
                return;
            }
            if let Some(found_here) = self.rules[owner].at(text, place, length) {
                ends.retain(|(rule, _)| *rule != owner);
                ends.push((owner, found_here.span.end));
                found(found_here);
            }
        });
    }
}

impl Rule {
    /// The match at a key of so many bytes.
    fn at(&self, text: &[u8], place: usize, length: usize) -> Option<Match> {
        let row = self.row;
        if let Some(armour) = row.armour {
            let (start, body) = armour.at(text, place, place + length)?;
            let open = body.open.then_some(row);
            return Some(self.matched(start..body.end, row.severity, open));
        }
        let begin = place.saturating_sub(row.lead);
        let before = begin.checked_sub(1).and_then(|at| text.get(at));
        // A word that merely ends in a key is none of it; base64 is full of such.
        let joined =
            [before, text.get(begin)].into_iter().all(|byte| byte.is_some_and(u8::is_ascii_alphanumeric));
        let strict = row.lead == 0 && joined && !after_escape(text, begin) && !is_marked(row, length);
        // A sum that is right says more than what stands before it.
        if strict && row.check.is_none() {
            return None;
        }
        let seen = &text[begin..text.len().min(place + row.longest)];
        let captures = self.regex.get_or_init(|| compile(row)).as_ref()?.captures(seen)?;
        let whole = captures.get(0)?;
        let secret = captures.get(1).unwrap_or(whole);
        if let Some(near) = row.beside {
            let (start, end) = (begin + whole.start(), begin + whole.end());
            if !near(&text[start.saturating_sub(BESIDE)..start], &text[end..text.len().min(end + BESIDE)]) {
                return None;
            }
        }
        // Phrases have no floor, and mean what they say whatever they mention.
        let is_token = row.entropy > 0.0;
        // What a vendor puts before a secret is none of it.
        let public = if captures.len() == 1 && row.lead == 0 { length } else { 0 };
        if is_token
            && (!is_random(secret.as_bytes(), public, row.entropy) || dummies::is_dummy(secret.as_bytes()))
        {
            return None;
        }
        let fits = row.check.is_none() || crc_fits(whole.as_bytes());
        if strict && !fits {
            return None;
        }
        let severity = if fits { row.severity } else { Severity::Warn };
        let mut span = begin + secret.start()..begin + secret.end();
        if is_token {
            let goes_on = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_-+/=".contains(byte);
            span.end += text[span.end..].iter().take(TAIL).take_while(goes_on).count();
        }
        Some(self.matched(span, severity, None))
    }

    fn matched(&self, span: Range<usize>, severity: Severity, open: Option<&'static Row>) -> Match {
        Match { span, id: self.id.clone(), words: self.row.words, severity, open }
    }
}

/// Whether the letter before `place` is that of `\n` and not a part of a word.
fn after_escape(text: &[u8], place: usize) -> bool {
    place >= 2 && text[place - 2] == b'\\' && matches!(text[place - 1], b'n' | b'r' | b't')
}

/// A row's pattern, made ready; none if it is wrong, which a test rules out.
fn compile(row: &Row) -> Option<Regex> {
    let pattern = row.pattern.replace("@=", ASSIGNMENT);
    // What is added to a token does not make it another; a key that may begin anywhere needs its end.
    let pattern = if row.lead == 0 && row.entropy > 0.0 { endless(&pattern) } else { &pattern };
    let pattern = if row.lead == 0 { format!(r"\A(?:{pattern})") } else { pattern.to_owned() };
    RegexBuilder::new(&pattern).unicode(false).size_limit(4 << 20).build().ok()
}

/// A pattern without what it wants to stand behind a token.
fn endless(pattern: &str) -> &str {
    let class = pattern.strip_suffix(r"|\z)").and_then(|rest| Some(&rest[..rest.rfind("(?:[^")?]));
    class.unwrap_or_else(|| pattern.strip_suffix(r"\b").unwrap_or(pattern))
}

/// Whether a key of so many bytes is found in nothing but tokens, also within a longer word.
fn is_marked(row: &Row, length: usize) -> bool {
    let sign = |key: &&&str| key.len() == length && key.bytes().any(|byte| !byte.is_ascii_alphanumeric());
    length >= 4 && row.entropy == USUAL_FLOOR && row.keys.iter().any(|key| sign(&key))
}

/// Whether some part of a secret behind its first `public` bytes has so many bits a byte. All of it has not where
/// something was added.
fn is_random(secret: &[u8], public: usize, floor: f64) -> bool {
    let rest = &secret[public.min(secret.len())..];
    bits_per_byte(secret) >= floor
        || rest.windows(MEASURED).step_by(MEASURED / 4).any(|part| bits_per_byte(part) >= floor)
}

/// Whether the last six characters are the sum of those after the prefix.
fn crc_fits(token: &[u8]) -> bool {
    let body = token.iter().rposition(|byte| *byte == b'_').map_or(token, |at| &token[at + 1..]);
    body.len().checked_sub(6).is_some_and(|at| base62(crc32(&body[..at])) == body[at..])
}

/// CRC-32 as in zlib.
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

    /// Fills `<36w>` with made-up characters, so that no token stands in this repository. `#` adds the checksum.
    fn made_up(template: &str) -> String {
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
                // Never two of one kind in a row by chance, and no separator at the ends.
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

    /// What the examples of `rows` say otherwise.
    fn wrong(set: &RuleSet, rows: &[&Row]) -> Vec<String> {
        let mut wrong = Vec::new();
        for row in rows {
            assert!(!row.like.is_empty() && !row.unlike.is_empty(), "{}: examples", row.id);
            for template in row.like {
                for text in [made_up(template), format!("{{\"a\": \"b {}\"}}\n", made_up(template))] {
                    let found = ids(set, &text);
                    if !found.contains(&(row.id.to_owned(), row.severity)) {
                        wrong.push(format!("{} is not found in {text}: {found:?}", row.id));
                    }
                }
            }
            for text in row.unlike.iter().map(|template| made_up(template)) {
                if ids(set, &text).iter().any(|(id, _)| id == row.id) {
                    wrong.push(format!("{} is found in {text}", row.id));
                }
            }
        }
        wrong
    }

    #[test]
    fn nothing_that_stands_beside_a_secret_makes_it_none() {
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
            let token = made_up(row.like[0]);
            let spaced = [
                ("", " example"),
                ("", " # example"),
                ("example ", ""),
                ("your-", " placeholder changeme redacted"),
                ("sha512-", ""),
                ("h1:", ""),
            ];
            // What is written to it without a space, where a pattern has its own beginning.
            let joined = [
                ("", "example"),
                ("", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
                ("", "EXAMPLE"),
                ("", "_placeholder"),
            ];
            let ends_open = row.lead == 0;
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
    fn what_is_added_goes_with_a_token() {
        let token = made_up("glpat-<20b>");
        for added in ["example", &"x".repeat(900)] {
            let mut spans = Vec::new();
            let text = format!("a {token}{added} b");
            tokens().find(text.as_bytes(), |found| spans.push(found.span));
            assert_eq!(spans, vec![2..text.len() - 2]);
        }
    }

    #[test]
    fn what_documentation_says_is_none() {
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
    fn every_rule_finds_its_examples_and_nothing_like_them() {
        assert_eq!(wrong(tokens(), &token_rows().collect::<Vec<_>>()), [""; 0]);
        assert_eq!(wrong(phrases(), &phrases::ROWS.iter().collect::<Vec<_>>()), [""; 0]);
    }

    #[test]
    fn rows_are_whole() {
        assert!(token_kinds() >= 120, "{}", token_kinds());
        let mut ids = BTreeSet::new();
        for row in token_rows().chain(phrases::ROWS) {
            assert!(ids.insert(row.id), "{} stands twice", row.id);
            assert!(compile(row).is_some(), "{}: {}", row.id, row.pattern);
            assert!(row.lead + row.longest <= REACH, "{}", row.id);
            assert!(!row.keys.is_empty() && row.keys.iter().all(|key| key.len() >= 3), "{}", row.id);
        }
    }

    #[test]
    fn a_wrong_checksum_is_worth_a_warning() {
        let right = made_up("ghp_<30w#>");
        let wrong = format!("{}000000", &right[..34]);
        assert_eq!(ids(tokens(), &right), [("github-personal-token".to_owned(), Severity::Block)]);
        assert_eq!(ids(tokens(), &wrong), [("github-personal-token".to_owned(), Severity::Warn)]);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_word_that_ends_in_a_key_is_none() {
        let token = made_up("hf_<34w>");
        assert!(ids(tokens(), &format!("x{token}")).is_empty());
        assert_eq!(ids(tokens(), &format!("\\n{token}")).len(), 1);
        // Where the key or a checksum says enough, what stands around it says nothing.
        for token in [made_up("ghp_<30w#>"), made_up("glpat-<20w>"), made_up("sk-ant-api03-<95b>")] {
            assert_eq!(ids(tokens(), &format!("x{token}")).len(), 1, "{token}");
            assert_eq!(ids(tokens(), &format!("-{token}_")).len(), 1, "{token}");
        }
        let wrong = format!("x{}000000", &made_up("ghp_<30w#>")[..34]);
        assert_eq!(ids(tokens(), &wrong), [("github-personal-token".to_owned(), Severity::Warn)]);
    }

    #[test]
    fn repeated_keys_cost_no_more_than_their_reach() {
        for key in token_rows().flat_map(|row| row.keys) {
            let text = key.repeat(1 + 20_000 / key.len());
            assert!(ids(tokens(), &text).len() <= text.len() / 8, "{key}");
        }
    }
}
