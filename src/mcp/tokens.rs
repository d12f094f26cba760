//! The token file of `bottle mcp --http`: which token may use which bottles and tools.
//!
//! The file contains the SHA-256 of each token instead of the token, so reading the file gives no access.

use std::fs;
use std::io::Read;
use std::path::Path;

use bottle_command_policy::Mode;
use bottle_text::yaml;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::scope::{Bottles, STARTED, Scope, globs};
use crate::console::error::CliError;

/// The number of random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// The maximum size of the token file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The permissions of a token.
#[derive(Debug)]
pub(crate) struct Granted {
    /// The SHA-256 of the token.
    pub(crate) digest: [u8; 32],
    pub(crate) scope: Scope,
}

/// An entry in the format of the token file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: String,
    #[serde(default)]
    bottles: Option<Vec<String>>,
    #[serde(default)]
    tools: Option<Vec<String>>,
    #[serde(default)]
    mode: Option<String>,
}

/// Reads a token file.
///
/// # Errors
/// Returns an error that names the file and the invalid entry.
pub(crate) fn read(path: &Path) -> Result<Vec<Granted>, CliError> {
    let unreadable = |error| CliError::cannot(format_args!("read {}", path.display()), error);
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_MAX).read_to_string(&mut text).map_err(unreadable)?;
    parse(&text).map_err(|why| {
        CliError::usage(format!("{}: {why}", path.display()))
            .about("--token-file")
            .hint("`bottle mcp token NAME` prints a new token and its entry")
    })
}

fn parse(text: &str) -> Result<Vec<Granted>, String> {
    let entries: Vec<Entry> = yaml::from_str(text).map_err(|error| error.to_string())?;
    let mut all: Vec<Granted> = Vec::new();
    for entry in entries {
        let name = entry.name.clone();
        let granted = entry.granted().map_err(|why| format!("token {name:?}: {why}"))?;
        if all.iter().any(|other| other.scope.name == granted.scope.name || other.digest == granted.digest) {
            return Err(format!("token {name:?}: another entry has the same name or token"));
        }
        all.push(granted);
    }
    if all.is_empty() { Err("it has no token".to_owned()) } else { Ok(all) }
}

impl Entry {
    fn granted(self) -> Result<Granted, String> {
        check_name(&self.name)?;
        let mut digest = [0; 32];
        hex::decode_to_slice(&self.sha256, &mut digest)
            .map_err(|_| "`sha256` must be the 64 hexadecimal digits of the token's SHA-256".to_owned())?;
        let bottles = self.bottles.unwrap_or_else(|| vec![STARTED.to_owned()]);
        let tools = self.tools.map(|tools| globs(tools.iter().map(String::as_str))).transpose()?;
        let mode = self.mode.map(|mode| Mode::parse(&mode)).transpose().map_err(|why| why.to_string())?;
        let scope = Scope {
            name: format!("token:{}", self.name),
            bottles: Bottles::parse(bottles.iter().map(String::as_str))?,
            tools,
            mode: mode.map(|named| named.mode),
        };
        Ok(Granted { digest, scope })
    }
}

/// Checks the name of a token.
///
/// # Errors
/// Returns a part of an error message that describes a valid name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_name { Ok(()) } else { Err("a name consists of letters, digits and `-`".to_owned()) }
}

/// Returns the SHA-256 of a token.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Makes a new token. Returns the token and its entry for the token file.
pub(crate) fn make(name: &str) -> (String, String) {
    let token = hex::encode(rand::random::<[u8; TOKEN_BYTES]>());
    let entry =
        format!("- name: {name}\n  sha256: {}\n  bottles: [{STARTED}]\n", hex::encode(digest(&token)));
    (token, entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_has_an_entry_that_is_accepted() {
        let (token, entry) = make("ci");
        let (other_token, other) = make("other");
        assert_ne!(token, other_token);
        let all = parse(&format!("{entry}{other}")).expect("entries");
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].digest, all[0].scope.name.as_str()), (digest(&token), "token:ci"));
        assert!(!entry.contains(&token));
    }

    #[test]
    fn an_invalid_entry_is_named() {
        let (_, entry) = make("ci");
        for (text, says) in [
            ("[]".to_owned(), "it has no token"),
            (entry.replace("ci", "a b"), "token \"a b\": a name consists of"),
            (entry.clone() + &entry, "token \"ci\": another entry"),
            (format!("{entry}  tools: ['{{a']"), "token \"ci\": \"{a\" is not a pattern"),
            (format!("{entry}  mode: sometimes"), "token \"ci\": "),
            ("- {name: ci, sha256: abc}".to_owned(), "token \"ci\": `sha256` must be"),
        ] {
            let error = parse(&text).expect_err("an error");
            assert!(error.starts_with(says), "{text}: {error}");
        }
        assert!(parse("").is_err());
        assert!(parse(&format!("{entry}  toools: [x]")).expect_err("an error").contains("toools"));
    }
}
