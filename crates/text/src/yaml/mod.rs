//! Reads and writes YAML with strict types, bounded work, and a position in every error.
//!
//! [`from_str`] reads manifests, `settings.yml`, routes and proposals in two steps: [`parse`] creates a tree of values
//! with their positions, and [`decode()`] converts the tree to a type. A misspelt key, a duplicate key or a wrong type
//! is therefore the same error everywhere, and the size of the document bounds the work. An error quotes at most one
//! word of the document, because the document may contain a secret.

mod access;
mod decode;
mod error;
mod lines;
mod node;
mod spanned;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_yaml::{DuplicateKeyPolicy, Error};

pub use decode::decode;
pub use error::{Problem, YamlError, accepted_keys, listed};
pub use lines::{Lines, insert_items, without_list};
pub use node::{Node, Value};
pub use spanned::{Position, Spanned};

/// The largest accepted document, in bytes. Documents that users write are smaller.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// The deepest accepted nesting. The deepest valid document (`routes` → `matches` → `paths`) needs seven
/// levels.
const MAX_DEPTH: usize = 32;
/// The maximum number of scalars, lists and maps in one document.
const MAX_NODES: usize = 100_000;
/// The maximum number of anchors, and of aliases, in one document.
const MAX_ALIASES: usize = 1_000;
/// The maximum number of nodes to which aliases may expand. This limit rejects documents that grow exponentially.
const MAX_REPLAYED: usize = 100_000;

/// Reads one document as a `T`.
///
/// Booleans are only `true` and `false`. A string that looks like a number or boolean needs quotes. A key may
/// be absent, but a key without a value is an error. Duplicate keys, unknown keys, unknown tags and a second
/// document are errors.
///
/// # Errors
/// Returns a [`YamlError`] with path and position.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    decode(&parse(text)?)
}

/// Parses one document. An empty document is an empty map.
///
/// # Errors
/// Returns a [`YamlError`] with the position, if the document is not valid YAML or exceeds a limit.
pub fn parse(text: &str) -> Result<Node, YamlError> {
    if text.len() > MAX_DOCUMENT {
        let problem = format!("the document has {} bytes; at most {MAX_DOCUMENT} are allowed", text.len());
        return Err(YamlError::syntax(None, problem));
    }
    let root: Node = serde_yaml::from_str_with_options(text, options()).map_err(|error| explain(&error))?;
    Ok(match root.value {
        Value::Null => Node { at: Position::START, value: Value::Map(Vec::new()) },
        _ => root,
    })
}

/// Renders `value` as one document. The serializer escapes every string.
///
/// # Errors
/// Fails only if the caller's `Serialize` fails.
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
            // The limit is two, so that the error can name the position of the second document.
            max_documents: 2,
        },
    }
}

fn explain(error: &Error) -> YamlError {
    let error = match error.without_snippet() {
        Error::AliasError { error, .. } => error.without_snippet(),
        plain => plain,
    };
    YamlError::syntax(error.location().and_then(Position::new), problem(error))
}

fn problem(error: &Error) -> String {
    match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{}` appears twice", error::inert(key))
        }
        Error::DuplicateMappingKey { key: None, .. } => "a key appears twice".to_owned(),
        Error::MultipleDocuments { .. } => "a second document begins here; only one is allowed".to_owned(),
        Error::UnsupportedTag { .. } => "tags (`!name`) have no meaning here".to_owned(),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "the document is too deep, too large, or its anchors expand without bound".to_owned()
        }
        other => other.render_with_formatter(&WithoutPosition).trim_end().to_owned(),
    }
}

/// Formats an error in the words of the YAML library, but without the position. [`YamlError`] prints the position.
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
