//! Compresses long texts for serialization (zlib, in base64), because a message has a maximum length.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// The maximum length of a text after decompression, in bytes. A longer text is an error.
const MAX_TEXT: u64 = 4 << 20;

pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let packed =
        encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).map_err(S::Error::custom)?;
    serializer.serialize_str(&STANDARD.encode(packed))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let packed = STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)?;
    let mut text = String::new();
    let read = ZlibDecoder::new(packed.as_slice()).take(MAX_TEXT + 1).read_to_string(&mut text);
    match read.map_err(D::Error::custom)? as u64 {
        ..=MAX_TEXT => Ok(text),
        _ => Err(D::Error::custom("the text is too long")),
    }
}

#[cfg(test)]
mod tests {
    use crate::session::bundle::RuleFile;

    #[test]
    fn a_long_text_arrives_whole_and_a_longer_one_does_not() {
        let file =
            |length: usize| RuleFile { name: "a".to_owned(), text: "regex = 'ü'\n".repeat(length / 13) };
        let long = serde_json::to_string(&file(4 << 20)).expect("written");
        assert!(long.len() < 64 << 10, "{}", long.len());
        assert_eq!(serde_json::from_str::<RuleFile>(&long).expect("read"), file(4 << 20));
        let longer = serde_json::to_string(&file(5 << 20)).expect("written");
        assert!(serde_json::from_str::<RuleFile>(&longer).is_err());
        assert!(serde_json::from_str::<RuleFile>("{\"name\":\"a\",\"text\":\"YWJj\"}").is_err());
    }
}
