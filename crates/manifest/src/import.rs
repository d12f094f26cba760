//! Imports manifests from a home directory of bot-bottle, the predecessor of `bottle`, and notes which settings have
//! another meaning in `bottle`.
//!
//! The manifests of bot-bottle are Markdown with YAML frontmatter, as in `bottle`. Imported manifests are
//! copied unchanged, and the notes describe the settings whose meaning differs.

use std::path::Path;

use bottle_policy::names::Name;
use bottle_text::yaml;
use serde_json::Value;

use super::error::ManifestError;
use super::frontmatter;
use super::locate::{Homes, Manifests};
use super::source::{Kind, Place};

/// A manifest of the bot-bottle home.
#[derive(Debug)]
pub struct Imported {
    /// The kind of the manifest: agent or bottle.
    pub kind: Kind,
    /// The name of the manifest.
    pub name: Name,
    /// The text of the file, unchanged, or the reason why the file cannot be read.
    pub text: Result<String, ManifestError>,
    /// Notes on settings whose meaning differs, one sentence each.
    pub notes: Vec<&'static str>,
}

/// Reads every manifest of the bot-bottle home, agents first. Also returns warnings about skipped files, one
/// sentence each.
#[must_use]
pub fn read(directory: &Path, homes: &Homes) -> (Vec<Imported>, Vec<String>) {
    // Agents in projects are found in each project, so they need no import. The queue, state and audit log
    // are not imported.
    let manifests = Manifests::new(Homes {
        bottle_home: directory.to_owned(),
        cwd: directory.to_owned(),
        ..homes.clone()
    });
    let mut found = Vec::new();
    let mut warnings = Vec::new();
    for kind in [Kind::Agent, Kind::Bottle] {
        let listing = manifests.list(kind);
        warnings.extend(listing.warnings);
        for entry in listing.entries.into_iter().filter(|entry| entry.source.place == Place::Home) {
            let text = manifests.text(kind, &entry.name, &entry.source);
            let notes = text.as_deref().map(|text| notes(kind, text)).unwrap_or_default();
            found.push(Imported { kind, name: entry.name, text, notes });
        }
    }
    (found, warnings)
}

/// Returns the notes on one manifest.
fn notes(kind: Kind, text: &str) -> Vec<&'static str> {
    let Some(front) = frontmatter::split(text).ok().and_then(|split| split.yaml) else { return Vec::new() };
    // If the YAML is invalid there are no notes, and parsing the manifest later reports the error.
    let Ok(front) = yaml::from_str::<Value>(front) else { return Vec::new() };
    if kind == Kind::Agent {
        return Vec::new();
    }
    let routes = front.pointer("/egress/routes").and_then(Value::as_array);
    let some_route = |is: &dyn Fn(&Value) -> bool| routes.is_some_and(|routes| routes.iter().any(is));
    let repos =
        front.pointer("/git-gate/repos").and_then(Value::as_object).is_some_and(|repos| !repos.is_empty());
    let parents = front.get("extends").and_then(Value::as_array).map_or(0, Vec::len);
    let provider = front.get("agent_provider");
    let conditions = [
        (
            parents > 1,
            "a later parent without `agent_provider` or `supervise` no longer resets them, and a shared ancestor's routes are included once",
        ),
        (repos, "repositories of bottles selected together are merged field by field, no longer replaced"),
        (repos, "a push to the upstream's default branch needs `refs.allow`"),
        (
            some_route(&|_| true),
            "the agent's own `Authorization`, `Cookie` and API-key headers are removed, unless the route has `pass_credentials: true`",
        ),
        (some_route(&|_| true), "plain HTTP is refused, unless the route lists port 80"),
        (
            some_route(&|route| route.get("dlp").is_some()),
            "the detector `entropy` has thresholds by alphabet, so its findings may differ",
        ),
        (
            provider.is_some_and(|provider| provider.get("dockerfile").is_some()),
            "`agent_provider.dockerfile` is relative to the home, not to the working directory: copy it there",
        ),
    ];
    conditions.into_iter().filter_map(|(holds, note)| holds.then_some(note)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_only_the_features_that_a_file_uses() {
        for (text, expected) in [
            ("---\nenv: {A: b}\n---\n", vec![]),
            ("no frontmatter", vec![]),
            ("---\negress: {routes: []}\n---\n", vec![]),
            ("---\nextends: one\n---\n", vec![]),
            ("---\nextends: [one, two]\n---\n", vec!["shared ancestor"]),
            ("---\negress: {routes: [{host: a.example}]}\n---\n", vec!["pass_credentials", "port 80"]),
            (
                "---\negress: {routes: [{host: a.example, dlp: {}}]}\n---\n",
                vec!["pass_credentials", "port 80", "entropy"],
            ),
            ("---\ngit-gate: {repos: {a: {url: x}}}\n---\n", vec!["field by field", "refs.allow"]),
            ("---\nagent_provider: {dockerfile: a}\n---\n", vec!["relative to the home"]),
        ] {
            let notes = notes(Kind::Bottle, text);
            assert_eq!(notes.len(), expected.len(), "{text}: {notes:?}");
            for (note, words) in notes.iter().zip(expected) {
                assert!(note.contains(words), "{text}: {note}");
            }
        }
    }
}
