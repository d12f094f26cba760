//! Finds the agent and the bottle manifests that the user chose, and resolves them. Used by `start`, `info`
//! and `policy check`.

use std::fmt::Write as _;

use bottle_contract::names::Name;

use super::error::{CliError, Kind};
use super::output::one_line;
use crate::host::Host;
use crate::manifest::{Homes, Kind as ManifestKind, ManifestError, Manifests};
use crate::resolve::{ResolveError, Resolved, Selection, resolve};
use bottle_contract::suggest::suggest;

/// Returns the manifests that this user can use in the working directory.
pub(crate) fn manifests(host: &Host) -> Manifests {
    Manifests::new(Homes::from(host))
}

/// Returns the given agent name, or an error that lists all agent names.
pub(crate) fn named(agent: Option<Name>, manifests: &Manifests) -> Result<Name, CliError> {
    agent.ok_or_else(|| {
        let names: Vec<String> =
            manifests.list(ManifestKind::Agent).entries.iter().map(|entry| entry.name.to_string()).collect();
        CliError::usage("no agent was given").about("AGENT").hint(format!(
            "name one of {}, as in `bottle start {}`",
            names.join(", "),
            example(&names)
        ))
    })
}

fn example(names: &[String]) -> &str {
    names.iter().find(|name| *name == "probe").or(names.first()).map_or("AGENT", String::as_str)
}

/// Resolves an agent and the bottles chosen for it.
pub(crate) fn resolved(manifests: &Manifests, agent: Name, bottles: Vec<Name>) -> Result<Resolved, CliError> {
    resolve(&Selection { agent, bottles }, manifests).map_err(CliError::from)
}

impl From<ResolveError> for CliError {
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
        Self { subject: Some(subject), ..Self::new(kind, message).hint_if(hint) }
    }
}

/// Formats an error of a manifest with the line that it is about.
fn with_excerpt(error: &ManifestError) -> String {
    let line = error.position.zip(error.excerpt());
    let line = line.map(|(at, line)| format!("\n  {} | {}", at.line, one_line(line)));
    error.without_hint() + &line.unwrap_or_default()
}

/// Formats all errors of a manifest, each with its line and the next step.
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

/// The error for an unknown backend name.
pub(crate) fn unknown_backend(name: &str, known: &[&str]) -> CliError {
    let hint = match suggest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the backends are {}", known.join(", ")),
    };
    CliError::usage(format!("no backend is named {name:?}")).about("--backend").hint(hint)
}
