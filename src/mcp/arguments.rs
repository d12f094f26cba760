//! The arguments of a tool. Each argument has one description, from which its JSON schema and its check are derived.

use bottle_protocol::session::guest::Size;
use rmcp::model::JsonObject;
use serde_json::{Map, Value, json};

/// The maximum length of a text in bytes. A longer text does not fit on a command line.
const TEXT_MAX: usize = 100 << 10;

/// The maximum length of a name in bytes.
const NAME_MAX: usize = 256;

/// The maximum number of names in a list.
const NAMES_MAX: usize = 64;

/// The maximum length of the content of a file in bytes.
const CONTENT_MAX: usize = 1 << 20;

/// The maximum number of elements of a list.
const LIST_MAX: usize = 1024;

/// The maximum of a position in an output. JSON numbers above it are not exact in all clients (RFC 8259, section 6).
pub(super) const POSITION_MAX: u64 = (1 << 53) - 1;

/// An argument of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
    /// The description that the model reads.
    pub(super) about: &'static str,
}

/// The type of an argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// A name, which begins with a letter or a digit.
    Name,
    /// A name, or a list of names.
    Names,
    /// The content of a file, or the input of a program.
    Content,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A shell script, or the words of a command.
    Command,
    /// A number in this range.
    Number(u64, u64),
    /// The size of a terminal, as `120x30`.
    Size,
    /// True or false.
    Flag,
    /// A list of texts.
    Texts,
    /// An object whose values are texts.
    Variables,
}

/// An optional argument.
pub(super) const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, required: false, about }
}

/// A required argument.
pub(super) const fn required(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, required: true, about }
}

impl Kind {
    /// Returns the JSON schema of a value. The schema omits the limits that a model hardly ever reaches, because every
    /// conversation carries the schemas. [`Self::check`] still enforces these limits and states them in its error.
    fn schema(self) -> Value {
        match self {
            Self::Text | Self::Name | Self::Content | Self::Size => json!({"type": "string"}),
            Self::Names => json!({"type": ["string", "array"], "items": {"type": "string"}}),
            Self::OneOf(words) => json!({"type": "string", "enum": words}),
            Self::Command => json!({"type": ["string", "array"], "items": {"type": "string"}}),
            Self::Number(from, POSITION_MAX) => json!({"type": "integer", "minimum": from}),
            Self::Number(from, to) => json!({"type": "integer", "minimum": from, "maximum": to}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Self::Variables => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        }
    }

    /// Checks a value. The error states the valid values.
    fn check(self, value: &Value) -> Result<(), String> {
        let is_text = |value: &Value, max: usize| {
            value.as_str().is_some_and(|text| text.len() <= max && !text.contains('\0'))
        };
        // The first character must be a letter or a digit, because a command would parse a name that begins with `-` as
        // a flag.
        let is_name = |value: &Value| {
            is_text(value, NAME_MAX)
                && value
                    .as_str()
                    .is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphanumeric()))
        };
        let are_names = || {
            value
                .as_array()
                .is_some_and(|all| (1..=NAMES_MAX).contains(&all.len()) && all.iter().all(is_name))
        };
        let are_texts = |value: &Value, from: usize| {
            value.as_array().is_some_and(|all| {
                (from..=LIST_MAX).contains(&all.len()) && all.iter().all(|value| is_text(value, TEXT_MAX))
            })
        };
        let (is_right, wanted) = match self {
            Self::Text => {
                (is_text(value, TEXT_MAX), format!("a text of at most {TEXT_MAX} bytes without NUL"))
            }
            Self::Name => (is_name(value), "a name that begins with a letter or a digit".to_owned()),
            Self::Names => (
                is_name(value) || are_names(),
                format!(
                    "a name that begins with a letter or a digit, or a list of at most {NAMES_MAX} such names"
                ),
            ),
            Self::Content => (
                value.as_str().is_some_and(|text| text.len() <= CONTENT_MAX),
                format!("a text of at most {CONTENT_MAX} bytes"),
            ),
            Self::OneOf(words) => (
                value.as_str().is_some_and(|word| words.contains(&word)),
                format!("one of {}", words.join(", ")),
            ),
            Self::Command => {
                let script =
                    is_text(value, TEXT_MAX) && value.as_str().is_some_and(|text| !text.trim().is_empty());
                (
                    script || are_texts(value, 1),
                    "a shell script, or a list with the words of a command".to_owned(),
                )
            }
            Self::Number(from, to) => (
                value.as_u64().is_some_and(|number| (from..=to).contains(&number)),
                format!("a whole number from {from} to {to}"),
            ),
            Self::Size => (
                value.as_str().is_some_and(|text| text.parse::<Size>().is_ok()),
                "columns and rows, as 120x30".to_owned(),
            ),
            Self::Flag => (value.is_boolean(), "true or false".to_owned()),
            Self::Texts => (are_texts(value, 0), format!("a list of at most {LIST_MAX} texts")),
            Self::Variables => {
                let good = |(name, value): (&String, &Value)| {
                    !name.is_empty() && !name.contains(['=', '\0']) && is_text(value, TEXT_MAX)
                };
                let all = value.as_object();
                (
                    all.is_some_and(|all| all.len() <= LIST_MAX && all.iter().all(good)),
                    "an object of texts, with names without `=`".to_owned(),
                )
            }
        };
        if is_right { Ok(()) } else { Err(wanted) }
    }
}

/// Returns the JSON schema of a tool's arguments.
pub(super) fn schema(fields: &[Field]) -> JsonObject {
    let property = |field: &Field| {
        let mut schema = field.kind.schema();
        schema["description"] = field.about.into();
        (field.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let required: Vec<&str> = fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    schema.as_object().cloned().unwrap_or_default()
}

/// Checked arguments.
#[derive(Debug, Clone, Default)]
pub(super) struct Arguments(JsonObject);

impl Arguments {
    /// Checks the arguments of a call. A missing argument and `null` are equivalent.
    ///
    /// # Errors
    /// Returns a sentence for the model with the name of the argument and its valid values.
    pub(super) fn check(fields: &[Field], given: Option<JsonObject>) -> Result<Self, String> {
        let mut given = given.unwrap_or_default();
        given.retain(|_, value| !value.is_null());
        for (name, value) in &given {
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                let known: Vec<&str> = fields.iter().map(|field| field.name).collect();
                let shown: String = name.chars().take(80).collect();
                return Err(format!(
                    "there is no argument {shown:?}; the arguments are {}",
                    known.join(", ")
                ));
            };
            field.kind.check(value).map_err(|wanted| format!("`{name}` must be {wanted}"))?;
        }
        match fields.iter().find(|field| field.required && !given.contains_key(field.name)) {
            Some(missing) => Err(format!("`{}` is missing: {}", missing.name, missing.about)),
            None => Ok(Self(given)),
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    /// Returns the text of a required argument.
    pub(super) fn required(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }

    pub(super) fn size(&self, name: &str) -> Option<Size> {
        self.text(name)?.parse().ok()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.flag_or(name, false)
    }

    pub(super) fn flag_or(&self, name: &str, default: bool) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let all = self.0.get(name).and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Returns the names of an argument that is a name or a list of names.
    pub(super) fn names(&self, name: &str) -> Vec<String> {
        self.text(name).map_or_else(|| self.texts(name), |only| vec![only.to_owned()])
    }

    pub(super) fn variables(&self, name: &str) -> Vec<(String, String)> {
        let all = self.0.get(name).and_then(Value::as_object);
        all.into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect()
    }

    /// Returns the words of a command. If the argument is a script, the command runs the script with the bottle's
    /// shell.
    pub(super) fn command(&self, name: &str) -> Option<Vec<String>> {
        match self.0.get(name)? {
            Value::String(script) => Some(["sh", "-c", script].map(str::to_owned).to_vec()),
            _ => Some(self.texts(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[Field] = &[
        required("bottle", Kind::Name, "the bottle"),
        optional("command", Kind::Command, "the command"),
        optional("timeout", Kind::Number(1, 600), "seconds"),
        optional("merge", Kind::Flag, "one stream"),
        optional("env", Kind::Variables, "variables"),
        optional("include", Kind::Texts, "patterns"),
        optional("processes", Kind::Names, "names"),
        optional("signal", Kind::OneOf(&["INT", "TERM"]), "a signal"),
        optional("size", Kind::Size, "a size"),
    ];

    fn check(given: Value) -> Result<Arguments, String> {
        Arguments::check(FIELDS, given.as_object().cloned())
    }

    #[test]
    fn a_mistake_is_a_sentence_that_names_the_argument() {
        for (given, says) in [
            (json!({}), "`bottle` is missing: the bottle"),
            (json!({"bottle": null}), "`bottle` is missing: the bottle"),
            (json!({"bottle": 1}), "`bottle` must be a name"),
            (json!({"bottle": "a\u{0}"}), "`bottle` must be a name"),
            (
                json!({"bottle": "a", "bottel": "b"}),
                "there is no argument \"bottel\"; the arguments are bottle, command",
            ),
            (json!({"bottle": "--json"}), "`bottle` must be a name"),
            (json!({"bottle": "a", "include": ["\u{0}"]}), "`include` must be a list"),
            (json!({"bottle": "a", "command": ""}), "`command` must be a shell script"),
            (json!({"bottle": "a", "command": []}), "`command` must be a shell script"),
            (json!({"bottle": "a", "command": ["a", 1]}), "`command` must be a shell script"),
            (json!({"bottle": "a", "timeout": 0}), "`timeout` must be a whole number from 1 to 600"),
            (json!({"bottle": "a", "timeout": 1.5}), "`timeout` must be a whole number from 1 to 600"),
            (json!({"bottle": "a", "timeout": "5"}), "`timeout` must be a whole number from 1 to 600"),
            (json!({"bottle": "a", "merge": "yes"}), "`merge` must be true or false"),
            (json!({"bottle": "a", "env": {"A=B": "c"}}), "`env` must be an object of texts"),
            (json!({"bottle": "a", "env": {"A": 1}}), "`env` must be an object of texts"),
            (json!({"bottle": "a", "include": "x"}), "`include` must be a list"),
            (json!({"bottle": "a", "processes": []}), "`processes` must be a name"),
            (json!({"bottle": "a", "processes": ["a", "--json"]}), "`processes` must be a name"),
            (json!({"bottle": "a", "processes": vec!["a"; 65]}), "`processes` must be a name"),
            (json!({"bottle": "a", "size": "80"}), "`size` must be columns and rows, as 120x30"),
            (json!({"bottle": "a", "signal": "KILL"}), "`signal` must be one of INT, TERM"),
        ] {
            let error = check(given.clone()).expect_err("a mistake");
            assert!(error.starts_with(says), "{given}: {error}");
        }
    }

    #[test]
    fn a_script_is_run_by_a_shell_and_words_are_run_as_they_are() {
        let script = check(json!({"bottle": "a", "command": "ls | wc"})).expect("arguments");
        assert_eq!(script.command("command").expect("words"), ["sh", "-c", "ls | wc"]);
        let words = check(json!({"bottle": "a", "command": ["ls", "-l"]})).expect("arguments");
        assert_eq!(words.command("command").expect("words"), ["ls", "-l"]);
        assert_eq!(words.command("other"), None);
    }

    #[test]
    fn a_name_is_a_list_of_one_name() {
        for (given, expected) in [(json!("a"), &["a"][..]), (json!(["a", "p2"]), &["a", "p2"])] {
            let arguments = check(json!({"bottle": "b", "processes": given})).expect("arguments");
            assert_eq!(arguments.names("processes"), expected);
        }
    }

    #[test]
    fn the_schema_lists_every_argument() {
        let schema = Value::Object(schema(FIELDS));
        assert_eq!(schema["required"], json!(["bottle"]));
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"].as_object().expect("properties").len(), FIELDS.len());
        assert_eq!(schema["properties"]["timeout"]["maximum"], 600);
    }
}
