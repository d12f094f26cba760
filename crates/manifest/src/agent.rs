//! Agent manifests. An agent manifest may come from a project, so no key of an agent manifest can give the agent more
//! access.

use bottle_host::budget::{self, Limit, OnSpent};
use bottle_policy::names::Name;
use bottle_text::yaml::Node;

use super::Spanned;
use super::all_errors::decode_all;
use super::error::{Fault, ManifestError};
use super::frontmatter;
use super::git_gate::UserLayer;
use super::keys;
use super::name::parse_name;
use super::one_or_many::OneOrMany;
use super::schema::{AgentGitGateSchema, AgentSchema};
use super::source::{Kind, Place, Source};

/// A checked agent manifest.
#[derive(Debug, Clone)]
pub struct AgentManifest {
    /// The agent's name, which is the name of the file.
    pub name: Name,
    /// The file that contains the manifest.
    pub source: Source,
    /// The key `bottle`: the default bottles, in order. If the agent comes from a project, these bottles are only a
    /// suggestion.
    pub bottles: Vec<Spanned<Name>>,
    /// The key `skills`, in order, without duplicates.
    pub skills: Vec<Spanned<Name>>,
    /// The key `git-gate.user`.
    pub user: UserLayer,
    /// The key `budget`. Always empty in an agent of a project, because a project must not change what the user allows.
    pub budget: Vec<Spanned<Limit>>,
    /// The key `cutoff`. Always `None` in an agent of a project.
    pub cutoff: Option<Spanned<OnSpent>>,
    /// The body of the file, unchanged: the agent's prompt.
    pub prompt: String,
}

impl AgentManifest {
    /// Parses the text of a file. If a file has no frontmatter, its entire text is the prompt.
    ///
    /// # Errors
    /// Returns [`ManifestError`] with the position of each problem.
    pub fn parse(name: Name, source: Source, text: &str) -> Result<Self, ManifestError> {
        let in_file = |fault: Fault| fault.in_file(&source);
        let split = frontmatter::split(text).map_err(|error| in_file(error.into()))?;
        let in_text = |faults| ManifestError::of_faults(faults, &source, text);
        let root = keys::parse(Kind::Agent, split.yaml.unwrap_or_default());
        let root = root.map_err(|fault| in_text(vec![fault]))?;
        let check = |root: &Node| {
            let schema = keys::decode(Kind::Agent, root)?;
            if source.place == Place::Project {
                refuse_budget(&schema)?;
            }
            check(schema)
        };
        let Checked { bottles, skills, user, budget, cutoff } = decode_all(root, check).map_err(in_text)?;
        Ok(Self { name, bottles, skills, user, budget, cutoff, prompt: split.body.to_owned(), source })
    }
}

/// The checked values of the frontmatter.
struct Checked {
    bottles: Vec<Spanned<Name>>,
    skills: Vec<Spanned<Name>>,
    user: UserLayer,
    budget: Vec<Spanned<Limit>>,
    cutoff: Option<Spanned<OnSpent>>,
}

/// Refuses the keys `budget` and `cutoff`. With these keys, a project could change how many tokens the user allows.
fn refuse_budget(schema: &AgentSchema) -> Result<(), Fault> {
    if let Some(budget) = &schema.budget {
        let fault = Fault::new(budget.at, "an agent of a project may not declare a `budget`");
        return Err(fault.hint("a budget belongs in your own files, or in `--budget`"));
    }
    if let Some(cutoff) = &schema.cutoff {
        let fault = Fault::new(cutoff.at, "an agent of a project may not declare `cutoff`");
        return Err(fault.hint("what happens when a budget is spent belongs in your own files"));
    }
    Ok(())
}

fn check(schema: AgentSchema) -> Result<Checked, Fault> {
    let AgentSchema { bottle, skills: listed, git_gate, budget, cutoff } = schema;
    let AgentGitGateSchema { user, repos } = git_gate.unwrap_or_default();
    if let Some(repos) = repos {
        return Err(Fault::new(repos.at, "an agent may not declare `git-gate.repos`").hint(
            "declare them in a bottle: an agent file may come from a project and must not add upstreams",
        ));
    }
    let bottles = bottle.map(OneOrMany::into_list).unwrap_or_default();
    let mut skills: Vec<Spanned<Name>> = Vec::new();
    for skill in listed.unwrap_or_default() {
        let skill = parse_name("skills", skill)?;
        if !skills.contains(&skill) {
            skills.push(skill);
        }
    }
    let bottles = bottles.into_iter().map(|name| parse_name("bottle", name)).collect::<Result<_, _>>()?;
    let budget = budget.map(budget::of_manifest).transpose()?.unwrap_or_default();
    Ok(Checked { bottles, skills, user: user.unwrap_or_default().checked()?, budget, cutoff })
}
