//! Tests that scan results reveal no secret. The author of a text learns the scan result. The result must therefore not
//! depend on public parts of a secret, or on fewer than twelve private characters.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecret, KnownSecrets, Scanner};
use proptest::prelude::*;

/// The minimum number of consecutive private characters that a match needs.
const PIECE: usize = 12;

/// A secret in three parts: the text before its private part, the private part, and the text after it.
struct Kind {
    name: &'static str,
    before: &'static str,
    private: &'static str,
    after: &'static str,
    login: bool,
}

const fn kind(name: &'static str, before: &'static str, private: &'static str, after: &'static str) -> Kind {
    Kind { name, before, private, after, login: false }
}

const fn login(name: &'static str, before: &'static str, private: &'static str) -> Kind {
    Kind { name, before, private, after: "", login: true }
}

/// The kinds of secrets that are tested. Token prefixes are split, so that this file contains no complete token.
const KINDS: &[Kind] = &[
    login("a login", "deployment-robot:", "k3Jdh57sLa0qMx81Fz6wTy"),
    login("a login with signs", "jane.doe@example.com:", "k3J!dh-57_sLa/0qM.x81=Fz"),
    login("a login with a short password", "deployment-robot:", "k3Jdh57s"),
    login("a login with a token", "bob:", "AT3xFfGF0k3Jdh57sLa0qMx81Fz6w"),
    kind("a login by its form", "deployment-robot:", "k3Jdh57sLa0qMx81Fz6wTy", ""),
    kind("a bot of Telegram", "110201543:", "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", ""),
    kind(
        "an address",
        "postgres://someuser:",
        "Tq8xWz3LkP1vB5nM",
        "@database.example.net:5432/main?sslmode=require",
    ),
    kind(
        "an address of a web hook",
        "https://hooks.example.com/services/T012AB3CD/B045EF6GV/",
        "k3Jdh57sLa0qMx81Fz6wTy9u",
        "",
    ),
    kind(
        "a token with its user",
        "https://x-access-token:",
        "k3Jdh57sLa0qMx81Fz6wTy9u",
        "@git.example.com/team/project.git",
    ),
    kind("a token of Slack", concat!("xo", "xb-123456789012-210987654321-"), "k3Jdh57sLa0qMx81Fz6wTy9u", ""),
    kind(
        "a token of GitHub",
        concat!("github_", "pat_11ABCDEFG0abcdefghijkl_"),
        "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4rZe7tQi0oPa5sDf8gHj1kLm3qWe6",
        "",
    ),
    kind(
        "a key of SendGrid",
        concat!("S", "G.ngeVfQFYQlKU0ufo8x5d1A."),
        "TwL2iGABf9DHoTf09kqeF8tAmbihYzrnopKc1s5cr3k",
        "",
    ),
    kind(
        "a key of Stripe",
        concat!("sk_", "live_51H8abcDEfghiJKLmnopqrst"),
        "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4rZe7tQi0oPa5sDf8gHj1kLm3qWe6",
        "",
    ),
    kind("a key of Anthropic", concat!("sk-", "ant-api03-"), "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4r", ""),
    kind(
        "a signed token",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ.",
        "SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJVadQssw5c",
        "",
    ),
    kind(
        "storage of Azure",
        "DefaultEndpointsProtocol=https;AccountName=mystorageaccount;AccountKey=",
        "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4rZe7tQi0oPa5sDf8gHj1kLm3qWe6==",
        ";EndpointSuffix=core.windows.net",
    ),
    kind(
        "a signature of Azure",
        "sv=2022-11-02&ss=b&srt=co&sp=rl&se=2026-01-01T00:00:00Z&sig=",
        "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4r",
        "",
    ),
    kind(
        "a database",
        "Server=db.example.com;Database=production;User Id=administrator;Password=",
        "k3Jdh57sLa0qMx81",
        ";",
    ),
    kind("a head", "Bearer ", "k3Jdh57sLa0qMx81Fz6wTy9u", ""),
    kind("a netrc", "machine git.example.com login deployment password ", "k3Jdh57sLa0qMx81Fz6wTy9u", ""),
    kind("a cookie", "theme=darkmode; sessionid=", "k3Jdh57sLa0qMx81Fz6wTy9u", "; csrftoken=none"),
    kind(
        "an environment",
        "REGION=northeurope\nAPI_TOKEN=",
        "k3Jdh57sLa0qMx81Fz6wTy9u",
        "\nDEBUG=trueandfalse\n",
    ),
    kind("a pgpass", "db.example.com:5432:production:administrator:", "k3Jdh57sLa0qMx81Fz6w", ""),
    kind(
        "JSON",
        r#"{"type": "service_account", "project_id": "someprojectname", "token": ""#,
        "k3Jdh57sLa0qMx81Fz6wTy9u",
        r#""}"#,
    ),
    kind(
        "a macaroon of PyPI",
        concat!(
            "py",
            "pi-AgEIcHlwaS5vcmcCJGI1YTFjM2YwLTFkMmUtNGY1YS04YjdjLTlkMGUxZjJhM2I0YwACJXsicGVybWlzc2lvbnMiOiAidXNl",
            "ciIsICJ2ZXJzaW9uIjogMX0AAAYgo5JbATnzmFU"
        ),
        "drwgo1G8HXV2LmM8m7h8ZlXCXPva7DoI",
        "",
    ),
    kind(
        "a session of AWS",
        "IQoJb3JpZ2luX2VjEJr///////////8BGgl1cy1lYXN0LTEiRzBFAiBcZ0Lq0",
        "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4rZe7tQi0oPa5sDf8gHj1kLm3qWe6k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4rZe7t",
        "",
    ),
    kind("a key of OpenAI", "T3BlbkFJ", "k3Jdh57sLa0qMx81Fz6wTy9uVb2nXc4r", ""),
    kind("an account and a secret", "production-administrator-", "k3Jdh57sLa0qMx81Fz6wTy9u", ""),
];

/// JSON and logins that are encoded in base64, like the value `tunnel-credentials: …` of some tools.
const ENCODED: &[(&str, &str, &str, &str)] = &[
    ("a login in base64", "deployment-robot:", "k3Jdh57sLa0qMx81Fz6wTy", ""),
    ("JSON in base64", r#"{"a":"production","s":""#, "k3Jdh57sLa0qMx81Fz6wTy", r#""}"#),
];

fn scanner(value: &str, login: bool) -> Scanner {
    let secret = Secret::new(value.to_owned());
    let secret = if login { KnownSecret::login(&secret) } else { KnownSecret::new(&secret) };
    let known = KnownSecrets::from_known([secret]).expect("secrets");
    Scanner::outbound(Arc::new(known)).with_tokens(false)
}

fn scanners() -> Vec<(String, &'static str, &'static str, &'static str, Scanner)> {
    let plain = KINDS.iter().map(|kind| {
        let value = format!("{}{}{}", kind.before, kind.private, kind.after);
        (kind.name.to_owned(), kind.before, kind.private, kind.after, scanner(&value, kind.login))
    });
    let encoded = ENCODED.iter().map(|(name, before, private, after)| {
        let value = STANDARD.encode(format!("{before}{private}{after}"));
        ((*name).to_owned(), *before, *private, *after, scanner(&value, false))
    });
    plain.chain(encoded).collect()
}

/// Writes `text` in each encoding that the scanner decodes.
fn encodings(text: &str) -> Vec<String> {
    let each =
        |between: &str, write: fn(u8) -> String| text.bytes().map(write).collect::<Vec<_>>().join(between);
    vec![
        text.to_owned(),
        STANDARD.encode(text),
        URL_SAFE_NO_PAD.encode(text),
        STANDARD.encode(STANDARD.encode(text)),
        hex::encode(text),
        data_encoding::BASE32.encode(text.as_bytes()),
        data_encoding::BASE32HEX.encode(text.as_bytes()),
        each("", |byte| format!("%{byte:02X}")),
        each("", |byte| format!("&#{byte};")),
        each("", |byte| format!("\\u{byte:04x}")),
        each(",", |byte| byte.to_string()),
        each(" ", |byte| format!("{byte:03o}")),
        each(" ", |byte| char::from(byte).to_string()),
        text.chars().rev().collect(),
        serde_json::Value::from(text).to_string(),
    ]
}

/// Returns whether a text contains twelve private characters by chance, because the characters next to the guessed part
/// match too.
fn matches_by_chance(text: &str, private: &str) -> bool {
    let letters = |text: &str| {
        text.bytes()
            .filter(u8::is_ascii_alphanumeric)
            .map(|byte| byte.to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    let (text, private) = (letters(text), letters(private));
    private.windows(PIECE).any(|piece| text.windows(PIECE).any(|window| window == piece))
}

fn found(scanner: &Scanner, text: &str) -> bool {
    !scanner.scan(text.as_bytes()).findings.is_empty()
}

/// Returns a character that differs from `other` in more than its case.
fn wrong(other: char) -> char {
    if "zZmM".contains(other) { 'b' } else { 'z' }
}

#[test]
fn public_parts_do_not_match() {
    for (name, before, private, after, scanner) in scanners() {
        let characters: Vec<char> = private.chars().collect();
        let most = (PIECE - 1).min(characters.len() - 1);
        for start in 0..=characters.len() - most {
            let piece: String = characters[start..start + most].iter().collect();
            // The characters before and after the known piece are wrong guesses.
            let known_prefix: String = characters[..start].iter().copied().map(wrong).collect();
            let tail: String = characters[start + most..].iter().copied().map(wrong).collect();
            for text in [
                format!("{before}{piece}{after}"),
                format!("{before}{known_prefix}{piece}{tail}{after}"),
                format!("{before}{piece}"),
                format!("{piece}{after}"),
                format!("{before}{before}{piece}{after}{before}"),
            ] {
                if matches_by_chance(&text, private) {
                    continue;
                }
                for (way, text) in encodings(&text).into_iter().enumerate() {
                    assert!(!found(&scanner, &text), "{name}, {start}, way {way}: {text}");
                }
            }
        }
    }
}

#[test]
fn twelve_private_characters_match() {
    for (name, _, private, _, scanner) in scanners() {
        let characters: Vec<char> = private.trim_end_matches('=').chars().collect();
        let enough = PIECE.min(characters.len());
        for window in characters.windows(enough) {
            let piece: String = window.iter().collect();
            for (way, text) in encodings(&piece).into_iter().enumerate() {
                // Only the search for letters and digits finds spread-out characters. It does not find a piece with
                // other characters.
                let spread = way == 12 && !piece.chars().all(|letter| letter.is_ascii_alphanumeric());
                assert!(spread || found(&scanner, &format!("<{text}>")), "{name}, way {way}: {text}");
            }
        }
    }
}

/// Tries to guess the next private character from scan results.
#[test]
fn guessing_character_by_character_recovers_nothing() {
    const GUESSES: usize = 10_000;
    const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+=:";
    for (name, before, private, after, scanner) in scanners() {
        let truth: Vec<char> = private.chars().collect();
        let (mut matched, mut guesses) = (0, 0);
        'walk: for known in (0..PIECE.min(truth.len())).rev() {
            let prefix: String = truth[..known].iter().collect();
            for guess in ALPHABET.chars().filter(|guess| {
                !guess.eq_ignore_ascii_case(&truth[known]) || known + 1 < PIECE.min(truth.len())
            }) {
                for text in encodings(&format!("{before}{prefix}{guess}")) {
                    guesses += 1;
                    matched += usize::from(found(&scanner, &text));
                    if guesses >= GUESSES {
                        break 'walk;
                    }
                }
                guesses += 1;
                matched += usize::from(found(&scanner, &format!("{before}{prefix}{guess}{after}")));
            }
        }
        assert_eq!(matched, 0, "{name}, of {guesses}");
    }
}

#[test]
fn ignores_passwords_that_are_too_short() {
    let scanner = scanner("deployment-robot:k3Jdh57", true);
    for text in encodings("deployment-robot:k3Jdh57") {
        assert!(!found(&scanner, &text), "{text}");
    }
}

#[test]
fn a_value_without_private_parts_matches_as_a_whole() {
    for value in ["correct-horse-battery-staple", "P@ss!w0r_2024#Pro", "a.b.c.d.e.f.g.h.i"] {
        let scanner = scanner(value, false);
        for (way, text) in encodings(value).into_iter().enumerate() {
            assert!(found(&scanner, &format!("<{text}>")), "{way}: {text}");
        }
        for text in encodings(&value[..value.len() - 1]).into_iter().chain(encodings(&value[1..])) {
            assert!(!found(&scanner, &text), "{text}");
        }
    }
}

#[test]
fn several_short_parts_match_only_together() {
    for (value, known) in
        [("A:A000aa:a0A0aA", "A:A000aa:a0A0a"), ("user:ab1-cd2-ef3-gh4", "user:ab1-cd2-ef3-gh")]
    {
        let scanner = scanner(value, false);
        assert!(!found(&scanner, known), "{known}");
        assert!(found(&scanner, value), "{value}");
    }
}

#[test]
fn redacts_a_whole_secret_when_a_piece_matches() {
    let value = "k3Jdh57sLa0q/Mx81/Fz6wTy9uVb2nXc4r";
    let report = scanner(value, false).scan(format!("<{value}>").as_bytes());
    let spans: Vec<(u64, u64)> =
        report.findings.iter().map(|found| (found.span.start, found.span.end)).collect();
    assert_eq!(spans, [(1, 1 + value.len() as u64)]);
}

/// Returns another letter of the same case, or another digit.
fn another_of_its_kind(letter: char) -> char {
    let shifted = |first: u8, count: u8| char::from((letter as u8 - first + count / 2) % count + first);
    match letter {
        'a'..='z' => shifted(b'a', 26),
        'A'..='Z' => shifted(b'A', 26),
        '0'..='9' => shifted(b'0', 10),
        other => other,
    }
}

/// Generates a key with `openssl` or `ssh-keygen`. Returns `None` if the program is not installed.
fn generate_key(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.contains("PRIVATE KEY").then_some(text)
}

/// Parts of a private key that the public key also contains do not match. All other parts match.
#[test]
fn only_the_private_numbers_of_a_key_match() {
    let commands: [(&str, &[&str]); 4] = [
        ("openssl", &["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
        ("openssl", &["genrsa", "-traditional", "2048"]),
        ("openssl", &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
        ("openssl", &["genpkey", "-algorithm", "ED25519"]),
    ];
    for (program, arguments) in commands {
        let Some(key) = generate_key(program, arguments) else { continue };
        let scanner = scanner(&key, false);
        assert!(found(&scanner, &key), "{arguments:?}");
        assert!(found(&scanner, &key.replace('\n', "\\n")), "{arguments:?}");
        let body: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
        // The number of base64 characters before the private number. In RSA keys, these characters encode the modulus,
        // the public exponent and the length of the private number. In other keys, they encode the names of the curve
        // and the format.
        let public = if arguments.iter().any(|word| word.contains("rsa") || word.contains("RSA")) {
            350
        } else if arguments.contains(&"EC") {
            36
        } else {
            20
        };
        assert!(!found(&scanner, &body[..public]), "{arguments:?}: {}", &body[..public]);
        assert!(public < 350 || found(&scanner, &body[public + 70..public + 92]), "{arguments:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_guess_next_to_known_parts_of_any_token_reveals_nothing(
        parts in prop::collection::vec("[a-zA-Z0-9]{1,24}", 2..5),
        separators in "[-_.:/]{4}",
        hidden in any::<prop::sample::Index>(),
        right in 0_usize..12,
    ) {
        // The author of the text knows all parts except one, and the first characters of the hidden part.
        let hidden = hidden.index(parts.len());
        prop_assume!(parts[hidden].len() > right);
        let other: String = parts[hidden].chars().map(another_of_its_kind).collect();
        // If the part after the hidden one begins with the first hidden character, the text is a correct guess by
        // chance.
        let next = parts.get(hidden + 1).map(|next| &next[..1]);
        let is_next = |part: &str| next.is_some_and(|next| next.eq_ignore_ascii_case(&part[right..=right]));
        prop_assume!(!is_next(&parts[hidden]) && !is_next(&other));
        let with = |part: String| -> String {
            let mut all = parts.clone();
            all[hidden] = part;
            let ends = separators.chars().map(String::from).take(all.len() - 1).chain([String::new()]);
            all.into_iter().zip(ends).map(|(part, end)| part + &end).collect()
        };
        let (value, another) = (with(parts[hidden].clone()), with(other));
        let known = with(format!("{}~", &parts[hidden][..right]));
        // A part that is entirely public may match. The result must not depend on the known characters of the hidden
        // part: it must be the same for a secret in which these characters are different.
        let (right, wrong) = (scanner(&value, false), scanner(&another, false));
        for guessed in encodings(&known) {
            prop_assert_eq!(found(&right, &guessed), found(&wrong, &guessed), "{} {} {}", value, another, guessed);
        }
    }
}
