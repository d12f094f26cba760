//! Regular expressions that match a whole text.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// The longest expression, in bytes.
const MAX_TEXT: usize = 1024;
/// Memory limit of one compiled expression, in bytes: an agent may propose expressions, and a proxy loads
/// many.
const MAX_COMPILED: usize = 256 * 1024;
/// Maximum nesting of groups.
const MAX_NESTING: u32 = 32;

/// A compiled expression. Two are equal if their texts are.
///
/// Classes are ASCII (`\w`, `\d`), because paths are percent-encoded and header values are bytes. Matching
/// takes time linear in the text for every expression.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

/// An invalid expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadPattern(String);

impl Pattern {
    /// Compiles `text`.
    ///
    /// # Errors
    /// [`BadPattern`] if it is not a regular expression, too long or too large.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        if text.len() > MAX_TEXT {
            return Err(BadPattern(format!("the expression is longer than {MAX_TEXT} bytes")));
        }
        // Compile it alone first: `a)|(b` is invalid, but `(?:a)|(b)` is valid.
        compile(text)?;
        // A trailing comment under the `x` flag would swallow the anchor; then this compilation fails.
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

/// The library prints the expression with a marker below it; the last line has the error.
fn one_line(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => format!("the expression needs more than {MAX_COMPILED} bytes"),
        other => {
            let text = other.to_string();
            let last = text.lines().next_back().unwrap_or_default();
            format!("this is not a regular expression: {}", last.trim_start_matches("error: "))
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
