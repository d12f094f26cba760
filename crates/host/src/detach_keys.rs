//! The keys with which a user detaches from a session.

use std::fmt;

/// A sequence of keys, as the bytes that a terminal sends for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachKeys {
    /// The bytes. There is at least one.
    bytes: Vec<u8>,
    /// The sequence as the user wrote it, for messages.
    text: String,
}

impl DetachKeys {
    /// The default sequence, which programs rarely use.
    pub const DEFAULT: &str = "ctrl-],d";

    /// Parses a list of keys that are separated by commas. Each key is `ctrl-X` or a single character.
    ///
    /// # Errors
    /// Returns a sentence fragment that names the invalid key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = text.split(',').map(key).collect::<Result<Vec<u8>, String>>()?;
        Ok(Self { bytes, text: text.to_owned() })
    }

    /// Returns the bytes. There is at least one.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Display for DetachKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the byte that a terminal sends for a key.
fn key(word: &str) -> Result<u8, String> {
    let word = word.trim();
    let control = word.strip_prefix("ctrl-").or_else(|| word.strip_prefix("Ctrl-"));
    match (control.unwrap_or(word).as_bytes(), control.is_some()) {
        ([letter @ (b'a'..=b'z' | b'A'..=b'Z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')], true) => {
            Ok(letter.to_ascii_uppercase() & 0x1f)
        }
        ([character @ 0x20..=0x7e], false) => Ok(*character),
        _ => Err(format!(
            "{word:?} is not a key; write `ctrl-` and a letter or one of @[\\]^_, or one character"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_keys_to_terminal_bytes() {
        for (text, bytes) in [("ctrl-],d", vec![0x1d, b'd']), ("ctrl-a", vec![1]), ("~,.", vec![b'~', b'.'])]
        {
            assert_eq!(DetachKeys::parse(text).expect("keys").bytes(), bytes, "{text}");
        }
        for text in ["", "ctrl-", "ctrl-1", "abc", "ctrl-a,", "\u{7f}"] {
            assert!(DetachKeys::parse(text).is_err(), "{text:?}");
        }
    }
}
