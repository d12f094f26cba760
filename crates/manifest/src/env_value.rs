//! Parses the values of a bottle's `env`. A value is a literal, a reference to a host variable, or a prompt.

use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::secret_ref::is_variable;

/// The source from which an environment variable gets its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// A literal value.
    Literal(String),
    /// `$NAME` or `${NAME}`: the value of a host variable, read at launch. If the variable is not set at launch, the
    /// launch fails. The scanner treats the value as a known secret.
    Variable(String),
    /// `?text`: the user is asked for the value on the terminal with this text, without echo. The scanner
    /// treats the value as a known secret.
    Prompt(String),
}

impl EnvValue {
    /// Whether the value is read at launch and is a secret.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        !matches!(self, Self::Literal(_))
    }
}

/// An invalid environment value. The message never quotes the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvValue {
    /// The value begins with `$` but is not exactly one variable name. If this value were a literal, a typo would cause
    /// a value that contains a dollar sign.
    #[error(
        "begins with `$` but is not one host variable, `$NAME` or `${{NAME}}`, with nothing before or after"
    )]
    NoVariable,
    /// The value is `?` without the text of a prompt.
    #[error("is a prompt without a text; write it after the `?`")]
    NoQuestion,
    /// The value contains a NUL character.
    #[error("contains a NUL character, which is invalid in an environment variable")]
    Nul,
    /// The text of a prompt contains control characters, which could change the terminal.
    #[error("is a prompt with control characters in its text")]
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

/// Formats the value as it is written in a manifest.
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
    fn parses_literals_variables_and_prompts() {
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
        fn display_round_trips(text in "[$?]?[{]?[A-Za-z_ ]{0,8}[}]?") {
            if let Ok(value) = text.parse::<EnvValue>() {
                prop_assert_eq!(value.to_string().parse(), Ok(value));
            }
        }
    }
}
