//! Merges manifest layers into a resolved manifest. The same rules merge the layers of parents (`extends`) and the
//! layers of several bottle manifests that the user selected.
//!
//! ```text
//! selection ──▶ linearise   the files, ancestors first, each once; only these are read
//!                  │
//!                fold        merges layers, earlier to later, one rule for each kind of field
//!                  │
//!             + agent        prompt, skills, git identity (overrides the bottle's)
//!                  ▼
//!           ResolvedManifest  all defaults applied, every value with its origin
//!                  ├── explain   renders it for the user
//!                  └── warnings  lists weakening settings
//! ```
//! This module reads only the selected manifests and the directories of skills. It does not read environment
//! variables, the clock or secrets, so its result is deterministic.

mod error;
mod explain;
mod fold;
mod linearise;
mod provider_route;
mod resolved;
mod services;
#[cfg(test)]
mod tests;
mod warnings;

use std::collections::BTreeSet;

use bottle_host::budget::{Declared, Scope};
use bottle_policy::names::Name;

pub use error::ResolveError;
pub use explain::{comparable, explain};
pub use resolved::{Egress, GitUser, LayerRef, Repo, ResolvedAgent, ResolvedManifest, Resources};
pub use warnings::{Weakening, WeakeningSetting, weakening_settings};

use crate::origin::{Origin, Traced};
use crate::skills::Skill;
use crate::source::Source;
use crate::{AgentManifest, Kind, Manifests, Place};
use linearise::{Layer, RequestedBy, linearise};

/// The default of `resources.pids`: the maximum number of processes and threads in a bottle.
pub const DEFAULT_PIDS: u64 = 4096;

/// The agent and bottles that the user chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The agent.
    pub agent: Name,
    /// The bottles, in the order in which they are merged. If the list is empty, the agent's default bottles
    /// are used.
    pub bottles: Vec<Name>,
}

/// A resolved manifest, with information for the user.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The resolved manifest, from which a bottle is planned and launched.
    pub manifest: ResolvedManifest,
    /// Who selected the bottles. [`BottleChoice::Suggested`] requires the user's confirmation before a
    /// launch.
    pub choice: BottleChoice,
    /// If the agent manifest shadows another manifest of the same name, the place of the shadowed manifest.
    pub agent_replaces: Option<Place>,
    /// Warnings about skipped files, one sentence each.
    pub warnings: Vec<String>,
}

/// Who selected the bottles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BottleChoice {
    /// The user selected the bottles for this launch.
    Picked,
    /// The agent manifest names the bottles. This agent manifest is the user's or is shipped.
    AgentDefault,
    /// The agent manifest names the bottles, but the agent manifest comes from a project. Its choice is a suggestion
    /// that the user must confirm.
    Suggested,
}

/// Resolves the agent and bottles that the user chose.
///
/// # Errors
/// Returns [`ResolveError`] if a file is invalid, a name is unknown, `extends` forms a cycle, two different
/// routes have the same host, a skill is missing, or no bottle is named.
pub fn resolve(selection: &Selection, manifests: &Manifests) -> Result<Resolved, ResolveError> {
    let agent = find_agent(&selection.agent, manifests)?;
    let (choice, picks) = picks(selection, &agent, manifests)?;
    let layers = layers(&picks, manifests)?;
    let mut folded = fold::fold(&layers)?;
    fold::override_git_user(&mut folded.git_user, &agent);
    let replaces = manifests.find(Kind::Agent, &selection.agent)?.and_then(|entry| entry.replaces);
    // If a project's agent shadows an agent of the user, the budget of the user's agent still applies.
    let own = match agent.source.place {
        Place::Project => manifests.own_agent(&agent.name)?,
        Place::Home | Place::Shipped => None,
    };
    let user_agent = own.as_ref().unwrap_or(&agent);
    let cutoff_of_agent = user_agent
        .cutoff
        .as_ref()
        .map(|cutoff| Traced { value: cutoff.value, origin: Origin::in_agent(user_agent, cutoff.at) });
    let manifest = ResolvedManifest {
        agent: ResolvedAgent {
            name: agent.name.clone(),
            source: agent.source.clone(),
            prompt: agent.prompt.clone(),
            skills: skills(&agent, manifests)?,
        },
        bottles: unique(picks.into_iter().map(|(name, _)| name)),
        layers: layers.iter().map(LayerRef::from).collect(),
        env: folded.env,
        provider: folded.provider,
        git_user: folded.git_user,
        repos: folded.repos,
        egress: folded.egress,
        supervise: folded.supervise,
        backend: folded.backend,
        resources: folded.resources,
        services: folded.services,
        budget: budget(user_agent, &layers),
        cutoff: cutoff_of_agent.or(folded.cutoff),
        mcp: folded.mcp,
    };
    let warnings = manifests.ignored_bottles().into_iter().chain(without_server(&manifest)).collect();
    Ok(Resolved { manifest, choice, agent_replaces: replaces, warnings })
}

/// The warning about `mcp` in a bottle whose agent has no MCP server.
fn without_server(manifest: &ResolvedManifest) -> Option<String> {
    let rules = manifest.mcp.as_ref().filter(|_| !manifest.supervise.value)?;
    Some(format!("`mcp` ({}) has no effect, because `supervise` is false", rules.origin))
}

/// Collects the budgets, beginning with the narrowest scope: the agent, then the bottles from the last to the first in
/// the order of merging.
fn budget(agent: &AgentManifest, layers: &[Layer]) -> Vec<Declared> {
    let of_agent = agent.budget.iter().map(|limit| Declared {
        scope: Scope::Agent(agent.name.clone()),
        limit: limit.value.clone(),
        origin: Origin::in_agent(agent, limit.at).to_string(),
    });
    let of_bottles = layers.iter().rev().flat_map(|layer| {
        layer.body.budget.iter().map(|limit| Declared {
            scope: Scope::Bottle(layer.body.name.clone()),
            limit: limit.value.clone(),
            origin: Origin::in_layer(layer, limit.at).to_string(),
        })
    });
    of_agent.chain(of_bottles).collect()
}

/// Returns the names of the manifests that a bottle extends, root first, and then the bottle's own name.
///
/// # Errors
/// Returns [`ResolveError`] if one of the files is invalid or missing, or extends itself.
pub fn lineage(bottle: &Name, manifests: &Manifests) -> Result<Vec<Name>, ResolveError> {
    let layers = layers(&[(bottle.clone(), RequestedBy::User)], manifests)?;
    Ok(layers.into_iter().map(|layer| layer.body.name).collect())
}

fn layers(picks: &[(Name, RequestedBy)], manifests: &Manifests) -> Result<Vec<Layer>, ResolveError> {
    linearise(picks, &mut |name, requested_by| match manifests.bottle(name)? {
        Some(layer) => Ok(layer),
        None => Err(requested_by.unknown(name, &available(manifests, Kind::Bottle))),
    })
}

fn find_agent(name: &Name, manifests: &Manifests) -> Result<AgentManifest, ResolveError> {
    manifests.agent(name)?.ok_or_else(|| ResolveError::UnknownAgent {
        name: name.clone(),
        available: available(manifests, Kind::Agent),
    })
}

type Picks = Vec<(Name, RequestedBy)>;

fn picks(
    selection: &Selection,
    agent: &AgentManifest,
    manifests: &Manifests,
) -> Result<(BottleChoice, Picks), ResolveError> {
    if !selection.bottles.is_empty() {
        let picks = selection.bottles.iter().map(|name| (name.clone(), RequestedBy::User));
        return Ok((BottleChoice::Picked, picks.collect()));
    }
    if agent.bottles.is_empty() {
        return Err(ResolveError::NoBottle {
            agent: agent.name.clone(),
            available: available(manifests, Kind::Bottle),
        });
    }
    let choice = match agent.source.place {
        Place::Project => BottleChoice::Suggested,
        Place::Home | Place::Shipped => BottleChoice::AgentDefault,
    };
    let requested_by = |at| RequestedBy::File { source: agent.source.clone(), at };
    Ok((choice, agent.bottles.iter().map(|name| (name.value.clone(), requested_by(name.at))).collect()))
}

fn available(manifests: &Manifests, kind: Kind) -> Vec<Name> {
    manifests.list(kind).entries.into_iter().map(|entry| entry.name).collect()
}

fn skills(agent: &AgentManifest, manifests: &Manifests) -> Result<Vec<Traced<Skill>>, ResolveError> {
    let source: &Source = &agent.source;
    agent
        .skills
        .iter()
        .map(|name| {
            let skill = Skill::locate(manifests.homes(), &name.value).map_err(|error| {
                crate::ManifestError::at(source, name.at, format!("the skill `{}` {error}", name.value))
            })?;
            Ok(Traced { value: skill, origin: Origin::in_agent(agent, name.at) })
        })
        .collect()
}

fn unique(names: impl Iterator<Item = Name>) -> Vec<Name> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(name.clone())).collect()
}
