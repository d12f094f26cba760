//! Regular expressions that must match a complete text.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

/// The longest accepted expression, in bytes. A longer expression is rejected.
const MAX_TEXT: usize = 1024;
/// Memory limit of one compiled expression, in bytes. An expression that needs more is rejected, because an agent may
/// propose expressions and the proxy compiles many of them.
const MAX_COMPILED: usize = 256 * 1024;
/// The deepest accepted nesting of groups.
const MAX_NESTING: u32 = 32;

/// A compiled expression. Two expressions are equal if their texts are equal.
///
/// Character classes are ASCII (`\w`, `\d`), because paths are percent-encoded and header values are bytes.
/// The time for a match is linear in the length of the text, whatever the expression is.
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
    /// [`BadPattern`] if `text` is not a regular expression, is too long, or needs too much memory when
    /// compiled.
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        if text.len() > MAX_TEXT {
            return Err(BadPattern(format!("the expression is longer than {MAX_TEXT} bytes")));
        }
        // The text is first compiled without the group, because `a)|(b` is invalid although `(?:a)|(b)` is valid.
        compile(text)?;
        // If `text` sets the flag `x` and ends in a comment, the comment hides the closing `)` and the
        // anchor. Compiling the expression then fails.
        let regex = compile(&format!("\\A(?:{text})\\z"))?;
        Ok(Self { text: text.to_owned(), regex })
    }

    /// Returns the expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the expression matches the complete `text`.
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

/// Extracts the error from the message of the regex library. The message prints the expression with a marker below it,
/// and the error on the last line.
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

/// Marks the text as a regular expression, so that it cannot be mistaken for a plain path or value.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "regex {:?}", self.text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text)
    }
}
