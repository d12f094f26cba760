//! The one way YAML is read and written here: strict types, bounded work, positions in every error.
//!
//! Manifests, `settings.yml`, `routes.yaml` and proposals all come through [`from_str`], so that a key
//! misspelt, written twice or of the wrong type is the same error everywhere, and no document costs
//! more than its size. Errors carry no piece of the document beyond the one word they are about: the
//! text may hold a secret.

mod field;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_yaml::{DuplicateKeyPolicy, Error};

pub use field::{Reserved, Strict, present};
pub use serde_yaml::Spanned;

/// The largest document, in bytes; nobody writes a larger one by hand.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// The deepest nesting; the deepest honest document (`routes` → `matches` → `paths`) needs seven.
const MAX_DEPTH: usize = 32;
/// Scalars, lists and maps in one document.
const MAX_NODES: usize = 100_000;
/// Anchors in one document, and uses of them.
const MAX_ALIASES: usize = 1_000;
/// Nodes that the uses of anchors may add up to, which stops a document that doubles itself.
const MAX_REPLAYED: usize = 100_000;

/// Where something stands: both count from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl Position {
    /// Where `spanned` was written, unless it did not come from a text.
    #[must_use]
    pub fn of<T>(spanned: &Spanned<T>) -> Option<Self> {
        Self::at(spanned.referenced)
    }

    fn at(location: serde_yaml::Location) -> Option<Self> {
        (location.line() > 0).then(|| Self { line: location.line(), column: location.column() })
    }
}

/// A value that stands in no text.
#[must_use]
pub fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(value, serde_yaml::Location::UNKNOWN, serde_yaml::Location::UNKNOWN)
}

/// A document that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", .at.map(|at| format!("line {}, column {}: ", at.line, at.column)).unwrap_or_default())]
pub struct YamlError {
    /// Where.
    pub at: Option<Position>,
    /// What is wrong and what to write instead, a lower-case fragment without the position.
    pub problem: String,
    /// The key and its accepted neighbours, when an unknown key is the problem.
    pub unknown_key: Option<UnknownKey>,
}

/// A key that has no meaning where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// As written.
    pub key: String,
    /// What is accepted there.
    pub accepted: Vec<&'static str>,
}

/// Reads one document.
///
/// Booleans are `true` and `false` only; a string that looks like a number or a boolean needs quotes;
/// duplicate keys, unknown tags and a second document are errors.
///
/// # Errors
/// [`YamlError`], with the position where one is known.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    if text.len() > MAX_DOCUMENT {
        let problem = format!("the document has {} bytes; {MAX_DOCUMENT} are allowed", text.len());
        return Err(YamlError { at: None, problem, unknown_key: None });
    }
    serde_yaml::from_str_with_options(text, options()).map_err(|error| explain(&error))
}

/// Writes `value` as one document. Every string is escaped by the serializer.
///
/// # Errors
/// Only what a `Serialize` of the caller's own reports.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, serde_yaml::SerializeError> {
    let options = serde_yaml::ser_options! { prefer_block_scalars: false };
    serde_yaml::to_string_with_options(value, options)
}

fn options() -> serde_yaml::Options {
    serde_yaml::options! {
        strict_booleans: true,
        no_schema: true,
        with_snippet: false,
        emit_comments: false,
        reject_unsupported_tags: true,
        duplicate_keys: DuplicateKeyPolicy::Error,
        alias_limits: serde_yaml::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_replay_stack_depth: 8,
        },
        budget: serde_yaml::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
            max_anchors: MAX_ALIASES,
            max_aliases: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_total_scalar_bytes: 4 * MAX_DOCUMENT,
            // The second is what the error is about.
            max_documents: 2,
        },
    }
}

fn explain(error: &Error) -> YamlError {
    let error = match error.without_snippet() {
        Error::AliasError { error, .. } => error.without_snippet(),
        plain => plain,
    };
    let (problem, unknown_key) = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let problem = format!("unknown key `{}`; accepted: {}", inert(field), list(expected));
            (problem, Some(UnknownKey { key: field.clone(), accepted: expected.clone() }))
        }
        other => (problem(other), None),
    };
    YamlError { at: error.location().and_then(Position::at), problem, unknown_key }
}

fn problem(error: &Error) -> String {
    match error {
        Error::SerdeMissingField { field, .. } => format!("the key `{field}` is missing"),
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("`{}` is not known here; accepted: {}", inert(variant), list(expected))
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{}` stands twice", inert(key))
        }
        Error::DuplicateMappingKey { key: None, .. } => "a key stands twice".to_owned(),
        Error::InvalidBooleanStrict { .. } => "write `true` or `false`".to_owned(),
        Error::QuotingRequired { .. } => "this needs quotes to be a string".to_owned(),
        Error::NullIntoString { .. } => "a value is missing here; write a string".to_owned(),
        Error::MultipleDocuments { .. } => "a second document begins here; one is allowed".to_owned(),
        Error::UnsupportedTag { .. } => "tags (`!name`) have no meaning here".to_owned(),
        Error::Unexpected { expected, .. } => format!("expected {}", plain_word(expected)),
        Error::InvalidScalar { ty, .. } => format!("expected {}", plain_word(ty)),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "the document is too deep, too large, or its anchors expand without bound".to_owned()
        }
        other => {
            let unplaced = other.render_with_formatter(&WithoutPosition);
            unplaced.trim_end().to_owned()
        }
    }
}

/// The library's name for a kind of value, in a reader's words.
fn plain_word(kind: &str) -> &str {
    match kind {
        "sequence start" => "a list (`- item` or `[item]`)",
        "mapping start" => "a map (`key: value`)",
        "string scalar" => "a string",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "usize" => "a whole number, not negative",
        "i32" | "i64" => "a whole number",
        other => other,
    }
}

/// The library's own words, for the errors that need no others; positions are ours to print.
struct WithoutPosition;

impl serde_yaml::MessageFormatter for WithoutPosition {
    fn localizer(&self) -> &dyn serde_yaml::Localizer {
        self
    }

    fn format_message<'a>(&self, error: &'a Error) -> std::borrow::Cow<'a, str> {
        serde_yaml::UserMessageFormatter.format_message(error)
    }
}

impl serde_yaml::Localizer for WithoutPosition {
    fn attach_location<'a>(
        &self,
        base: std::borrow::Cow<'a, str>,
        _location: serde_yaml::Location,
    ) -> std::borrow::Cow<'a, str> {
        base
    }
}

fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Text from a document on its way into a message: escaped, and short.
fn inert(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
#[path = "yaml/tests.rs"]
mod tests;
