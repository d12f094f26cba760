//! Rules by shape: one table of tokens, one of phrases, the same machinery for both.
//!
//! ```text
//! gate      keys, in one pass          clouds forges services keys    the tables
//! row       what a rule is             phrases                        what takes over an agent
//! armour    private keys in lines, of any length       binary     private keys as bytes
//! ```
//! A pattern is tried only where one of its keys stands, at that very place and on so many bytes as the row
//! says, so that its cost is bounded wherever an attacker puts the key.

pub(crate) mod armour;
pub(crate) mod binary;
mod clouds;
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
use row::{Check, Row};

/// What `@=` in a pattern stands for: the rest of a name, quotes as they are nested in JSON, and a sign.
const ASSIGNMENT: &str = r#"[A-Za-z0-9_.-]{0,24}\\{0,3}["'`]?\s{0,4}(?:=>|:=|=|:)\s{0,4}\\{0,3}["'`]?"#;

/// What stands before the hash of a package in lists of dependencies. Such a hash has as many characters as some keys,
/// and among a few hundred thousand of them one has what marks a key as well, where the key has it.
const DIGESTS: [&[u8]; 4] = [b"sha256-", b"sha384-", b"sha512-", b"h1:"];

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

/// What the rules call themselves and how a person would: `("github-oauth-token", "a GitHub OAuth token")`.
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
        if row.lead == 0 && joined && !after_escape(text, begin) {
            return None;
        }
        let seen = &text[begin..text.len().min(place + row.longest)];
        let captures = self.regex.get_or_init(|| compile(row)).as_ref()?.captures(seen)?;
        let whole = captures.get(0)?;
        let secret = captures.get(1).unwrap_or(whole);
        // Phrases have no floor, and mean what they say whatever they mention.
        let is_token = row.entropy > 0.0;
        if is_token && (bits_per_byte(secret.as_bytes()) < row.entropy || placeholder(secret.as_bytes())) {
            return None;
        }
        if is_token && leads_nowhere(whole.as_bytes()) {
            return None;
        }
        if row.lead > 0 && DIGESTS.iter().any(|name| text[..begin + secret.start()].ends_with(name)) {
            return None;
        }
        let severity = match row.check {
            Some(Check::Crc32) if !crc_fits(whole.as_bytes()) => Severity::Warn,
            _ => row.severity,
        };
        let span = begin + secret.start()..begin + secret.end();
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
    let pattern = if row.lead == 0 { format!(r"\A(?:{pattern})") } else { pattern };
    RegexBuilder::new(&pattern).unicode(false).size_limit(4 << 20).build().ok()
}

/// Whether documentation writes it in place of a secret.
fn placeholder(secret: &[u8]) -> bool {
    const WORDS: [&[u8]; 7] =
        [b"example", b"xxxxxx", b"placeholder", b"changeme", b"your_", b"your-", b"redacted"];
    let opens = secret.starts_with(b"$") || secret.starts_with(b"{") || secret.starts_with(b"<");
    let short = secret.len() <= 300;
    opens
        || short
            && WORDS
                .iter()
                .any(|word| secret.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word)))
}

/// Whether a login is for a host that is nobody's: a name reserved for documentation (RFC 2606), or loopback.
fn leads_nowhere(matched: &[u8]) -> bool {
    const HOSTS: [&[u8]; 5] = [b"localhost", b"127.0.0.1", b"example.com", b"example.net", b"example.org"];
    const DOMAINS: [&[u8]; 6] =
        [b".example", b".example.com", b".example.net", b".example.org", b".test", b".invalid"];
    let Some(at) = matched.iter().rposition(|byte| *byte == b'@') else { return false };
    let host = &matched[at + 1..];
    let end = host.iter().position(|byte| b"/?#:,".contains(byte)).unwrap_or(host.len());
    let host = &host[..end];
    HOSTS.contains(&host) || DOMAINS.iter().any(|domain| host.ends_with(domain))
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
    fn a_login_that_leads_nowhere_is_none() {
        let find = |text: &str| {
            let mut found = 0;
            tokens().find(text.as_bytes(), |_| found += 1);
            found
        };
        for (host, expected) in [
            ("192.0.2.7", 1),
            ("db.invalid.net:5432", 1),
            ("localhost.net", 1),
            ("example.com.net", 1),
            ("localhost:5432", 0),
            ("127.0.0.1", 0),
            ("example.com", 0),
            ("db.example.org:1", 0),
            ("db.test", 0),
        ] {
            assert_eq!(find(&format!("postgres://u:qX7zR2mK9pL4wT8v@{host}/x")), expected, "{host}");
        }
    }

    #[test]
    fn the_hash_of_a_package_is_no_key() {
        for (rule, name, template) in [
            ("azure-cosmos-key", "\"integrity\": \"sha512-", "<76B>ACDb<6B>=="),
            ("azure-storage-marked-key", "integrity sha512-", "<76B>+ASt<6B>=="),
            ("azure-redis-key", "example.com/a v1.0.0 h1:", "<33w>AzCa<6w>="),
        ] {
            let key = made_up(template);
            assert_eq!(ids(tokens(), &format!("key: {key}")), [(rule.to_owned(), Severity::Block)]);
            assert_eq!(ids(tokens(), &format!("{name}{key}")), []);
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
        let token = made_up("ghp_<30w#>");
        assert!(ids(tokens(), &format!("x{token}")).is_empty());
        assert_eq!(ids(tokens(), &format!("\\n{token}")).len(), 1);
        assert_eq!(ids(tokens(), &format!("-{token}_")).len(), 0, "longer than a token is");
    }

    #[test]
    fn repeated_keys_cost_no_more_than_their_reach() {
        for key in token_rows().flat_map(|row| row.keys) {
            let text = key.repeat(1 + 20_000 / key.len());
            assert!(ids(tokens(), &text).len() <= text.len() / 8, "{key}");
        }
    }
}
