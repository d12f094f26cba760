//! Errors in YAML documents, with path, position and hint.

use std::fmt;

use serde::de::{self, Unexpected};

use super::{Node, Position, Value};
use crate::suggest::suggest;

/// The error for an invalid document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// The position, if known.
    pub at: Option<Position>,
    /// The keys and indexes on the path from the wrong value up to the root.
    path: Vec<String>,
    /// The problem at this position.
    pub problem: Problem,
}

/// The problem with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The document is not valid YAML, or exceeds a limit.
    Syntax(String),
    /// A value has the wrong type.
    Type {
        /// A fragment that follows the value's path, for example `must be a list`.
        text: String,
        /// A hint that names the next step for the user.
        hint: Option<String>,
    },
    /// A value has the right type, but the type's own check rejected it with this message.
    Value(String),
    /// A key is unknown.
    UnknownKey {
        /// The key as written.
        key: String,
        /// The accepted keys.
        accepted: &'static [&'static str],
    },
    /// A required key is absent.
    MissingKey(&'static str),
}

impl YamlError {
    fn new(problem: Problem) -> Self {
        Self { at: None, path: Vec::new(), problem }
    }

    pub(super) fn syntax(at: Option<Position>, text: String) -> Self {
        Self { at, ..Self::new(Problem::Syntax(text)) }
    }

    pub(super) fn predicate(text: String, hint: Option<String>) -> Self {
        Self::new(Problem::Type { text, hint })
    }

    pub(super) fn wrong_type(node: &Node, wanted: &str) -> Self {
        let found = node.value.type_name();
        let hint = match &node.value {
            Value::Null => Some("remove the key, or give it a value"),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) if wanted == "a string" => {
                Some("put the value in quotes")
            }
            Value::Text(_) if wanted == "a list" => {
                Some("write a list, also of one entry: `[one]` or `[one, two]`")
            }
            Value::Text(text) if is_quoted(text, wanted) => Some("write the value without quotes"),
            _ => None,
        };
        let text = match node.value {
            Value::Null => format!("has no value; {wanted} is needed"),
            _ => format!("must be {wanted}, not {found}"),
        };
        Self::predicate(text, hint.map(str::to_owned)).placed(node.at)
    }

    /// Sets the position, unless the error of an inner value has already set it.
    pub(super) fn placed(mut self, at: Position) -> Self {
        self.at.get_or_insert(at);
        self
    }

    pub(super) fn within(mut self, segment: String) -> Self {
        self.path.push(segment);
        self
    }

    /// Returns the path of the value, for example `egress.routes[2].host`. The path of the complete document is empty.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            if !path.is_empty() && !segment.starts_with('[') {
                path.push('.');
            }
            path.push_str(segment);
        }
        path
    }

    /// Returns the problem and its subject, without the position. `root` is the name of the complete
    /// document.
    #[must_use]
    pub fn message(&self, root: &str) -> String {
        let path = self.path();
        let subject = if path.is_empty() { root.to_owned() } else { format!("`{path}`") };
        match &self.problem {
            Problem::Syntax(text) => format!("cannot parse the YAML: {text}"),
            Problem::Type { text, .. } => format!("{subject} {text}"),
            Problem::Value(text) => format!("{subject}: {text}"),
            Problem::MissingKey(key) => format!("{subject} lacks the key `{key}`"),
            Problem::UnknownKey { key, .. } if path.is_empty() => format!("unknown key `{}`", inert(key)),
            Problem::UnknownKey { key, .. } => format!("unknown key `{}` in `{path}`", inert(key)),
        }
    }

    /// Returns a hint that names the next step. The hint for an unknown key names the nearest accepted key and all
    /// accepted keys.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match &self.problem {
            Problem::Syntax(text) => syntax_hint(text).map(str::to_owned),
            Problem::Type { hint, .. } => hint.clone(),
            Problem::UnknownKey { key, accepted } => Some(accepted_keys(key, accepted)),
            _ => None,
        }
    }
}

/// Formats the error with its position and its hint, for programs that show one line.
impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Position { line, column }) = self.at {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.message("the document"))?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for YamlError {}

/// Returns a hint for an error message of the YAML parser.
fn syntax_hint(text: &str) -> Option<&'static str> {
    let of = |words: &[&str]| words.iter().any(|words| text.contains(words));
    if of(&["tab"]) {
        Some("replace the tab with spaces: YAML indents with spaces only")
    } else if of(&["mapping values are not allowed"]) {
        // An unquoted sentence with a colon causes this error, often in a subagent's description.
        Some("put text that contains `: ` in quotes, or indent the line as far as the keys of the same map")
    } else if of(&["block mapping", "block sequence", "block collection", "indentation"]) {
        Some("indent the line exactly as far as the other keys or items that it belongs to")
    } else if of(&["unclosed bracket"]) {
        Some("close the bracket, or put the text in quotes if it begins with one")
    } else {
        None
    }
}

/// Returns the hint for an unknown key: the nearest accepted key, and all accepted keys.
#[must_use]
pub fn accepted_keys(key: &str, accepted: &[&str]) -> String {
    let list = listed(accepted.iter().copied());
    match suggest(key, accepted.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`? accepted here: {list}"),
        None => format!("accepted here: {list}"),
    }
}

/// Formats a list as `a`, `b` and `c`, each in backquotes. An empty list becomes “none”.
pub fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Escapes and shortens document text for a message.
pub(super) fn inert(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

/// Whether `text` would have the wanted type if it had no quotes.
fn is_quoted(text: &str, wanted: &str) -> bool {
    match wanted {
        "true or false" => matches!(text, "true" | "false"),
        "a number" | "a whole number" => text.parse::<f64>().is_ok(),
        _ => false,
    }
}

impl de::Error for YamlError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Problem::Value(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::predicate(format!("must be {wanted}, not {}", type_of(found)), None)
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        match found {
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => {
                Self::predicate("is out of range".to_owned(), None)
            }
            _ => Self::predicate(format!("must be {wanted}"), None),
        }
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        let hint = suggest(word, known.iter().copied()).map(|meant| format!("did you mean `{meant}`?"));
        let known = listed(known.iter().copied()).replace(" and ", " or ");
        Self::predicate(format!("must be {known}"), hint)
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(Problem::UnknownKey { key: key.to_owned(), accepted: known })
    }

    fn duplicate_field(key: &'static str) -> Self {
        Self::new(Problem::Value(format!("the key `{key}` appears twice")))
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Problem::MissingKey(key))
    }
}

/// Returns the name of the type of a value, but not the value itself.
fn type_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
        Unexpected::Char(_) | Unexpected::Str(_) => "a string",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a map",
        Unexpected::Unit | Unexpected::Option => "empty",
        _ => "that",
    }
}
