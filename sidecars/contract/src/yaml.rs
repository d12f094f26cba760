//! Reads and writes YAML: strict types, bounded work, positions in every error.
//!
//! Manifests, `settings.yml`, `routes.yaml` and proposals are all parsed by [`from_str`]. A misspelt key, a
//! duplicate key or a wrong type is therefore the same error everywhere, and parsing is bounded by the
//! document's size. Errors quote at most the one word they are about, because the text may contain a secret.

mod field;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_yaml::{DuplicateKeyPolicy, Error};

pub use field::{Reserved, Strict, present};
pub use serde_yaml::Spanned;

/// The largest document, in bytes; hand-written ones are smaller.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// Maximum nesting; the deepest valid document (`routes` → `matches` → `paths`) needs seven levels.
const MAX_DEPTH: usize = 32;
/// The most scalars, lists and maps in one document.
const MAX_NODES: usize = 100_000;
/// The most anchors, and the most aliases, in one document.
const MAX_ALIASES: usize = 1_000;
/// The most nodes that aliases may expand to; stops documents that grow exponentially.
const MAX_REPLAYED: usize = 100_000;

/// A position in a text. Line and column count from one.
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
    /// The position of `spanned`, or `None` if it was not parsed from text.
    #[must_use]
    pub fn from_spanned<T>(spanned: &Spanned<T>) -> Option<Self> {
        Self::from_location(spanned.referenced)
    }

    fn from_location(location: serde_yaml::Location) -> Option<Self> {
        (location.line() > 0).then(|| Self { line: location.line(), column: location.column() })
    }
}

/// Wraps a value that was not parsed from text.
#[must_use]
pub fn without_position<T>(value: T) -> Spanned<T> {
    Spanned::new(value, serde_yaml::Location::UNKNOWN, serde_yaml::Location::UNKNOWN)
}

/// An invalid document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", .at.map(|at| format!("line {}, column {}: ", at.line, at.column)).unwrap_or_default())]
pub struct YamlError {
    /// The position, if known.
    pub at: Option<Position>,
    /// The problem and the correction, as a lower-case fragment without the position.
    pub problem: String,
    /// The unknown key and the accepted ones, if an unknown key is the problem.
    pub unknown_key: Option<UnknownKey>,
}

/// An unknown key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The key as written.
    pub key: String,
    /// The accepted keys.
    pub accepted: Vec<&'static str>,
}

/// Parses one document.
///
/// Booleans are `true` and `false` only; a string that looks like a number or boolean needs quotes; duplicate
/// keys, unknown tags and a second document are errors.
///
/// # Errors
/// [`YamlError`], with the position if known.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    if text.len() > MAX_DOCUMENT {
        let problem = format!("the document has {} bytes; at most {MAX_DOCUMENT} are allowed", text.len());
        return Err(YamlError { at: None, problem, unknown_key: None });
    }
    serde_yaml::from_str_with_options(text, options()).map_err(|error| explain(&error))
}

/// Renders `value` as one document. The serializer escapes every string.
///
/// # Errors
/// Errors of the caller's `Serialize` only.
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
            // Two, so that the error can report the second.
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
    YamlError { at: error.location().and_then(Position::from_location), problem, unknown_key }
}

fn problem(error: &Error) -> String {
    match error {
        Error::SerdeMissingField { field, .. } => format!("the key `{field}` is missing"),
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("`{}` is not known here; accepted: {}", inert(variant), list(expected))
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{}` appears twice", inert(key))
        }
        Error::DuplicateMappingKey { key: None, .. } => "a key appears twice".to_owned(),
        Error::InvalidBooleanStrict { .. } => "write `true` or `false`".to_owned(),
        Error::QuotingRequired { .. } => "this needs quotes to be a string".to_owned(),
        Error::NullIntoString { .. } => "a value is missing here; write a string".to_owned(),
        Error::MultipleDocuments { .. } => "a second document begins here; only one is allowed".to_owned(),
        Error::UnsupportedTag { .. } => "tags (`!name`) have no meaning here".to_owned(),
        Error::Unexpected { expected, .. } => format!("expected {}", plain_word(expected)),
        Error::InvalidScalar { ty, .. } => format!("expected {}", plain_word(ty)),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "the document is too deep, too large, or its anchors expand without bound".to_owned()
        }
        other => {
            let without_position = other.render_with_formatter(&WithoutPosition);
            without_position.trim_end().to_owned()
        }
    }
}

/// The library's name of a type, in plain words.
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

/// Formats other errors in the library's wording, without the position, which [`YamlError`] prints.
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

/// Escapes and shortens document text for a message.
fn inert(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
#[path = "yaml/tests.rs"]
mod tests;
