//! Agent manifests. They may come from a project, so nothing in them widens the agent's access.

use bottle_contract::names::Name;

use super::decode::decode;
use super::error::{Fault, ManifestError};
use super::frontmatter;
use super::git_gate::UserLayer;
use super::located::{Located, START};
use super::one_or_many::OneOrMany;
use super::schema::AgentSchema;
use super::source::Source;
use super::yaml;

/// A checked agent manifest.
#[derive(Debug, Clone)]
pub struct AgentManifest {
    /// Its name, from the file name.
    pub name: Name,
    /// The file.
    pub source: Source,
    /// `bottle`: the default bottles, in order. Only a suggestion if the agent comes from a project.
    pub bottles: Vec<Located<Name>>,
    /// `skills`, in order, without duplicates.
    pub skills: Vec<Located<Name>>,
    /// `git-gate.user`.
    pub user: UserLayer,
    /// The body, byte for byte: the agent's prompt.
    pub prompt: String,
}

impl AgentManifest {
    /// Parses a file's text. A file without frontmatter is all prompt.
    ///
    /// # Errors
    /// [`ManifestError`] with the position of the first problem.
    pub fn parse(name: Name, source: Source, text: &str) -> Result<Self, ManifestError> {
        let in_file = |fault: Fault| fault.in_file(&source);
        let split = frontmatter::split(text).map_err(|error| {
            in_file(Fault::new(START, error.to_string()).hint("end it with a line `---`"))
        })?;
        let schema = match split.yaml {
            Some(yaml) => yaml::parse(yaml).and_then(|node| decode(&node)).map_err(in_file)?,
            None => AgentSchema::default(),
        };
        let (bottles, skills, user) = check(schema).map_err(in_file)?;
        Ok(Self { name, bottles, skills, user, prompt: split.body.to_owned(), source })
    }
}

type Checked = (Vec<Located<Name>>, Vec<Located<Name>>, UserLayer);

fn check(schema: AgentSchema) -> Result<Checked, Fault> {
    let gate = schema.git_gate.unwrap_or_default();
    if let Some(repos) = gate.repos {
        return Err(Fault::new(repos.at, "an agent may not declare `git-gate.repos`").hint(
            "declare them in a bottle: an agent file may come from a project and must not add upstreams",
        ));
    }
    let bottles = schema.bottle.map(OneOrMany::into_list).unwrap_or_default();
    let mut skills: Vec<Located<Name>> = Vec::new();
    for skill in schema.skills.unwrap_or_default() {
        let skill = parse_name("skills", skill)?;
        if !skills.contains(&skill) {
            skills.push(skill);
        }
    }
    let bottles = bottles.into_iter().map(|name| parse_name("bottle", name)).collect::<Result<_, _>>()?;
    Ok((bottles, skills, UserLayer::from_schema(gate.user)?))
}

/// Parses the name of a manifest, skill or repository in `key`.
pub(super) fn parse_name(key: &str, text: Located<String>) -> Result<Located<Name>, Fault> {
    let at = text.at;
    text.try_map(|text| Name::try_from(text).map_err(|bad| Fault::new(at, format!("`{key}`: {bad}"))))
}
