//! A value of a bottle's `env`: a literal, a variable of the host, or a question.

use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::secret_ref::is_variable;

/// Where an environment variable's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// As written.
    Literal(String),
    /// `$NAME` or `${NAME}`: the host's variable, read at launch; missing is an error then. A known
    /// secret to the scanner.
    Variable(String),
    /// `?text`: asked on the terminal without echo, showing the text. A known secret to the scanner.
    Prompt(String),
}

impl EnvValue {
    /// Whether the value is fetched at launch and must be treated as a secret.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        !matches!(self, Self::Literal(_))
    }
}

/// An environment value that has no meaning. It never quotes the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvValue {
    /// `$` and something that is not one whole name. Passed on as it is, a typo would hand the agent a
    /// literal dollar sign where a value was meant.
    #[error(
        "begins with `$` but is not one host variable, `$NAME` or `${{NAME}}`, with nothing before or after"
    )]
    NoVariable,
    /// `?` and nothing.
    #[error("is a question without a text; write it after the `?`")]
    NoQuestion,
    /// No environment can hold it.
    #[error("holds a NUL character, which no environment can carry")]
    Nul,
    /// The question would move the terminal's cursor.
    #[error("asks a question with control characters in it")]
    ControlInQuestion,
}

impl FromStr for EnvValue {
    type Err = BadEnvValue;

    fn from_str(text: &str) -> Result<Self, BadEnvValue> {
        if text.contains('\0') {
            return Err(BadEnvValue::Nul);
        }
        if let Some(rest) = text.strip_prefix('$') {
            let name = rest.strip_prefix('{').map_or(Some(rest), |braced| braced.strip_suffix('}'));
            return match name.filter(|name| is_variable(name)) {
                Some(name) => Ok(Self::Variable(name.to_owned())),
                None => Err(BadEnvValue::NoVariable),
            };
        }
        match text.strip_prefix('?').map(str::trim) {
            Some("") => Err(BadEnvValue::NoQuestion),
            Some(question) if question.chars().any(char::is_control) => Err(BadEnvValue::ControlInQuestion),
            Some(question) => Ok(Self::Prompt(question.to_owned())),
            None => Ok(Self::Literal(text.to_owned())),
        }
    }
}

/// As it would be written in a manifest.
impl std::fmt::Display for EnvValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Literal(text) => f.write_str(text),
            Self::Variable(name) => write!(f, "${name}"),
            Self::Prompt(question) => write!(f, "?{question}"),
        }
    }
}

impl Serialize for EnvValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_kinds() {
        for (text, wanted) in [
            ("", Ok(EnvValue::Literal(String::new()))),
            ("a $b ?c", Ok(EnvValue::Literal("a $b ?c".into()))),
            ("$HOME", Ok(EnvValue::Variable("HOME".into()))),
            ("${HOME}", Ok(EnvValue::Variable("HOME".into()))),
            ("? Token for the tracker", Ok(EnvValue::Prompt("Token for the tracker".into()))),
            ("$HOME/x", Err(BadEnvValue::NoVariable)),
            ("${HOME", Err(BadEnvValue::NoVariable)),
            ("$HOME}", Err(BadEnvValue::NoVariable)),
            ("$", Err(BadEnvValue::NoVariable)),
            ("$$", Err(BadEnvValue::NoVariable)),
            ("?", Err(BadEnvValue::NoQuestion)),
            ("?\u{1b}[2J", Err(BadEnvValue::ControlInQuestion)),
            ("a\0b", Err(BadEnvValue::Nul)),
        ] {
            assert_eq!(text.parse(), wanted, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_displayed_parses_to_the_same(text in "[$?]?[{]?[A-Za-z_ ]{0,8}[}]?") {
            if let Ok(value) = text.parse::<EnvValue>() {
                prop_assert_eq!(value.to_string().parse(), Ok(value));
            }
        }
    }
}
