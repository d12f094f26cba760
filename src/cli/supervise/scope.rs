//! The scope of an approval, and the bottle file that a saved approval extends.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use bottle_contract::names::{BadName, Name, Slug};
use bottle_contract::proposal::{self, Proposal as Routes};
use bottle_contract::queue::{Proposal, Scope};

use super::route_change::{Changed, changed};
use crate::cli::choice::manifests;
use crate::cli::error::CliError;
use crate::host::Host;
use crate::instance::{State, Store};
use crate::manifest::append::{AppendError, append, from_routes};
use crate::manifest::write_manifest::{path_of, write_manifest, write_new_manifest};
use crate::manifest::{Kind as ManifestKind, Manifests, Place};
use crate::resolve::ResolveError;

/// The requested scope.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum RequestedScope {
    /// Holds for the next request that the routes allow.
    Once,
    /// Holds while the bottle runs.
    #[default]
    Run,
    /// Also adds the routes to this bottle's file; without a name, to the file that the bottle was started from.
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
    /// Completes the scope with everything needed to apply it, and changes nothing. `text` is what would apply.
    ///
    /// # Errors
    /// When the file is ambiguous or is not the user's.
    pub(super) fn resolve(
        &self,
        host: &Host,
        proposal: &Proposal,
        text: &str,
    ) -> Result<GrantScope, CliError> {
        match self {
            Self::Once => Ok(GrantScope::Once),
            Self::Run => Ok(GrantScope::Run),
            Self::Saved(name) => {
                let routes = proposal::parse(text)
                    .map_err(|error| CliError::state(error.to_string()).about(&proposal.id))?;
                let addition = Addition::new(host, &proposal.bottle_slug, name.as_ref(), routes)?;
                Ok(GrantScope::Saved(Box::new(addition)))
            }
        }
    }
}

/// A complete scope.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum GrantScope {
    /// The next request only.
    Once,
    /// While the bottle runs.
    #[default]
    Run,
    /// Saved, with the file's change that the user saw.
    Saved(Box<Addition>),
}

impl GrantScope {
    /// The scope in the keeper's protocol.
    pub(super) fn scope(&self) -> Scope {
        match self {
            Self::Once => Scope::Once,
            Self::Run => Scope::Run,
            Self::Saved(_) => Scope::Saved,
        }
    }
}

/// Routes to add to a bottle file of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Addition {
    name: Name,
    pub(in crate::cli) path: PathBuf,
    routes: Routes,
    /// The current text; none for a new file.
    before: Option<String>,
    /// The new text, or why the file cannot be extended.
    after: Result<String, AppendError>,
}

/// Why an addition was not written.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum SaveError {
    /// The file cannot be extended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The file cannot be read.
    #[error("{}", .0.message)]
    Unreadable(CliError),
    /// The file is no longer as it was shown.
    #[error("it changed meanwhile")]
    Changed,
    /// The new file exists by now.
    #[error("it was created meanwhile")]
    Created,
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Addition {
    /// Prepares the change of this bottle's file; without a name, of the one that `slug` was started from. Writes
    /// nothing.
    ///
    /// # Errors
    /// When the file is ambiguous or is not the user's.
    pub(in crate::cli) fn new(
        host: &Host,
        slug: &Slug,
        wanted: Option<&Name>,
        routes: Routes,
    ) -> Result<Self, CliError> {
        let all = manifests(host);
        let name = match wanted {
            Some(name) => name.clone(),
            None => only(files(host, slug), slug)?,
        };
        let path = path_of(&host.home, ManifestKind::Bottle, &name);
        let before = text_of(&all, &name)?;
        let after = match &before {
            None => Ok(from_routes(&routes)),
            Some((source, text)) => append(&name, source, text, &routes),
        };
        Ok(Self { name, path, routes, before: before.map(|(_, text)| text), after })
    }

    /// Diffs the file, or says why it cannot be extended.
    pub(super) fn diff(&self) -> Result<Vec<Changed>, &AppendError> {
        Ok(changed(self.before.as_deref().unwrap_or_default(), self.after.as_ref()?))
    }

    /// Writes the file as it was shown.
    ///
    /// # Errors
    /// When the file changed meanwhile or cannot be written.
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

    /// Renders the routes, for the user to paste.
    pub(in crate::cli) fn to_paste(&self) -> String {
        self.routes.render()
    }
}

/// Returns the bottles that `slug` was started from and whose files are the user's.
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

/// Returns the only candidate.
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

/// Returns the text of the user's bottle of this name; none for a new one.
fn text_of(all: &Manifests, name: &Name) -> Result<Option<(crate::manifest::Source, String)>, CliError> {
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
