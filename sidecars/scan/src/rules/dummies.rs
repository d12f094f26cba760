//! Recognizes example values from documentation, which are not findings. A value must match completely.
//!
//! A partial match, or an example value in the adjacent text, does not count, because an attacker could add
//! an example value to a leaked secret.

/// Example values of vendors' documentation and standards, and well-known keys of emulators.
const VALUES: &[&str] = &[
    "AKIAIOSFODNN7EXAMPLE",
    "AKIAI44QH8DHBEXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY",
    // Fixed keys of Azurite and of the Cosmos DB emulator.
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==",
    // The login of RFC 7617, and `user:password`.
    "QWxhZGRpbjpvcGVuIHNlc2FtZQ",
    "dXNlcjpwYXNzd29yZA",
    "dXNlcm5hbWU6cGFzc3dvcmQ",
    "dXNlcjpwYXNz",
];

/// Common passwords that attackers try first, so it is useless to report them. Case is ignored.
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

/// Delimiters that surround the name in a placeholder.
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
];

/// The maximum length of the name in a placeholder. A longer text may be a secret.
const MAX_NAME: usize = 40;

/// Whether the complete `secret` is an example value.
pub(super) fn is_dummy(secret: &[u8]) -> bool {
    let Ok(secret) = std::str::from_utf8(secret) else { return false };
    VALUES.contains(&secret.trim_end_matches('='))
        || VALUES.contains(&secret)
        || PASSWORDS.iter().any(|password| password.eq_ignore_ascii_case(secret))
        || AROUND.iter().any(|(before, after)| {
            secret.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).is_some_and(is_name)
        })
}

/// Whether a text consists of words, as names do and keys do not. It must contain no digits, and each word
/// must be in one case except for its first letter.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    let word = |word: &str| {
        let rest = word.get(1..).unwrap_or_default();
        rest.bytes().all(|byte| byte.is_ascii_lowercase())
            || word.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    !text.is_empty()
        && text.len() <= MAX_NAME
        && text.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_-. ".contains(&byte))
        && text.split(['_', '-', '.', ' ']).all(word)
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
            ("$", false),
        ] {
            assert_eq!(is_dummy(value.as_bytes()), dummy, "{value}");
        }
    }
}
