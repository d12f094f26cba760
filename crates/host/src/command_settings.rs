//! Parses the section `commands:` of `settings.yml`, which sets the command policy.

use bottle_command_policy::{Approval, Mode, Rule};
use bottle_text::yaml::Spanned;
use serde::Deserialize;

/// The settings of the command policy, with defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSettings {
    /// `mode`: which commands a program in a bottle may run without a prompt. The default is [`Mode::LetItGo`], because
    /// a bottle is isolated.
    pub mode: Mode,
    /// A warning for the user about the name of the mode.
    pub warning: Option<String>,
    /// `allow`: the permanently approved commands.
    pub allow: Vec<Allowed>,
}

/// An entry of `commands.allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// What the entry approves.
    pub approval: Approval,
    /// The position of the entry, for example `settings.yml:7`.
    pub origin: String,
}

/// Formats an entry of `commands.allow` in YAML's flow style.
#[must_use]
pub fn entry(rule: &str, prefix: &[String]) -> String {
    let words: Vec<String> =
        prefix.iter().map(|word| serde_json::Value::from(word.as_str()).to_string()).collect();
    format!("{{rule: {rule}, prefix: [{}]}}", words.join(", "))
}

impl Default for CommandSettings {
    fn default() -> Self {
        Self { mode: Mode::LetItGo, warning: None, allow: Vec::new() }
    }
}

impl CommandSettings {
    /// Returns the approvals of all entries.
    #[must_use]
    pub fn approvals(&self) -> Vec<Approval> {
        self.allow.iter().map(|allowed| allowed.approval.clone()).collect()
    }
}

/// The section `commands:`, as written in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Written {
    mode: Option<Spanned<String>>,
    allow: Vec<WrittenAllowed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAllowed {
    rule: Spanned<String>,
    prefix: Spanned<Vec<String>>,
}

/// An invalid value: its position, the message, and a hint.
type Invalid = (String, Option<String>);

impl Written {
    /// Applies defaults and checks the values.
    ///
    /// # Errors
    /// Returns the error message, which begins with the position of the value, and a hint.
    pub(super) fn settle(self) -> Result<CommandSettings, Invalid> {
        let default = CommandSettings::default();
        let (mode, warning) = match self.mode {
            None => (default.mode, None),
            Some(name) => {
                let named = Mode::parse(&name.value)
                    .map_err(|why| (format!("{}: `commands.mode`: {why}", name.at), None))?;
                (named.mode, named.warning)
            }
        };
        let allow = self.allow.into_iter().map(WrittenAllowed::settle).collect::<Result<_, Invalid>>()?;
        Ok(CommandSettings { mode, warning, allow })
    }
}

impl WrittenAllowed {
    fn settle(self) -> Result<Allowed, Invalid> {
        let named = &self.rule;
        let problem =
            |problem: String, hint: &str| (format!("{}: {problem}", named.at), Some(hint.to_owned()));
        let rule = Rule::named(&named.value).ok_or_else(|| {
            problem(
                format!("`commands.allow`: {:?} is not a rule", named.value),
                "`bottle rules list` shows the rules",
            )
        })?;
        if rule.is_floor() {
            return Err(problem(
                format!("`commands.allow`: {rule} belongs to the floor, which no entry can turn off"),
                "remove the entry",
            ));
        }
        if self.prefix.value.is_empty() {
            return Err((
                format!("{}: `commands.allow`: `prefix` is empty", self.prefix.at),
                Some("list the first words of the command, for example [cargo, test]".to_owned()),
            ));
        }
        let origin = format!("settings.yml:{}", named.at.line);
        Ok(Allowed { approval: Approval { rule, prefix: self.prefix.value }, origin })
    }
}
