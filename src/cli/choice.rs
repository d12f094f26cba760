//! Finds the agent and the bottle manifests that the user chose, and resolves them. The commands `start`, `info` and
//! `policy check` use these functions.

use bottle_lib::failure::Failure;
pub(crate) use bottle_lib::manifests::manifests;
use bottle_manifest::resolve::{ResolveError, Resolved, Selection, resolve};
use bottle_manifest::{Kind as ManifestKind, Manifests};
use bottle_policy::names::Name;

use crate::console::error::CliError;

/// Returns the given agent name. Without a name, returns an error that lists all agent names.
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

/// Resolves an agent and the bottle manifests that were chosen for it.
pub(crate) fn resolved(manifests: &Manifests, agent: Name, bottles: Vec<Name>) -> Result<Resolved, CliError> {
    resolve(&Selection { agent, bottles }, manifests).map_err(CliError::from)
}

impl From<ResolveError> for CliError {
    fn from(error: ResolveError) -> Self {
        Failure::from(error).into()
    }
}
