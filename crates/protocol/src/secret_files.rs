//! Detects, by their names, files that usually contain secrets.

use unicode_normalization::UnicodeNormalization;

/// Complete names of files that usually contain secrets.
const WHOLE: &[&str] = &[
    ".env",
    ".git-credentials",
    ".htpasswd",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".my.cnf",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_rsa",
    "kubeconfig",
    "login.keychain",
    "credentials.tfrc.json",
    ".terraformrc",
    "service-account.json",
];

/// Suffixes of the names of files that usually contain secrets.
const SUFFIXES: &[&str] =
    &[".kdbx", ".p12", ".pfx", ".jks", ".keystore", ".ppk", ".tfstate", ".gnucash", ".ovpn"];

/// Pairs of directory and file name. A file with the second name usually contains secrets only in a directory with the
/// first name.
const IN_DIRECTORIES: &[(&str, &str)] = &[
    (".aws", "credentials"),
    (".docker", "config.json"),
    (".kube", "config"),
    (".gnupg", "secring.gpg"),
    (".ssh", "identity"),
    ("gcloud", "credentials.db"),
];

/// Words that mark a `.env` file as an example without secrets.
const EXAMPLES: &[&str] = &["example", "sample", "template", "dist", "test", "defaults"];

/// Characters that look like an ASCII character, each with this ASCII character.
const LOOK_ALIKES: &[(char, char)] = &[
    ('а', 'a'),
    ('с', 'c'),
    ('ԁ', 'd'),
    ('е', 'e'),
    ('ё', 'e'),
    ('һ', 'h'),
    ('і', 'i'),
    ('ι', 'i'),
    ('ı', 'i'),
    ('ј', 'j'),
    ('ο', 'o'),
    ('о', 'o'),
    ('р', 'p'),
    ('ρ', 'p'),
    ('ѕ', 's'),
    ('ν', 'v'),
    ('ѵ', 'v'),
    ('υ', 'u'),
    ('х', 'x'),
    ('у', 'y'),
    ('п', 'n'),
    ('ո', 'n'),
    ('ѐ', 'e'),
    ('\u{2024}', '.'),
    ('\u{ff0e}', '.'),
    ('\u{2010}', '-'),
    ('\u{2011}', '-'),
    ('\u{2012}', '-'),
    ('\u{2013}', '-'),
    ('\u{2212}', '-'),
];

/// Normalizes a name as file systems and readers may interpret it. The result is in lower case, without invisible
/// characters, and with look-alike letters replaced. The result lacks the trailing dots, the spaces and the stream name
/// that Windows drops.
#[must_use]
pub fn normalized(name: &[u8]) -> String {
    let mut made = String::with_capacity(name.len());
    for letter in String::from_utf8_lossy(name).nfkc().flat_map(char::to_lowercase) {
        if is_invisible(letter) {
            continue;
        }
        let alike = LOOK_ALIKES.iter().find(|(other, _)| *other == letter);
        made.push(alike.map_or(letter, |(_, letter)| *letter));
    }
    let end = made.find(':').unwrap_or(made.len());
    made.truncate(end);
    made.trim_matches(|letter: char| letter.is_whitespace() || letter.is_control())
        .trim_end_matches(|letter: char| letter == '.' || letter.is_whitespace())
        .to_owned()
}

/// Whether HFS+ ignores the character in file names, or readers cannot see it.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether the file `name` in `directory` usually contains secrets. `directory` is the name of the directory alone.
#[must_use]
pub fn is_secret_file(directory: &[u8], name: &[u8]) -> bool {
    // On Windows, a name that contains `\` is a path.
    let mut parts = name.rsplit(|byte| *byte == b'\\');
    let name = normalized(parts.next().unwrap_or_default());
    let directory = normalized(parts.next().unwrap_or(directory));
    let name = name.as_str();
    WHOLE.contains(&name)
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || IN_DIRECTORIES.contains(&(directory.as_str(), name))
        || is_environment_file(name)
}

/// Whether a name is a variant of `.env` that is not an example: `.env.production`, `.env-old` and `.env~`, but not
/// `.environment`.
fn is_environment_file(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(".env") else { return false };
    let mut words = rest.split(['.', '-', '_', '~']);
    words.next() == Some("") && !words.any(|word| EXAMPLES.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_secret_files_by_name() {
        for (directory, name, found) in [
            ("", ".env", true),
            ("app", ".ENV", true),
            ("", ".env.production", true),
            ("", ".env.example", false),
            ("", ".env.local.sample", false),
            ("", ".env-sample", false),
            ("", ".env~", true),
            ("", ".env-old", true),
            ("", ".env_local", true),
            ("", ".environment", false),
            ("", "env", false),
            ("", "id_rsa", true),
            ("", "id_rsa.pub", false),
            ("", "store.p12", true),
            (".aws", "credentials", true),
            (".AWS", "Credentials", true),
            ("src", "credentials", false),
            ("", ".aws\\credentials", true),
            ("", "app\\.env", true),
            ("", ".env.", true),
            ("", ".env ", true),
            ("", ".env. .", true),
            ("", ".env\t", true),
            ("", ".env::$DATA", true),
            ("", ".e\u{200c}nv", true),
            ("", "\u{feff}.env", true),
            ("", "．ｅｎｖ", true),
            ("", ".\u{435}nv", true),
            ("", "\u{2024}env", true),
            ("", "id_\u{433}sa", false),
            ("", "ID_RSA", true),
            ("", "store.\u{440}12", true),
            ("", "main.rs", false),
            ("", "", false),
            ("", "...", false),
        ] {
            assert_eq!(is_secret_file(directory.as_bytes(), name.as_bytes()), found, "{directory}/{name:?}");
        }
    }
}
