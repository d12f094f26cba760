//! Values that a program keeps secret from its reader: they are replaced in everything that the program reads from
//! bottles.
//!
//! The guest replaces the values of the bottle's own secret variables. A program may know further values, for example a
//! token with which it made the bottle's input. These values never enter the bottle: this process replaces them.

use bottle_instance::output_pieces::OutputPieces;
use bottle_policy::secret::Secret;
use bottle_protocol::session::process::REDACTED;
use bottle_scan::{OutputRedactor, SHORTEST_ANYWHERE};
use serde_json::Value;

use super::failure::Failure;

/// The maximum number of values.
pub const VALUES_MAX: usize = 64;

/// The maximum length of a value in bytes.
pub const VALUE_MAX: usize = 64 << 10;

/// The values that are replaced by [`REDACTED`], in plain text and in base64, hexadecimal, percent-encoding and JSON.
#[derive(Debug)]
pub struct Redaction(OutputRedactor);

impl Redaction {
    /// Prepares the redaction of `values`. Without values, only the secrets of each bottle are replaced.
    ///
    /// # Errors
    /// When there are more than [`VALUES_MAX`] values, when a value is longer than [`VALUE_MAX`], or when a value has
    /// no line with at least eight bytes. A shorter value would match by chance.
    pub fn new(values: &[Secret]) -> Result<Self, Failure> {
        if values.len() > VALUES_MAX {
            return Err(Failure::usage(format!("at most {VALUES_MAX} values can be redacted")));
        }
        for value in values.iter().map(Secret::expose) {
            if value.len() > VALUE_MAX {
                return Err(Failure::usage(format!(
                    "a value to redact is longer than {} KiB",
                    VALUE_MAX >> 10
                )));
            }
            if value.lines().all(|line| line.trim().len() < SHORTEST_ANYWHERE) {
                return Err(Failure::usage(format!(
                    "a value to redact is shorter than {SHORTEST_ANYWHERE} bytes, so it would match by chance"
                )));
            }
        }
        let redactor = OutputRedactor::new(values, REDACTED);
        Ok(Self(redactor.map_err(|error| Failure::failed(error.to_string()))?))
    }

    /// Replaces the values in a text.
    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.0.redact(text.as_bytes())).into_owned()
    }

    /// Replaces the values in all strings of a document.
    pub fn document(&self, document: &mut Value) {
        match document {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.document(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.document(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    pub(crate) fn redactor(&self) -> &OutputRedactor {
        &self.0
    }

    /// Replaces the values in a part of a process's output, also those whose bytes are of both streams.
    pub(crate) fn pieces(&self, before: &[u8], part: &OutputPieces, after: &[u8]) -> OutputPieces {
        let window = [before, &part.bytes(), after].concat();
        let lengths = part.iter().map(|piece| piece.bytes.len());
        let mut redacted = OutputPieces::default();
        for (piece, bytes) in part.iter().zip(self.0.redact_parts(&window, before.len(), lengths)) {
            redacted.push(piece.fd, &bytes);
        }
        redacted
    }

    /// Replaces the values in a part of an output. `before` and `after` are the output around the part.
    pub(crate) fn part(&self, before: &[u8], part: &[u8], after: &[u8]) -> Vec<u8> {
        let window = [before, part, after].concat();
        self.0.redact_part(&window, before.len()..before.len() + part.len()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::guest::{STDERR, STDOUT};
    use serde_json::json;

    use super::*;

    fn secrets(values: &[&str]) -> Vec<Secret> {
        values.iter().map(|value| Secret::new((*value).to_owned())).collect()
    }

    #[test]
    fn values_are_bounded() {
        let many = vec!["long-enough"; VALUES_MAX + 1];
        let long = "x".repeat(VALUE_MAX + 1);
        for (values, why) in [
            (&["seven-7"][..], "shorter than 8 bytes"),
            (&["long-enough", ""], "shorter than 8 bytes"),
            (&["a\nb\nc\nd\ne\n"], "shorter than 8 bytes"),
            (&many, "at most 64 values"),
            (&[long.as_str()], "longer than 64 KiB"),
        ] {
            let failure = Redaction::new(&secrets(values)).expect_err(why);
            assert!(failure.message.contains(why), "{}", failure.message);
        }
    }

    #[test]
    fn values_are_replaced_everywhere_in_a_document() {
        let redaction = Redaction::new(&secrets(&["callers-own-value"])).expect("a redaction");
        let mut document =
            json!({"a": ["x callers-own-value y", 1], "b": {"c": "Y2FsbGVycy1vd24tdmFsdWU="}, "d": null});
        redaction.document(&mut document);
        assert_eq!(document, json!({"a": ["x [REDACTED] y", 1], "b": {"c": "[REDACTED]"}, "d": null}));
        assert_eq!(redaction.part(b"the callers-", b"own-value is", b" here"), b" is");
        assert_eq!(redaction.part(b"the ", b"callers-o", b"wn-value"), b"[REDACTED]");
        let mut part = OutputPieces::default();
        for (fd, bytes) in [(STDOUT, "a callers"), (STDERR, "-own-"), (STDOUT, "value b\n"), (STDERR, "c")] {
            part.push(fd, bytes.as_bytes());
        }
        let redacted = redaction.pieces(b"", &part, b"");
        assert_eq!(redacted.only(STDOUT).bytes(), b"a [REDACTED] b\n");
        assert_eq!(redacted.only(STDERR).bytes(), b"c");
    }
}
