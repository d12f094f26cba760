//! Bottle manifests before they are merged. Every field is optional; an absent field inherits its value from
//! earlier layers.

use std::collections::BTreeMap;

use bottle_host::budget::{self, Limit, OnSpent};
use bottle_policy::names::Name;
use bottle_protocol::session::process::ProcessName;
use bottle_text::yaml::Node;

use super::agent_provider::ProviderLayer;
use super::all_errors::decode_all;
use super::egress::EgressLayer;
use super::env_value::{BadEnvValue, EnvValue};
use super::error::{Fault, ManifestError};
use super::frontmatter;
use super::git_gate::GitGateLayer;
use super::keys;
use super::mcp::ChildRules;
use super::name::parse_name;
use super::one_or_many::{Entries, OneOrMany};
use super::resources::ResourcesLayer;
use super::schema::BottleSchema;
use super::secret_ref::is_variable;
use super::services::{self, ServiceLayer};
use super::source::{Kind, Source};
use super::{Position, Spanned};

/// A layer: a checked bottle manifest that is not yet merged with others.
#[derive(Debug, Clone)]
pub struct BottleLayer {
    /// The bottle's name, which is the name of the file.
    pub name: Name,
    /// The file that contains the manifest.
    pub source: Source,
    /// The key `extends`, in order.
    pub extends: Vec<Spanned<Name>>,
    /// The key `env`.
    pub env: BTreeMap<String, Spanned<EnvValue>>,
    /// The key `agent_provider`. The value is boxed, because it is large and absent in most layers.
    pub provider: Option<Box<Spanned<ProviderLayer>>>,
    /// The key `git-gate`.
    pub git_gate: GitGateLayer,
    /// The key `egress`.
    pub egress: EgressLayer,
    /// The key `supervise`.
    pub supervise: Option<Spanned<bool>>,
    /// The key `backend`.
    pub backend: Option<Spanned<Name>>,
    /// The key `resources`.
    pub resources: ResourcesLayer,
    /// The key `services`.
    pub services: BTreeMap<ProcessName, Spanned<ServiceLayer>>,
    /// The key `budget`.
    pub budget: Vec<Spanned<Limit>>,
    /// The key `cutoff`.
    pub cutoff: Option<Spanned<OnSpent>>,
    /// The key `mcp`.
    pub mcp: Option<Spanned<ChildRules>>,
}

impl BottleLayer {
    /// Parses the text of a file. The body is documentation and is dropped. A file without frontmatter is an
    /// error: otherwise, a forgotten `---` would give a bottle in which every setting has its default.
    ///
    /// # Errors
    /// Returns [`ManifestError`] with the position of each problem.
    pub fn parse(name: Name, source: Source, text: &str) -> Result<Self, ManifestError> {
        let in_file = |fault: Fault| fault.in_file(&source);
        let split = frontmatter::split(text).map_err(|error| in_file(error.into()))?;
        let yaml = split.yaml.ok_or_else(|| {
            in_file(
                Fault::new(Position::START, "a bottle needs frontmatter")
                    .hint("begin the file with a line `---`, YAML, and a line `---`"),
            )
        })?;
        let in_text = |faults| ManifestError::of_faults(faults, &source, text);
        let root = keys::parse(Kind::Bottle, yaml).map_err(|fault| in_text(vec![fault]))?;
        let check =
            |root: &Node| Self::from_schema(name.clone(), source.clone(), keys::decode(Kind::Bottle, root)?);
        decode_all(root, check).map_err(in_text)
    }

    fn from_schema(name: Name, source: Source, schema: BottleSchema) -> Result<Self, Fault> {
        let BottleSchema {
            extends,
            env,
            agent_provider,
            git_gate,
            egress,
            supervise,
            backend,
            resources,
            services,
            budget,
            cutoff,
            mcp,
        } = schema;
        let extends = extends.map(OneOrMany::into_list).unwrap_or_default();
        Ok(Self {
            name,
            source,
            extends: extends.into_iter().map(|name| parse_name("extends", name)).collect::<Result<_, _>>()?,
            env: env_values(env)?,
            provider: agent_provider.map(ProviderLayer::from_schema).transpose()?.map(Box::new),
            git_gate: GitGateLayer::from_schema(git_gate.unwrap_or_default())?,
            egress: EgressLayer::from_schema(egress.unwrap_or_default())?,
            supervise,
            backend: backend.map(|name| parse_name("backend", name)).transpose()?,
            resources: ResourcesLayer::from_schema(resources.unwrap_or_default())?,
            services: services::from_schema(services)?,
            budget: budget.map(budget::of_manifest).transpose()?.unwrap_or_default(),
            cutoff,
            mcp: mcp.map(ChildRules::from_schema).transpose()?,
        })
    }
}

fn env_values(schema: Option<Entries<String>>) -> Result<BTreeMap<String, Spanned<EnvValue>>, Fault> {
    let mut env = BTreeMap::new();
    for (name, text) in schema.map(|entries| entries.0).unwrap_or_default() {
        if !is_variable(&name.value) {
            let message = format!("`env`: {:?} is not a variable name", name.value);
            return Err(
                Fault::new(name.at, message).hint("use letters, digits and `_`, not beginning with a digit")
            );
        }
        let value = text
            .value
            .parse()
            .map_err(|error: BadEnvValue| Fault::new(text.at, format!("`env.{}` {error}", name.value)))?;
        env.insert(name.value, Spanned::new(value, text.at));
    }
    Ok(env)
}
