//! Parses secret references: `NAME`, `env:NAME`, `file:PATH`, `keychain:NAME` or `cmd:ARGV`.
//!
//! `bottle_plan::secrets` reads the value of a reference once, at launch. The reference itself is not secret. Forms
//! that depend on the working directory are refused, because a repository must not choose a secret's value or
//! the program that prints it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The maximum length of a keychain item's name in bytes. No service needs a longer name.
const KEYCHAIN_NAME_MAX: usize = 256;

/// A reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretRef {
    /// The value of a host variable.
    Variable(String),
    /// The content of a host file, named by an absolute path or a path that begins with `~/`.
    File(PathBuf),
    /// The password of an item in the user's keychain, by the item's service name. Only macOS can read it.
    Keychain(String),
    /// The output of a command: a program in `PATH` or with an absolute path, and its arguments.
    Command(Vec<String>),
}

/// Why a secret reference is invalid. The message never quotes the reference, because a user may have written a secret
/// instead of a reference by mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSecretRef {
    /// The text is not a variable name, and does not begin with a known prefix.
    #[error(
        "must be a secret reference: a host variable's name, `env:NAME`, `file:PATH`, `keychain:NAME` or \
         `cmd:PROGRAM ARGS`"
    )]
    NoReference,
    /// The file's path is relative to the working directory.
    #[error("must name the file by an absolute path or one that begins with `~/`")]
    RelativeFile,
    /// The name of the keychain item is empty, too long, or has control characters.
    #[error("must name a keychain item in at most {KEYCHAIN_NAME_MAX} bytes without control characters")]
    BadKeychainName,
    /// The command is empty, or has an unclosed quote.
    #[error("must be a command: a program and its arguments, quoted as in a shell")]
    NoCommand,
    /// The program's path is relative to the working directory.
    #[error("must name its program by an absolute path or by a name found in PATH")]
    RelativeProgram,
}

impl FromStr for SecretRef {
    type Err = BadSecretRef;

    fn from_str(text: &str) -> Result<Self, BadSecretRef> {
        if let Some(path) = text.strip_prefix("file:") {
            return file(path);
        }
        if let Some(name) = text.strip_prefix("keychain:") {
            return keychain(name);
        }
        if let Some(line) = text.strip_prefix("cmd:") {
            return command(line);
        }
        let name = text.strip_prefix("env:").unwrap_or(text);
        if is_variable(name) { Ok(Self::Variable(name.to_owned())) } else { Err(BadSecretRef::NoReference) }
    }
}

fn file(path: &str) -> Result<SecretRef, BadSecretRef> {
    let rooted = path.starts_with('/') || path.strip_prefix("~/").is_some_and(|rest| !rest.is_empty());
    if rooted && !path.contains('\0') {
        Ok(SecretRef::File(PathBuf::from(path)))
    } else {
        Err(BadSecretRef::RelativeFile)
    }
}

fn keychain(name: &str) -> Result<SecretRef, BadSecretRef> {
    let usable = !name.is_empty() && name.len() <= KEYCHAIN_NAME_MAX && !name.chars().any(char::is_control);
    if usable { Ok(SecretRef::Keychain(name.to_owned())) } else { Err(BadSecretRef::BadKeychainName) }
}

fn command(line: &str) -> Result<SecretRef, BadSecretRef> {
    let argv = shlex::split(line).filter(|_| !line.contains('\0')).ok_or(BadSecretRef::NoCommand)?;
    match argv.first() {
        None => Err(BadSecretRef::NoCommand),
        Some(program) if program.is_empty() => Err(BadSecretRef::NoCommand),
        Some(program) if program.contains('/') && !program.starts_with('/') => {
            Err(BadSecretRef::RelativeProgram)
        }
        Some(_) => Ok(SecretRef::Command(argv)),
    }
}

/// Whether `name` is a valid name of an environment variable: `[A-Za-z_][A-Za-z0-9_]*`.
pub(super) fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Formats the reference in canonical form, which parses to the same reference.
impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Keychain(name) => write!(f, "keychain:{name}"),
            Self::Command(argv) => {
                let line = shlex::try_join(argv.iter().map(String::as_str)).map_err(|_| fmt::Error)?;
                write!(f, "cmd:{line}")
            }
        }
    }
}

impl Serialize for SecretRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_every_form() {
        for (text, wanted) in [
            ("GITHUB_TOKEN", SecretRef::Variable("GITHUB_TOKEN".into())),
            ("env:_x1", SecretRef::Variable("_x1".into())),
            ("file:~/.token", SecretRef::File("~/.token".into())),
            ("file:/run/secrets/t", SecretRef::File("/run/secrets/t".into())),
            ("keychain:example-token", SecretRef::Keychain("example-token".into())),
            ("keychain:Claude Code-credentials", SecretRef::Keychain("Claude Code-credentials".into())),
            ("keychain:-w", SecretRef::Keychain("-w".into())),
            (
                "cmd:op read 'op://Private/GitHub PAT/token'",
                SecretRef::Command(vec!["op".into(), "read".into(), "op://Private/GitHub PAT/token".into()]),
            ),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn refuses_references_that_depend_on_the_working_directory() {
        for (text, why) in [
            ("", BadSecretRef::NoReference),
            ("sk-ant-api03-abc", BadSecretRef::NoReference),
            ("$TOKEN", BadSecretRef::NoReference),
            ("vault:x", BadSecretRef::NoReference),
            ("env:", BadSecretRef::NoReference),
            ("file:token", BadSecretRef::RelativeFile),
            ("file:../token", BadSecretRef::RelativeFile),
            ("file:~/", BadSecretRef::RelativeFile),
            ("file:~root/x", BadSecretRef::RelativeFile),
            ("keychain:", BadSecretRef::BadKeychainName),
            ("keychain:a\nb", BadSecretRef::BadKeychainName),
            ("keychain:a\0b", BadSecretRef::BadKeychainName),
            ("cmd:", BadSecretRef::NoCommand),
            ("cmd:'open", BadSecretRef::NoCommand),
            ("cmd:''", BadSecretRef::NoCommand),
            ("cmd:./get-token", BadSecretRef::RelativeProgram),
            ("cmd:bin/get-token", BadSecretRef::RelativeProgram),
        ] {
            assert_eq!(text.parse::<SecretRef>(), Err(why), "{text}");
        }
    }

    #[test]
    fn limits_the_length_of_a_keychain_items_name() {
        let longest = "n".repeat(KEYCHAIN_NAME_MAX);
        assert_eq!(format!("keychain:{longest}").parse(), Ok(SecretRef::Keychain(longest.clone())));
        let parsed = format!("keychain:{longest}n").parse::<SecretRef>();
        assert_eq!(parsed, Err(BadSecretRef::BadKeychainName));
    }

    proptest! {
        #[test]
        fn display_round_trips(text in "(env:|file:|keychain:|cmd:|)[ -~é]{0,24}") {
            if let Ok(reference) = text.parse::<SecretRef>() {
                prop_assert_eq!(reference.to_string().parse(), Ok(reference));
            }
        }
    }
}
