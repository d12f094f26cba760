//! Defines rules for tokens that consist only of hexadecimal digits.
//!
//! Such a token has the form of a commit id or of a digest, so it counts only in the place of a credential: after the
//! name of a credential and an assignment sign, or in an authorization header. The services that issue such tokens use
//! 32 digits (Azure, Datadog, Slack, Twilio), 40 digits (Forgejo, Gitea, Django REST framework, CircleCI) and 64 digits
//! (DigitalOcean, Linode, Sentry). A longer run of digits is a token too, because appended digits must not hide a
//! token.
//!
//! Digests of 32 digits are everywhere, and web pages contain public keys of 32 digits under names such as `apiKey`. A
//! token with fewer than 40 digits therefore counts only after a name that code does not use for other values: the name
//! of a header, of a variable in capitals, of an option, or of a parameter in a query.
//!
//! Names that any program gives to its own random values are not in the tables, because the test vectors of
//! cryptography have the same names: `secret`, `secret_key`, `private_key`. `password` is not in the tables because the
//! digits are usually the digest of the password.

use super::row::{Row, row};

/// The minimum number of digits of a token.
const FEWEST_DIGITS: usize = 32;

/// The minimum entropy of a token, in bits per byte. Fewer than one in a million random tokens have less.
const FLOOR: f64 = 2.6;

pub(super) const ROWS: &[Row] = &[
    row(
        "hex-authorization",
        "a token in an authorization header",
        &["authorization", "bearer"],
        r#"(?i:authorization@!(?:(?:token|bearer|api-?key|key)[ =:]{1,4}(?:token=)?\\{0,3}["'`]?)?|bearer[ :]{1,4})([A-Fa-f0-9]{32,200})"#,
        &[
            "Authorization: token <40h>",
            "authorization:Bearer <64h>",
            "Authorization: <32h>",
            "{\"Authorization\": \"Token <40h>\"}",
            "headers[\"Authorization\"] = 'Bearer <64h>'",
            ".header(\"Authorization\", \"Bearer <64h>\")",
            "Authorization: Token token=\"<40h>\"",
            "use bearer <40h>",
        ],
        &[
            "Authorization: token <16h>",
            "Authorization: token 9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b",
            "Authorization: AWS4-HMAC-SHA256 Credential=x, Signature=<64h>",
            "Authorization: Digest username=\"a\", response=\"<32h>\"",
            "Authorization: token 0123456789abcdef0123456789abcdef01234567",
            "authorization <40h>",
        ],
    )
    .entropy(FLOOR)
    .reach(320)
    .hex_digits(FEWEST_DIGITS)
    .place(is_in_header),
    row(
        "hex-token",
        "a token of hexadecimal digits",
        &["token"],
        r#"(?i:token)(?:@!| {1,2}["']?)([A-Fa-f0-9]{32,200})"#,
        &[
            "token=<40h>",
            "access_token=<64h>&scope=repo",
            "PRIVATE-TOKEN: <40h>",
            "X-Auth-Token: <32h>",
            "\"apiToken\": \"<40h>\"",
            "NETBOX_TOKEN=<32h>",
            "login add --token <40h>",
        ],
        &[
            "token=<32h>",
            "token <40h>",
            "the commit token: <40h>",
            "next_page_token=<40h>",
            "pageToken: \"<64h>\"",
            "X-CSRF-Token: <64h>",
            "tokens: [\"<40h>\"]",
            "token_sha256 = \"<64h>\"",
            "tokenizer: <40h>",
            "\"src/token\": \"<64h>\"",
            "token: \"0x<40h>\"",
            "token = \"sha256:<64h>\"",
            "build.svg?style=svg&circle-token=<40h>",
        ],
    )
    .entropy(FLOOR)
    .reach(320)
    .hex_digits(FEWEST_DIGITS)
    .place(is_token_name),
    row(
        "hex-api-key",
        "an API key of hexadecimal digits",
        &[
            "api_key",
            "api-key",
            "api.key",
            "api key",
            "apikey",
            "application_key",
            "application-key",
            "subscription_key",
            "subscription-key",
        ],
        r#"(?i:(?:api|application|subscription)[_.-]?key)(?:@!| {1,2}["']?)([A-Fa-f0-9]{32,200})|(?i:api key)@!([A-Fa-f0-9]{32,200})"#,
        &[
            "api_key=<40h>",
            "X-Redmine-API-Key: <40h>",
            "Ocp-Apim-Subscription-Key: <32h>",
            "DD-APPLICATION-KEY: <40h>",
            "apiKey: '<64h>'",
            "https://api.example.com/3/search?api_key=<32h>&query=x",
            "NEWS_API_KEY=<32h>",
            "API key: <40h>",
        ],
        &[
            "apiKey: '<32h>'",
            "X-Algolia-API-Key: <32h>",
            "VITE_SEARCH_API_KEY=<32h>",
            "public_api_key: <64h>",
            "api_key_hash: <64h>",
            "api_key <40h>",
        ],
    )
    .entropy(FLOOR)
    .reach(320)
    .hex_digits(FEWEST_DIGITS)
    .place(is_key_name),
    row(
        "hex-client-secret",
        "a client secret of hexadecimal digits",
        &["secret"],
        r#"(?i:secret)(?:@!| {1,2}["']?)([A-Fa-f0-9]{32,200})"#,
        &[
            "client_secret=<40h>",
            "\"clientSecret\": \"<64h>\"",
            "SLACK_SIGNING_SECRET=<32h>",
            "webhook_secret: <40h>",
        ],
        &["clientSecret: '<32h>'", "secret = \"<64h>\"", "shared_secret: <64h>", "APP_SECRET=<32h>"],
    )
    .entropy(FLOOR)
    .reach(320)
    .hex_digits(FEWEST_DIGITS)
    .place(is_secret_name),
];

/// The number of digits from which a token counts after any name of a credential.
const USUAL_DIGITS: usize = 40;

/// The maximum number of bytes of a name before the key of a rule.
const MAX_NAME: usize = 64;

/// The words before `token` or `api_key` with which a name denotes no credential: positions in lists, protection
/// against forged requests, locks and versions, contents, addresses of devices, and public keys.
const NO_CREDENTIALS: &[&str] = &[
    "algolia",
    "authenticity",
    "blob",
    "bookmark",
    "cache",
    "cancel",
    "cancellation",
    "captcha",
    "change",
    "checksum",
    "commit",
    "concurrency",
    "content",
    "continuation",
    "continue",
    "csrf",
    "cursor",
    "data",
    "dedup",
    "delta",
    "device",
    "digest",
    "end",
    "fencing",
    "file",
    "fingerprint",
    "forgery",
    "form",
    "hash",
    "idempotency",
    "lease",
    "lock",
    "next",
    "nonce",
    "object",
    "offset",
    "page",
    "pagination",
    "paging",
    "position",
    "prev",
    "previous",
    "public",
    "publishable",
    "push",
    "request",
    "resume",
    "revision",
    "scroll",
    "search",
    "sequence",
    "sha",
    "skip",
    "start",
    "state",
    "sync",
    "tracking",
    "tree",
    "verification",
    "version",
    "watermark",
    "xsrf",
];

/// Parts of names of public keys. Build tools copy variables with such names into web pages.
const PUBLIC: &[&str] = &["algolia", "public", "publishable", "react_app", "vite_"];

/// The words before `secret` in the names of secrets that services issue.
const SECRETS: &[&str] = &["api", "client", "consumer", "oauth", "signing", "webhook"];

/// The name of a token, in its parts.
struct Name<'t> {
    /// The text before the name.
    preceding: &'t [u8],
    /// The part of the name before the key of the rule, for example `next_page_` in `next_page_token`.
    prefix: &'t [u8],
    /// The key of the rule as the text contains it.
    key: &'t [u8],
    /// The text between the name and the token.
    sign: &'t [u8],
}

/// Returns whether a match of the rule for headers has the place and the form of a token.
fn is_in_header(_: &[u8], _: &[u8], digits: &[u8]) -> bool {
    !counts_up(digits)
}

fn is_token_name(before: &[u8], name: &[u8], digits: &[u8]) -> bool {
    let name = Name::read(before, name);
    let is_badge = name.prefix.eq_ignore_ascii_case(b"circle-") && name.is_in_query();
    let is_usual = name.is_explicit() && !(name.prefix.is_empty() && name.is_in_query());
    !is_badge && name.denotes_credential() && has_form(digits, is_usual)
}

fn is_key_name(before: &[u8], name: &[u8], digits: &[u8]) -> bool {
    let name = Name::read(before, name);
    name.denotes_credential() && has_form(digits, name.is_explicit())
}

fn is_secret_name(before: &[u8], name: &[u8], digits: &[u8]) -> bool {
    let name = Name::read(before, name);
    let word = name.word_before();
    let is_issued = SECRETS.iter().any(|issued| word.ends_with(issued.as_bytes()));
    is_issued && name.denotes_credential() && has_form(digits, name.is_explicit())
}

/// Returns whether `digits` have the form of a token. `is_explicit` states whether the name permits a short token.
fn has_form(digits: &[u8], is_explicit: bool) -> bool {
    (is_explicit || digits.len() >= USUAL_DIGITS) && !counts_up(digits)
}

impl<'t> Name<'t> {
    /// Reads the name of a token. `matched` begins with the key of the rule and ends before the token.
    fn read(before: &'t [u8], matched: &'t [u8]) -> Self {
        let before = &before[before.len().saturating_sub(MAX_NAME)..];
        let start = before.iter().rposition(|byte| !is_name_byte(*byte)).map_or(0, |at| at + 1);
        let (preceding, prefix) = before.split_at(start);
        let end = matched.iter().position(|byte| !is_name_byte(*byte)).unwrap_or(matched.len());
        let (key, sign) = matched.split_at(end);
        Self { preceding, prefix, key, sign }
    }

    /// Returns whether the name is the name of a credential, and not of another value that is called a token or a key.
    fn denotes_credential(&self) -> bool {
        // The name of a file in a list of digests.
        let is_path = self.preceding.ends_with(b"/") && !self.preceding.ends_with(b"//");
        let has_sign = self.sign.iter().any(|byte| !b" \"'".contains(byte));
        let word = self.word_before();
        let is_joined = self.prefix.last().is_some_and(u8::is_ascii_alphabetic);
        let is_other = NO_CREDENTIALS.iter().any(|other| {
            let other = other.as_bytes();
            word == other || is_joined && word.ends_with(other)
        });
        let prefix = self.prefix.to_ascii_lowercase();
        let is_public = PUBLIC.iter().any(|part| memchr::memmem::find(&prefix, part.as_bytes()).is_some());
        !is_path && !is_other && !is_public && (has_sign || self.is_option() || self.is_docker_variable())
    }

    /// Returns the word before the key in lower case: the previous part of the name, or the previous word of a
    /// sentence.
    fn word_before(&self) -> Vec<u8> {
        let parts = self.prefix.trim_ascii_end();
        let end = parts.iter().rposition(u8::is_ascii_alphanumeric).map_or(0, |at| at + 1);
        let text = match (end, self.prefix) {
            (0, b"") => self.preceding.strip_suffix(b" ").unwrap_or_default(),
            _ => &parts[..end],
        };
        let start = text.iter().rposition(|byte| !byte.is_ascii_alphabetic()).map_or(0, |at| at + 1);
        let word = &text[start..];
        // In camel case, a word begins with the last capital.
        let is_camel = word.last().is_some_and(u8::is_ascii_lowercase);
        let capital = word.iter().rposition(u8::is_ascii_uppercase).filter(|_| is_camel).unwrap_or(0);
        word[capital..].to_ascii_lowercase()
    }

    /// Returns whether the name is written like the name of a header, of a variable in capitals, of an option, or of a
    /// parameter in a query.
    fn is_explicit(&self) -> bool {
        let name = [self.prefix, self.key].concat();
        let is_in_capitals = !name.iter().any(u8::is_ascii_lowercase);
        let first = self.sign.iter().find(|byte| !b" \"'`\\".contains(byte));
        // A hyphen at the start belongs to a list or to a diff.
        let is_hyphenated = name.iter().skip_while(|byte| **byte == b'-').any(|byte| *byte == b'-');
        let is_header = is_hyphenated && first.is_some_and(|byte| b":,]".contains(byte));
        is_in_capitals || is_header || self.is_option() || self.is_in_query()
    }

    /// Returns whether the name is an option of a command, as in `--token TOKEN`.
    fn is_option(&self) -> bool {
        self.prefix.starts_with(b"--")
    }

    /// Returns whether the name is a parameter in the query of a URL.
    fn is_in_query(&self) -> bool {
        self.sign == b"=" && self.preceding.last().is_some_and(|byte| b"?&;".contains(byte))
    }

    /// Returns whether the name follows the instruction `ENV` of a Dockerfile.
    fn is_docker_variable(&self) -> bool {
        self.preceding.ends_with(b"ENV ")
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)
}

/// The number of digits of which at least half continue a sequence in an invented token.
const SEQUENCE: usize = 16;

/// Returns whether digits are an invented example, such as `0123456789abcdef…` or `a1b2c3d4e5f6…`. In every part of an
/// invented token, most digits continue the previous digit or the digit before the previous digit. A leaked token with
/// a sequence before or after it is therefore no example.
fn counts_up(digits: &[u8]) -> bool {
    let follows = |digit: u8, earlier: u8| {
        let (digit, earlier) = (digit.to_ascii_lowercase(), earlier.to_ascii_lowercase());
        digit == earlier + 1 || matches!((earlier, digit), (b'9' | b'f', b'0' | b'a'))
    };
    let continued: Vec<bool> = (0..digits.len())
        .map(|at| {
            let mut earlier = [1, 2].into_iter().filter_map(|distance| digits.get(at.checked_sub(distance)?));
            earlier.any(|earlier| follows(digits[at], *earlier))
        })
        .collect();
    continued.windows(SEQUENCE).all(|part| 2 * part.iter().filter(|is_next| **is_next).count() >= SEQUENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_before_a_key_is_found_in_each_style() {
        for (before, word) in [
            ("next_page_", "page"),
            ("NEXT_PAGE_", "page"),
            ("nextPage", "page"),
            ("x-csrf-", "csrf"),
            ("csrf", "csrf"),
            ("GITEA_", "gitea"),
            ("the commit ", "commit"),
            ("\"", ""),
            ("", ""),
            ("--", ""),
            ("a = b; ", ""),
        ] {
            let word_before = Name::read(before.as_bytes(), b"token=").word_before();
            assert_eq!(String::from_utf8_lossy(&word_before), word, "{before}");
        }
    }

    #[test]
    fn invented_digits_are_recognized() {
        for (digits, expected) in [
            ("0123456789abcdef0123456789abcdef", true),
            ("1234567890abcdef1234567890abcdef12345678", true),
            ("a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6e7f8a9b0", true),
            ("a1b2c3d4e5f6789012345678901234567890abcd", true),
            ("0123456789ABCDEF0123456789ABCDEF01234567", true),
            ("7c4e02b9d81f35a6e9903b5d7f12c8ae64b07d93", false),
            ("0123456789abcdef7c4e02b9d81f35a6e9903b5d7f12c8ae64b07d93", false),
            ("7c4e02b9d81f35a6e9903b5d7f12c8ae64b07d930123456789abcdef0123456789abcdef", false),
        ] {
            assert_eq!(counts_up(digits.as_bytes()), expected, "{digits}");
        }
    }
}
