//! Decoder errors: serde's, with path, position and type.

use serde::de::{self, Unexpected};

use crate::manifest::error::{Fault, listed};
use crate::manifest::keys;
use crate::manifest::located::{Position, START};
use crate::manifest::yaml::{Node, Value};
use crate::suggest::suggest;

/// An error that collects position and path on the way from its value to the root.
#[derive(Debug)]
pub(in crate::manifest) struct DecodeError {
    at: Option<Position>,
    /// Segments from the value to the root.
    path: Vec<String>,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A sentence fragment that follows the path.
    Predicate {
        text: String,
        hint: Option<String>,
    },
    /// A fragment from a type's own validation.
    Advice(String),
    UnknownKey {
        key: String,
        known: &'static [&'static str],
    },
    MissingKey(&'static str),
}

impl DecodeError {
    pub(super) fn predicate(text: String, hint: Option<String>) -> Self {
        Self { at: None, path: Vec::new(), what: What::Predicate { text, hint } }
    }

    pub(super) fn wrong_type(node: &Node, wanted: &str) -> Self {
        let found = node.value.type_name();
        let hint = match &node.value {
            Value::Null => Some("remove the key, or give it a value"),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) if wanted == "a string" => {
                Some("put the value in quotes")
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

    /// Sets the position unless an inner value has set it.
    pub(super) fn placed(mut self, at: Position) -> Self {
        self.at.get_or_insert(at);
        self
    }

    pub(super) fn within(mut self, segment: String) -> Self {
        self.path.push(segment);
        self
    }

    fn path(&self) -> String {
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            if !path.is_empty() && !segment.starts_with('[') {
                path.push('.');
            }
            path.push_str(segment);
        }
        path
    }

    pub(super) fn into_fault(self) -> Fault {
        let at = self.at.unwrap_or(START);
        let path = self.path();
        let subject = if path.is_empty() { "the frontmatter".to_owned() } else { format!("`{path}`") };
        match self.what {
            What::Predicate { text, hint } => Fault { at, message: format!("{subject} {text}"), hint },
            What::Advice(text) => Fault::new(at, format!("{subject}: {text}")),
            What::MissingKey(key) => Fault::new(at, format!("{subject} lacks the key `{key}`")),
            What::UnknownKey { key, known } => unknown_key(at, &path, &key, known),
        }
    }
}

/// Whether a text would have the wanted type without its quotes.
fn is_quoted(text: &str, wanted: &str) -> bool {
    match wanted {
        "true or false" => matches!(text, "true" | "false"),
        "a number" | "a whole number" => text.parse::<f64>().is_ok(),
        _ => false,
    }
}

/// The error for an unknown key, with the nearest and all accepted keys as hint.
fn unknown_key(at: Position, path: &str, key: &str, known: &'static [&'static str]) -> Fault {
    let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
    let fault = Fault::new(at, format!("unknown key `{key}`{place}"));
    if let Some(hint) = keys::misplaced_key(path, key, known) {
        return fault.hint(hint);
    }
    let accepted = keys::offered_keys(known);
    let accepted_list = listed(accepted.iter().copied());
    match suggest(key, accepted.iter().copied()) {
        Some(meant) => fault.hint(format!("did you mean `{meant}`? accepted here: {accepted_list}")),
        None => fault.hint(format!("accepted here: {accepted_list}")),
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            What::Predicate { text, .. } => write!(f, "`{}` {text}", self.path()),
            What::Advice(text) => write!(f, "`{}`: {text}", self.path()),
            What::UnknownKey { key, .. } => write!(f, "unknown key `{key}`"),
            What::MissingKey(key) => write!(f, "`{}` lacks the key `{key}`", self.path()),
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { at: None, path: Vec::new(), what: What::Advice(message.to_string()) }
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
        Self { at: None, path: Vec::new(), what: What::UnknownKey { key: key.to_owned(), known } }
    }

    fn missing_field(key: &'static str) -> Self {
        Self { at: None, path: Vec::new(), what: What::MissingKey(key) }
    }
}

/// The type that was found, without its value.
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
