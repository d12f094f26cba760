//! The scope of an approval, and the bottle manifest that an approval with the scope `save` extends.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bottle_command_policy::{Approval, Rule};
use bottle_contract::names::{BadName, Name, Slug};
use bottle_contract::proposal::{self, Proposal as Routes};
use bottle_contract::queue::{Proposal, Scope, Tool};
use bottle_contract::route::edit::RouteEdit;
use bottle_contract::route::{RouteTable, render_list};

use super::route_change::{Changed, changed};
use crate::cli::choice::manifests;
use crate::cli::error::CliError;
use crate::host::command_settings::entry;
use crate::host::settings::with_approvals;
use crate::host::{Host, files};
use crate::instance::{State, Store};
use crate::manifest::append::{AppendError, append, apply, from_routes};
use crate::manifest::write_manifest::{path_of, write_manifest, write_new_manifest};
use crate::manifest::{Kind as ManifestKind, Manifests, Place, Source};
use crate::resolve::ResolveError;

/// The scope that the user requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum RequestedScope {
    /// The approval is valid for the next request that the routes allow.
    Once,
    /// The approval is valid while the bottle runs.
    #[default]
    Run,
    /// The routes are also added to this bottle manifest. Without a name, they are added to the manifest that
    /// the bottle was started from.
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

impl RequestedScope {
    /// Prepares the scope, without changing anything: finds the manifest to extend and computes its new text.
    /// `text` contains the routes to approve.
    ///
    /// # Errors
    /// Returns an error if it is unclear which manifest to extend, or if the manifest does not belong to the
    /// user.
    pub(super) fn resolve(
        &self,
        host: &Host,
        proposal: &Proposal,
        text: &str,
    ) -> Result<GrantScope, CliError> {
        match self {
            Self::Once => Ok(GrantScope::Once),
            Self::Run => Ok(GrantScope::Run),
            Self::Saved(None) if proposal.tool == Tool::CommandAllow => {
                Ok(GrantScope::Remembered(Box::new(SettingsAddition::new(host, proposal)?)))
            }
            Self::Saved(Some(_)) if proposal.tool == Tool::CommandAllow => {
                let message = "the approval of a command is saved to settings.yml, and to no bottle file";
                Err(CliError::usage(message).about("--scope").hint("write `--scope save`"))
            }
            Self::Saved(name) => {
                let routes = proposal::parse(text)
                    .map_err(|error| CliError::state(error.to_string()).about(&proposal.id))?;
                let addition = Addition::new(host, &proposal.bottle_slug, name.as_ref(), routes)?;
                Ok(GrantScope::Saved(Box::new(addition)))
            }
        }
    }
}

/// A prepared scope.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum GrantScope {
    /// The approval is valid for the next request only.
    Once,
    /// The approval is valid while the bottle runs.
    #[default]
    Run,
    /// The routes are also saved. Contains the change of the manifest that the user saw.
    Saved(Box<Addition>),
    /// The approval of a command is also saved. Contains the change of the settings that the user saw.
    Remembered(Box<SettingsAddition>),
}

impl GrantScope {
    /// Returns the scope as the keeper's protocol expresses it.
    pub(super) fn scope(&self) -> Scope {
        match self {
            Self::Once => Scope::Once,
            Self::Run => Scope::Run,
            Self::Saved(_) | Self::Remembered(_) => Scope::Saved,
        }
    }
}

/// Routes to add to one of the user's bottle manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Addition {
    name: Name,
    pub(in crate::cli) path: PathBuf,
    /// The routes for the user to add by hand.
    paste: String,
    /// The manifest's current text; none for a new manifest.
    before: Option<String>,
    /// The manifest's new text, or why it cannot be extended.
    after: Result<String, AppendError>,
}

/// Why the routes were not added to the manifest.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum SaveError {
    /// The manifest cannot be extended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The manifest cannot be read.
    #[error("{}", .0.message)]
    Unreadable(CliError),
    /// The manifest was changed after it was shown to the user.
    #[error("it changed meanwhile")]
    Changed,
    /// The layout of the settings does not allow inserted lines.
    #[error("its `commands.allow` is not written one entry per line")]
    Settings,
    /// Another program created the new manifest first.
    #[error("it was created meanwhile")]
    Created,
    /// The manifest cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Approvals of commands to add to the user's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct SettingsAddition {
    pub(in crate::cli) path: PathBuf,
    /// The entries of `commands.allow`.
    pub(in crate::cli) entries: Vec<String>,
    /// The current text of the settings.
    before: String,
    /// The new text, if entries can be added.
    after: Option<String>,
}

impl SettingsAddition {
    /// Prepares the change. Writes no file.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be read, or the proposal contains no command.
    fn new(host: &Host, proposal: &Proposal) -> Result<Self, CliError> {
        let path = host.home.join("settings.yml");
        let before = text_of_settings(&path)?;
        let approvals = approvals_of(proposal)
            .ok_or_else(|| CliError::state("the proposal contains no command").about(&proposal.id))?;
        let entries = approvals.iter().map(|approval| entry(approval.rule.id(), &approval.prefix)).collect();
        let after = with_approvals(&before, &approvals);
        Ok(Self { path, entries, before, after })
    }

    /// Writes the new text as the user saw it.
    ///
    /// # Errors
    /// Returns an error if the settings changed after the entries were shown, or cannot be written.
    pub(super) fn write(&self) -> Result<(), SaveError> {
        let text = self.after.as_ref().ok_or(SaveError::Settings)?;
        if text_of_settings(&self.path).map_err(SaveError::Unreadable)? != self.before {
            return Err(SaveError::Changed);
        }
        Ok(files::replace(&self.path, |file| file.write_all(text.as_bytes()))?)
    }
}

/// The text of the settings; empty if there are none.
fn text_of_settings(path: &Path) -> Result<String, CliError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.map_err(|error| CliError::cannot(format_args!("read {}", path.display()), error)),
    }
}

/// What the report of a proposal of [`Tool::CommandAllow`] asks for.
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

impl Addition {
    /// Prepares the change of this bottle manifest; without a name, of the manifest that `slug` was started
    /// from. Writes no file.
    ///
    /// # Errors
    /// Returns an error if it is unclear which manifest to extend, or if the manifest does not belong to the
    /// user.
    pub(in crate::cli) fn new(
        host: &Host,
        slug: &Slug,
        wanted: Option<&Name>,
        routes: Routes,
    ) -> Result<Self, CliError> {
        let list = routes.to_routes();
        let new = || Ok(from_routes(&list));
        let extended = |name: &Name, source: &Source, text: &str| append(name, source, text, &list);
        Self::prepared(host, slug, wanted, routes.render(), new, extended)
    }

    /// Prepares the same change of this bottle manifest as the user makes to the running bottle; otherwise like
    /// [`Addition::new`].
    ///
    /// # Errors
    /// Returns an error if it is unclear which manifest to change, or if the manifest does not belong to the
    /// user.
    pub(in crate::cli) fn of_edit(
        host: &Host,
        slug: &Slug,
        wanted: Option<&Name>,
        edit: &RouteEdit,
    ) -> Result<Self, CliError> {
        let alone = edit.apply(&RouteTable::default()).map_err(AppendError::from);
        let paste = alone.as_ref().map_or_else(|_| String::new(), |table| render_list(table.routes()));
        let new = || match alone {
            Ok(table) if table.routes().is_empty() => Err(AppendError::Unchanged),
            Ok(table) => Ok(from_routes(table.routes())),
            Err(error) => Err(error),
        };
        let changed = |name: &Name, source: &Source, text: &str| apply(name, source, text, edit);
        Self::prepared(host, slug, wanted, paste, new, changed)
    }

    fn prepared(
        host: &Host,
        slug: &Slug,
        wanted: Option<&Name>,
        paste: String,
        new: impl FnOnce() -> Result<String, AppendError>,
        changed: impl FnOnce(&Name, &Source, &str) -> Result<String, AppendError>,
    ) -> Result<Self, CliError> {
        let all = manifests(host);
        let name = match wanted {
            Some(name) => name.clone(),
            None => only(files(host, slug), slug)?,
        };
        let path = path_of(&host.home, ManifestKind::Bottle, &name);
        let before = text_of(&all, &name)?;
        let after = match &before {
            None => new(),
            Some((source, text)) => changed(&name, source, text),
        };
        Ok(Self { name, path, paste, before: before.map(|(_, text)| text), after })
    }

    /// Returns the change of the manifest line by line, or why it cannot be extended.
    pub(super) fn diff(&self) -> Result<Vec<Changed>, &AppendError> {
        Ok(changed(self.before.as_deref().unwrap_or_default(), self.after.as_ref()?))
    }

    /// Writes the manifest's new text as the user saw it.
    ///
    /// # Errors
    /// Returns an error if the manifest changed after it was shown, or cannot be written.
    pub(in crate::cli) fn write(&self, host: &Host) -> Result<(), SaveError> {
        let text = self.after.as_ref().map_err(Clone::clone)?;
        let now = text_of(&manifests(host), &self.name).map_err(SaveError::Unreadable)?;
        if now.map(|(_, text)| text) != self.before {
            return Err(SaveError::Changed);
        }
        if self.before.is_some() {
            return Ok(write_manifest(&host.home, ManifestKind::Bottle, &self.name, text)?);
        }
        let is_new = write_new_manifest(&host.home, ManifestKind::Bottle, &self.name, text)?;
        if is_new { Ok(()) } else { Err(SaveError::Created) }
    }

    /// Renders the routes for the user to add by hand.
    pub(in crate::cli) fn to_paste(&self) -> String {
        self.paste.clone()
    }
}

/// Returns those bottle manifests of `slug` that are files of the user.
pub(super) fn files(host: &Host, slug: &Slug) -> Vec<Name> {
    let record = match Store::of(host).state(slug) {
        Some(State::Alive(record) | State::Dead(record) | State::Preserved(record)) => record,
        _ => return Vec::new(),
    };
    let all = manifests(host);
    let is_own = |name: &Name| {
        let found = all.find(ManifestKind::Bottle, name).ok().flatten();
        found.is_some_and(|entry| entry.source.place == Place::Home)
    };
    let mut seen = BTreeSet::new();
    record.bottles.into_iter().filter(|name| is_own(name) && seen.insert(name.clone())).collect()
}

/// Returns the only candidate, or an error if there is none or more than one.
fn only(names: Vec<Name>, slug: &Slug) -> Result<Name, CliError> {
    let (count, hint) = match &names[..] {
        [name] => return Ok(name.clone()),
        [] => {
            let hint = "`--scope save:NAME` creates a bottle with them, for `bottle start --bottle NAME`";
            ("none".to_owned(), hint.to_owned())
        }
        names => {
            let words: Vec<String> = names.iter().map(|name| format!("`save:{name}`")).collect();
            (names.len().to_string(), format!("name one: {}", words.join(" or ")))
        }
    };
    let message = format!("cannot choose a bottle file: {slug} was started from {count} of yours");
    Err(CliError::usage(message).about("--scope").hint(hint))
}

/// Returns the text of the user's bottle manifest with this name; none for a new one.
fn text_of(all: &Manifests, name: &Name) -> Result<Option<(Source, String)>, CliError> {
    let found = all.find(ManifestKind::Bottle, name).map_err(ResolveError::from)?;
    let Some(entry) = found else { return Ok(None) };
    if entry.source.place != Place::Home {
        return Err(CliError::usage(format!("cannot write the bottle `{name}`: it is not yours"))
            .about("--scope")
            .hint("`--scope save:NAME` with a new name creates a bottle with them, for `bottle start --bottle NAME`"));
    }
    let text = all.text(ManifestKind::Bottle, name, &entry.source).map_err(ResolveError::from)?;
    Ok(Some((entry.source, text)))
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
            assert_eq!(text.parse::<RequestedScope>().map_err(drop), wanted, "{text}");
        }
    }
}
