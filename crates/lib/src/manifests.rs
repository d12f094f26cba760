//! Finds the manifests of the user, and describes why a manifest cannot be used.

use std::fmt::Write as _;

use bottle_host::Host;
use bottle_manifest::resolve::ResolveError;
use bottle_manifest::{Homes, ManifestError, Manifests, Place};

use super::failure::{Failure, Kind};
use super::notice::{Notice, Notify};
use super::report::NamedManifest;
use super::text::one_line;

/// Returns the manifests that this user can use in the working directory.
pub fn manifests(host: &Host) -> Manifests {
    Manifests::new(Homes::from(host))
}

/// Lists manifests by file name without reading them, so that a broken manifest is listed too.
pub fn listed(host: &Host, kind: bottle_manifest::Kind, notify: Notify<'_>) -> Vec<NamedManifest> {
    let listing = manifests(host).list(kind);
    listing.warnings.iter().for_each(|warning| notify(Notice::Warning(warning.to_string())));
    let named = listing.entries.iter().map(|entry| NamedManifest {
        name: entry.name.to_string(),
        from: entry.source.place.word(),
        file: entry.source.to_string(),
        replaces: entry.replaces.map(Place::word),
    });
    named.collect()
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        let (kind, subject) = match &error {
            ResolveError::Manifest(manifest) => (Kind::Manifest, manifest.file.clone()),
            ResolveError::UnknownAgent { name, .. } | ResolveError::UnknownBottle { name, .. } => {
                (Kind::Usage, name.to_string())
            }
            ResolveError::NoBottle { .. } => (Kind::Usage, "--bottle".to_owned()),
        };
        let (message, hint) = match &error {
            ResolveError::Manifest(manifest) if !manifest.more().is_empty() => (every(manifest), None),
            ResolveError::Manifest(manifest) => (with_excerpt(manifest), manifest.hint.clone()),
            other => (other.message(), other.hint()),
        };
        Self::new(kind, message).about(subject).hint_if(hint)
    }
}

/// Formats an error of a manifest with the line of the manifest that contains the error.
fn with_excerpt(error: &ManifestError) -> String {
    let line = error.position.zip(error.excerpt());
    let line = line.map(|(at, line)| format!("\n  {} | {}", at.line, one_line(line)));
    error.without_hint() + &line.unwrap_or_default()
}

/// Formats all errors of a manifest, each with its line and its hint.
fn every(first: &ManifestError) -> String {
    let mut text = format!("{} has {} errors", first.file, first.more().len() + 1);
    for error in std::iter::once(first).chain(first.more()) {
        let _ = write!(text, "\n\n{}", with_excerpt(error));
        if let Some(hint) = &error.hint {
            let _ = write!(text, "\n  {hint}");
        }
    }
    text
}
