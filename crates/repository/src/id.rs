//! Ids of git objects.

use bottle_pack_check::ObjectFormat;

/// The id of a git object in hexadecimal digits, either a SHA-1 or a SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectId(String);

impl ObjectId {
    /// Parses an id. Whitespace around it is ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (hex && matches!(text.len(), 40 | 64)).then(|| Self(text.to_owned()))
    }

    /// Parses an id from the output of a program, like [`Self::parse`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().and_then(Self::parse)
    }

    /// Creates the id with these 20 or 32 bytes.
    pub(crate) fn from_binary(bytes: &[u8]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the 20 or 32 bytes of the id.
    pub(crate) fn to_binary(&self) -> Vec<u8> {
        let digit = |digit: u8| if digit < b'a' { digit - b'0' } else { digit - b'a' + 10 };
        self.0.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    /// Returns the hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first 12 digits, for messages.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..self.0.len().min(12)]
    }

    /// Returns the hash function of the id.
    #[must_use]
    pub fn format(&self) -> ObjectFormat {
        if self.0.len() == 64 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_complete_object_ids() {
        let sha1 = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(ObjectId::parse(&format!("{sha1}\n")).as_ref().map(ObjectId::as_str), Some(sha1));
        for text in
            ["", "HEAD", "--upload-pack=x", &sha1[1..], &sha1.to_uppercase(), &format!("{sha1} {sha1}")]
        {
            assert_eq!(ObjectId::parse(text), None, "{text}");
        }
    }
}
