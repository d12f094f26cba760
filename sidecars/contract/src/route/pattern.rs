//! A regular expression that must match the whole text.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// The longest expression, in bytes.
const MAX_TEXT: usize = 1024;
/// Memory one compiled expression may take: an agent may propose one, and a proxy holds many.
const MAX_COMPILED: usize = 256 * 1024;
/// How deep groups may nest.
const MAX_NESTING: u32 = 32;

/// A compiled expression; equal to another when their texts are.
///
/// Classes are ASCII (`\w`, `\d`): paths are percent-encoded and header values are bytes. Matching takes
/// time linear in the text, whatever the expression.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

/// An expression that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadPattern(String);

impl Pattern {
    /// Compiles `text`.
    ///
    /// # Errors
    /// [`BadPattern`] when it is no regular expression, too long or too large.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        if text.len() > MAX_TEXT {
            return Err(BadPattern(format!("the expression is longer than {MAX_TEXT} bytes")));
        }
        // By itself first: `a)|(b` is no expression, though `(?:a)|(b)` would be one.
        compile(text)?;
        // A comment of the `x` flag that runs to the end would swallow the anchor; then this fails.
        let regex = compile(&format!("\\A(?:{text})\\z"))?;
        Ok(Self { text: text.to_owned(), regex })
    }

    /// The expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `text` matches.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        self.regex.is_match(text)
    }
}

fn compile(text: &str) -> Result<Regex, BadPattern> {
    RegexBuilder::new(text)
        .unicode(false)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .nest_limit(MAX_NESTING)
        .build()
        .map_err(|error| BadPattern(one_line(&error)))
}

/// The library draws the expression with a marker under it; the last line says what is wrong.
fn one_line(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => format!("the expression needs more than {MAX_COMPILED} bytes"),
        other => {
            let text = other.to_string();
            let last = text.lines().next_back().unwrap_or_default();
            format!("this is no regular expression: {}", last.trim_start_matches("error: "))
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text)
    }
}
