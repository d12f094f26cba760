//! A home of bot-bottle, which `bottle` grew out of: what of it is taken over, and what means something else here.
//!
//! Its manifests are Markdown with YAML frontmatter, as ours are, and are taken as they are. Nothing is
//! rewritten: a user's file says what it says, and what it means now is told beside it.

use std::path::Path;

use bottle_contract::names::Name;
use bottle_contract::yaml;
use serde_json::Value;

use super::error::ManifestError;
use super::frontmatter;
use super::locate::{Homes, Manifests};
use super::source::{Kind, Place};

/// A manifest of the other home.
#[derive(Debug)]
pub struct Imported {
    /// Agent or bottle.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// The file, byte for byte; or why it cannot be read.
    pub text: Result<String, ManifestError>,
    /// What of it means something else here, in sentences.
    pub notes: Vec<&'static str>,
}

/// Everything in the other home, agents first, and what was passed over, in sentences.
#[must_use]
pub fn read(folder: &Path, homes: &Homes) -> (Vec<Imported>, Vec<String>) {
    // Its project agents are found in each project, and its queue, state and audit log are of no use here.
    let there =
        Manifests::new(Homes { bottle_home: folder.to_owned(), cwd: folder.to_owned(), ..homes.clone() });
    let mut found = Vec::new();
    let mut warnings = Vec::new();
    for kind in [Kind::Agent, Kind::Bottle] {
        let listing = there.list(kind);
        warnings.extend(listing.warnings);
        for entry in listing.entries.into_iter().filter(|entry| entry.source.place == Place::Home) {
            let text = there.text(kind, &entry.name, &entry.source);
            let notes = text.as_deref().map(|text| notes(kind, text)).unwrap_or_default();
            found.push(Imported { kind, name: entry.name, text, notes });
        }
    }
    (found, warnings)
}

/// What of a file means something else here.
fn notes(kind: Kind, text: &str) -> Vec<&'static str> {
    let Some(front) = frontmatter::split(text).ok().and_then(|split| split.yaml) else { return Vec::new() };
    // One that cannot be read is told by whoever parses it.
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
            "a later parent that says nothing of `agent_provider` or `supervise` no longer resets them, and a shared ancestor's routes are there once",
        ),
        (
            repos,
            "repositories of bottles chosen together are merged field by field, no longer replaced whole",
        ),
        (repos, "a push to the upstream's default branch needs `refs.allow`"),
        (
            some_route(&|_| true),
            "the agent's own `Authorization`, `Cookie` and API-key headers are taken off, unless the route says `pass_credentials: true`",
        ),
        (some_route(&|_| true), "plain HTTP is refused, unless the route lists port 80"),
        (
            some_route(&|route| route.get("dlp").is_some()),
            "the detector `entropy` has thresholds by alphabet, so it may find other things",
        ),
        (
            provider.is_some_and(|provider| provider.get("dockerfile").is_some()),
            "`agent_provider.dockerfile` is looked for below the home, not below the working directory: copy it there",
        ),
    ];
    conditions.into_iter().filter_map(|(holds, note)| holds.then_some(note)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_file_uses_is_told() {
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
            ("---\nagent_provider: {dockerfile: a}\n---\n", vec!["below the home"]),
        ] {
            let notes = notes(Kind::Bottle, text);
            assert_eq!(notes.len(), expected.len(), "{text}: {notes:?}");
            for (note, words) in notes.iter().zip(expected) {
                assert!(note.contains(words), "{text}: {note}");
            }
        }
    }
}
