//! The scope of an approval, and the changes of files that an approval with the scope `save` makes.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bottle_command_policy::{Approval, Rule};
use bottle_host::command_settings::entry;
use bottle_host::settings::with_approvals;
use bottle_host::{Host, files};
use bottle_policy::names::{BadName, Name};
use bottle_policy::proposal;
use bottle_protocol::queue::{Proposal, Scope, Tool};

use crate::failure::Failure;
use crate::saved_routes::{Addition, SaveError};

/// The scope that the user requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RequestedScope {
    /// The approval is valid for the next request that the routes allow.
    Once,
    /// The approval is valid while the bottle runs.
    #[default]
    Run,
    /// The routes are also added to this bottle manifest. Without a name, the routes are added to the manifest from
    /// which the bottle was started.
    Saved(Option<Name>),
}

impl FromStr for RequestedScope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("save:")) {
            ("once", _) => Ok(Self::Once),
            ("run", _) => Ok(Self::Run),
            ("save", _) => Ok(Self::Saved(None)),
            (_, Some(name)) => {
                name.parse().map(|name| Self::Saved(Some(name))).map_err(|error: BadName| error.to_string())
            }
            _ => Err("write `once`, `run`, `save` or `save:BOTTLE`".to_owned()),
        }
    }
}

impl fmt::Display for RequestedScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once => f.write_str("once"),
            Self::Run => f.write_str("run"),
            Self::Saved(None) => f.write_str("save"),
            Self::Saved(Some(name)) => write!(f, "save:{name}"),
        }
    }
}

impl RequestedScope {
    /// Prepares the scope, without changing anything: finds the manifest to extend and computes its new text.
    /// `text` contains the routes to approve.
    ///
    /// # Errors
    /// Returns an error if it is unclear which manifest to extend, or if the manifest does not belong to the
    /// user.
    pub fn resolve(&self, host: &Host, proposal: &Proposal, text: &str) -> Result<GrantScope, Failure> {
        match self {
            Self::Once => Ok(GrantScope::Once),
            Self::Run => Ok(GrantScope::Run),
            Self::Saved(None) if proposal.tool == Tool::CommandAllow => {
                Ok(GrantScope::Remembered(Box::new(SettingsAddition::new(host, proposal)?)))
            }
            Self::Saved(Some(_)) if proposal.tool == Tool::CommandAllow => {
                let message = "the approval of a command is saved to settings.yml, and to no bottle file";
                Err(Failure::usage(message).about("--scope").hint("write `--scope save`"))
            }
            Self::Saved(name) => {
                let routes = proposal::parse(text)
                    .map_err(|error| Failure::state(error.to_string()).about(&proposal.id))?;
                let addition = Addition::new(host, &proposal.bottle_slug, name.as_ref(), routes)?;
                Ok(GrantScope::Saved(Box::new(addition)))
            }
        }
    }
}

/// The scope of an approval, with the prepared change of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum GrantScope {
    /// The approval is valid for the next request only.
    Once,
    /// The approval is valid while the bottle runs.
    #[default]
    Run,
    /// The routes are also saved to a manifest. Contains the change of the manifest that the user saw.
    Saved(Box<Addition>),
    /// The approval of a command is also saved to the settings. Contains the change of the settings that the user saw.
    Remembered(Box<SettingsAddition>),
}

impl GrantScope {
    /// Converts the scope to the type that the keeper's protocol uses.
    pub fn scope(&self) -> Scope {
        match self {
            Self::Once => Scope::Once,
            Self::Run => Scope::Run,
            Self::Saved(_) | Self::Remembered(_) => Scope::Saved,
        }
    }
}

/// Approvals of commands to add to the user's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsAddition {
    /// The path of the settings file.
    pub path: PathBuf,
    /// The entries to add to `commands.allow`.
    pub entries: Vec<String>,
    /// The text of the settings before the change.
    before: String,
    /// The new text of the settings. `None` if the entries cannot be added.
    after: Option<String>,
}

impl SettingsAddition {
    /// Prepares the change of the settings. Writes no file.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be read, or the proposal contains no command.
    fn new(host: &Host, proposal: &Proposal) -> Result<Self, Failure> {
        let path = host.home.join("settings.yml");
        let before = text_of_settings(&path)?;
        let approvals = approvals_of(proposal)
            .ok_or_else(|| Failure::state("the proposal contains no command").about(&proposal.id))?;
        let entries = approvals.iter().map(|approval| entry(approval.rule.id(), &approval.prefix)).collect();
        let after = with_approvals(&before, &approvals);
        Ok(Self { path, entries, before, after })
    }

    /// Writes the new text of the settings.
    ///
    /// # Errors
    /// Returns an error if the settings changed after the entries were shown, or cannot be written.
    pub fn write(&self) -> Result<(), SaveError> {
        let text = self.after.as_ref().ok_or(SaveError::Settings)?;
        if text_of_settings(&self.path).map_err(SaveError::Unreadable)? != self.before {
            return Err(SaveError::Changed);
        }
        Ok(files::replace(&self.path, |file| file.write_all(text.as_bytes()))?)
    }
}

/// Returns the text of the settings. Empty if the file does not exist.
fn text_of_settings(path: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.map_err(|error| Failure::cannot(format_args!("read {}", path.display()), error)),
    }
}

/// Returns the approvals for which the report of a [`Tool::CommandAllow`] proposal asks.
fn approvals_of(proposal: &Proposal) -> Option<Vec<Approval>> {
    let report: serde_json::Value = serde_json::from_str(&proposal.proposed_file).ok()?;
    let approval = |finding: &serde_json::Value| {
        let rule = Rule::named(finding["rule"].as_str()?).filter(|rule| !rule.is_floor())?;
        let words = finding["command"].as_array()?.iter().map(|word| word.as_str().map(str::to_owned));
        let prefix = words.collect::<Option<Vec<String>>>().filter(|prefix| !prefix.is_empty())?;
        Some(Approval { rule, prefix })
    };
    report["findings"].as_array()?.iter().map(approval).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_scopes() {
        let name: Name = "dev".parse().expect("name");
        for (text, wanted) in [
            ("once", Ok(RequestedScope::Once)),
            ("run", Ok(RequestedScope::Run)),
            ("save", Ok(RequestedScope::Saved(None))),
            ("save:dev", Ok(RequestedScope::Saved(Some(name)))),
            ("saved", Err(())),
            ("save:", Err(())),
            ("save:../x", Err(())),
            ("", Err(())),
        ] {
            let parsed = text.parse::<RequestedScope>();
            assert!(parsed.as_ref().map_or(true, |scope| scope.to_string() == text), "{text}");
            assert_eq!(parsed.map_err(drop), wanted, "{text}");
        }
    }
}
