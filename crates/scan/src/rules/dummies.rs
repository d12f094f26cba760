//! Recognizes example values from documentation, which are not findings. A value is an example value only if it matches
//! completely.
//!
//! Partial matches and example values in the adjacent text do not count, because an attacker could add an example value
//! to a leaked secret.

/// Example values from vendors' documentation and from standards, and well-known keys of emulators.
const VALUES: &[&str] = &[
    "AKIAIOSFODNN7EXAMPLE",
    "AKIAI44QH8DHBEXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY",
    // The fixed keys of Azurite and of the Cosmos DB emulator.
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==",
    // The example tokens of Django REST framework, GitHub and DigitalOcean.
    "9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b",
    "e72e16c7e42f292c6912e7710c838347ae178b4a",
    "b7d03a6947b217efb6f3ec3bd3504582",
    // Base64 of the example login in RFC 7617, and of `user:password` and similar logins.
    "QWxhZGRpbjpvcGVuIHNlc2FtZQ",
    "dXNlcjpwYXNzd29yZA",
    "dXNlcm5hbWU6cGFzc3dvcmQ",
    "dXNlcjpwYXNz",
];

/// Common passwords. Attackers try them first, so reporting them is useless. Case is ignored.
const PASSWORDS: &[&str] = &[
    "admin",
    "changeit",
    "changeme",
    "change-me",
    "change_me",
    "dbpass",
    "dbpassword",
    "db_password",
    "default",
    "example",
    "foobar",
    "guest",
    "hunter2",
    "letmein",
    "minioadmin",
    "mongo",
    "mypass",
    "mypassword",
    "my-password",
    "my_password",
    "mysecretpassword",
    "my-secret-pw",
    "mysql",
    "none",
    "null",
    "pass",
    "passw0rd",
    "passwd",
    "password",
    "password1",
    "password123",
    "postgres",
    "postgresql",
    "pwd",
    "rabbitmq",
    "redacted",
    "[redacted]",
    "redis",
    "root",
    "rootpassword",
    "s3cr3t",
    "secret",
    "secret123",
    "secretpassword",
    "supersecret",
    "test",
    "testpass",
    "testpassword",
    "tiger",
    "user",
    "username",
    "your-password",
    "your_password",
    "yourpassword",
    "12345678",
    "123456",
];

/// Pairs of delimiters that surround the name in a template placeholder.
const AROUND: &[(&str, &str)] = &[
    ("${{", "}}"),
    ("{{", "}}"),
    ("${", "}"),
    ("#{", "}"),
    ("$(", ")"),
    ("%(", ")s"),
    ("<%=", "%>"),
    ("{", "}"),
    ("<", ">"),
    ("%", "%"),
    ("[", "]"),
    ("$", ""),
    (":", ""),
    ("@", "@"),
    ("__", "__"),
    // Operators that concatenate strings in code.
    ("+", "+"),
    (".", "."),
    ("'+", "+'"),
    ("\"+", "+\""),
    ("'.", ".'"),
    ("\".", ".\""),
];

/// Names of objects from which code reads a password, such as `config` in `config.password`.
const SOURCES: &[&str] = &[
    "args",
    "cfg",
    "conf",
    "config",
    "configuration",
    "env",
    "environment",
    "opts",
    "options",
    "os",
    "params",
    "process",
    "secrets",
    "self",
    "settings",
    "system",
    "this",
    "var",
    "vars",
];

/// Names of members that code reads from an object.
const MEMBERS: &[&str] = &["key", "pass", "passwd", "password", "pwd", "secret", "token"];

/// The maximum length of the name in a template placeholder. A longer text may be a secret.
const MAX_NAME: usize = 64;

/// Returns whether `secret` as a whole is an example value.
pub(super) fn is_dummy(secret: &[u8]) -> bool {
    // In ODBC connection strings, values may be in braces.
    let inner = secret.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}")).unwrap_or(secret);
    // The placeholder `%DB_PASSWORD%` begins like the percent-encoded byte `%DB`, so it was decoded. The escape is
    // restored here.
    if let [first @ 0x80..=0xff, rest @ .., b'%'] = inner
        && let Ok(rest) = std::str::from_utf8(rest)
    {
        return is_name(&format!("{first:X}{rest}"));
    }
    let (Ok(secret), Ok(inner)) = (std::str::from_utf8(secret), std::str::from_utf8(inner)) else {
        return false;
    };
    VALUES.contains(&secret.trim_end_matches('='))
        || VALUES.contains(&secret)
        || PASSWORDS.iter().any(|password| password.eq_ignore_ascii_case(secret))
        || is_placeholder(secret)
        || is_placeholder(inner)
}

fn is_placeholder(text: &str) -> bool {
    let in_delimiters = |(before, after): &(&str, &str)| {
        text.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).is_some_and(is_name)
    };
    AROUND.iter().any(in_delimiters) || is_cut_off(text) || is_reference(text)
}

/// Returns whether a text is a placeholder that the pattern truncated at a quote, such as `{os.environ[`.
fn is_cut_off(text: &str) -> bool {
    let rest = text.trim_start_matches(['{', '$', '#', '%', '(']);
    let count = |signs: &[char]| text.matches(signs).count();
    rest.len() < text.len() && count(&['{', '(', '[']) > count(&['}', ')', ']']) && is_name(rest)
}

/// Returns whether a text is code that reads a value, such as `os.environ[`, `db.password` or `read_line()`.
fn is_reference(text: &str) -> bool {
    let mut words = text.split(['.', '[', '(']);
    let (first, last) = (words.next().unwrap_or_default(), words.next_back().unwrap_or_default());
    let is_one = |names: &[&str], word: &str| names.iter().any(|name| name.eq_ignore_ascii_case(word));
    let is_access = text.len() > first.len() && (is_one(SOURCES, first) || is_one(MEMBERS, last));
    let is_call = text.find('(').is_some_and(|at| at > 0);
    (is_access || is_call) && is_name(text)
}

/// Returns whether a text consists of words, as names and short expressions do and keys do not. The text must contain
/// no digits. Each word must be in one case, or consist of parts that each begin with a capital, as in `dbPassword`.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    let word = |word: &str| {
        let capitals = word.bytes().skip(1).filter(u8::is_ascii_uppercase).count();
        // The parts of a name are longer than the parts of random text, which have two letters on average.
        capitals == 0 || capitals + 1 == word.len() || 2 * word.len() >= 5 * (capitals + 1)
    };
    let is_sign = |letter: char| "_-. []()'\"$!:?|,".contains(letter);
    text.len() <= MAX_NAME
        && text.contains(|letter: char| letter.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphabetic() || is_sign(letter))
        && text.split(is_sign).all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dummies_are_whole_values() {
        for (value, dummy) in [
            ("AKIAIOSFODNN7EXAMPLE", true),
            ("AKIAIOSFODNN7EXAMPLF", false),
            ("QWxhZGRpbjpvcGVuIHNlc2FtZQ==", true),
            ("password", true),
            ("Password", true),
            ("password9", false),
            ("qX7zR2mK9pexample", false),
            ("$DB_PASSWORD", true),
            ("${password}", true),
            ("${{ secrets.TOKEN }}", true),
            ("{{ vault_password }}", true),
            ("<your-password>", true),
            ("%PASSWORD%", true),
            ("$qX7zR2mK9pL4", false),
            ("{qXzRmKpLw}", false),
            ("${qX7zR2mK9pL4wT8v}", false),
            ("<>", false),
            ("${dbPassword}", true),
            ("{os.environ['DB_PASSWORD']}", true),
            ("${DB_PASSWORD:-changeme}", true),
            ("${DB_PASSWORD:-qX7zR2mK9pL4}", false),
            ("'+password+'", true),
            ("__DB_PASSWORD__", true),
            ("os.environ[", true),
            ("{os.environ[", true),
            ("{${DB_PASSWORD}}", true),
            ("{qX7zR2mK9[", false),
            ("read_line()?", true),
            ("db.password", true),
            ("qX.zRmKpLw", false),
            ("correct.horse", false),
            ("$", false),
        ] {
            assert_eq!(is_dummy(value.as_bytes()), dummy, "{value}");
        }
    }
}
