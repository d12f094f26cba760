//! The bottle manifest to which routes are saved.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use bottle_host::Host;
use bottle_instance::{State, Store};
use bottle_manifest::append::{AppendError, append, apply, from_routes};
use bottle_manifest::resolve::ResolveError;
use bottle_manifest::write_manifest::{path_of, write_manifest, write_new_manifest};
use bottle_manifest::{Kind as ManifestKind, Manifests, Place, Source};
use bottle_policy::names::{Name, Slug};
use bottle_policy::proposal::Proposal as Routes;
use bottle_policy::route::edit::RouteEdit;
use bottle_policy::route::{RouteTable, render_list};

use super::failure::Failure;
use super::line_diff::{Changed, changed};
use super::manifests::manifests;

/// Routes to add to one of the user's bottle manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    name: Name,
    /// The path of the manifest file.
    pub path: PathBuf,
    /// The routes for the user to add by hand.
    paste: String,
    /// The manifest's text before the change. `None` for a new manifest.
    before: Option<String>,
    /// The manifest's new text, or why the manifest cannot be extended.
    after: Result<String, AppendError>,
}

/// Why routes were not added to a manifest, or approvals were not added to the settings.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The manifest cannot be extended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The manifest or the settings file cannot be read.
    #[error("{}", .0.message)]
    Unreadable(Failure),
    /// The manifest or the settings file was changed after it was shown to the user.
    #[error("it changed meanwhile")]
    Changed,
    /// The layout of the settings file does not allow lines to be inserted.
    #[error("its `commands.allow` is not written one entry per line")]
    Settings,
    /// Another program created the new manifest first.
    #[error("it was created meanwhile")]
    Created,
    /// The manifest or the settings file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Addition {
    /// Prepares the change of the bottle manifest `wanted`. If `wanted` is `None`, prepares the change of the manifest
    /// from which the bottle `slug` was started. Writes no file.
    ///
    /// # Errors
    /// Returns an error if it is unclear which manifest to extend, or if the manifest does not belong to the
    /// user.
    pub fn new(host: &Host, slug: &Slug, wanted: Option<&Name>, routes: Routes) -> Result<Self, Failure> {
        let list = routes.to_routes();
        let new = || Ok(from_routes(&list));
        let extended = |name: &Name, source: &Source, text: &str| append(name, source, text, &list);
        Self::prepared(host, slug, wanted, routes.render(), new, extended)
    }

    /// Prepares, for a bottle manifest, the change that the user makes to the routes of the running bottle. The
    /// manifest is chosen as in [`Addition::new`]. Writes no file.
    ///
    /// # Errors
    /// Returns an error if it is unclear which manifest to change, or if the manifest does not belong to the
    /// user.
    pub fn of_edit(
        host: &Host,
        slug: &Slug,
        wanted: Option<&Name>,
        edit: &RouteEdit,
    ) -> Result<Self, Failure> {
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
    ) -> Result<Self, Failure> {
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

    /// Returns the change of the manifest line by line, or why the manifest cannot be extended.
    pub fn diff(&self) -> Result<Vec<Changed>, &AppendError> {
        Ok(changed(self.before.as_deref().unwrap_or_default(), self.after.as_ref()?))
    }

    /// Writes the new text of the manifest.
    ///
    /// # Errors
    /// Returns an error if the manifest changed after it was shown to the user, or if it cannot be written.
    pub fn write(&self, host: &Host) -> Result<(), SaveError> {
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
    pub fn to_paste(&self) -> String {
        self.paste.clone()
    }
}

/// Returns the bottle manifests of the bottle `slug` that are files of the user.
pub fn files(host: &Host, slug: &Slug) -> Vec<Name> {
    let record = match Store::of(host).state(slug) {
        Some(State::Alive(record) | State::Dead(record) | State::Kept(record)) => record,
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

/// Returns the only name in `names`, or an error if `names` contains no name or several.
fn only(names: Vec<Name>, slug: &Slug) -> Result<Name, Failure> {
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
    Err(Failure::usage(message).about("--scope").hint(hint))
}

/// Returns the text of the user's bottle manifest with this name. `None` if the manifest does not exist yet.
fn text_of(all: &Manifests, name: &Name) -> Result<Option<(Source, String)>, Failure> {
    let found = all.find(ManifestKind::Bottle, name).map_err(ResolveError::from)?;
    let Some(entry) = found else { return Ok(None) };
    if entry.source.place != Place::Home {
        return Err(Failure::usage(format!("cannot write the bottle `{name}`: it is not yours"))
            .about("--scope")
            .hint("`--scope save:NAME` with a new name creates a bottle with them, for `bottle start --bottle NAME`"));
    }
    let text = all.text(ManifestKind::Bottle, name, &entry.source).map_err(ResolveError::from)?;
    Ok(Some((entry.source, text)))
}
