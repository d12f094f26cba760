//! The resolved manifest: all defaults applied, no file access.
//!
//! An absent `Option` is a decision (“any backend”), never a missing default. Serialisation is deterministic: maps are
//! sorted by name, lists keep their order.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_contract::names::Name;
use bottle_contract::route::{Route, RouteSpec};
use bottle_contract::session::bundle::LogLevel;
use serde::{Serialize, Serializer};
use url::Url;

use super::linearise::Layer;
use crate::host::byte_size::ByteSize;
use crate::manifest::Source;
use crate::manifest::egress::UpstreamProxy;
use crate::manifest::env_value::EnvValue;
use crate::manifest::git_gate::{OnMatch, RefRules, RepoUrl};
use crate::manifest::git_key::KeySource;
use crate::manifest::origin::Traced;
use crate::manifest::resources::Cpus;
use crate::manifest::skills::Skill;
use crate::provider::ProviderConfig;

/// A manifest with every default applied and every value's origin.
#[derive(Debug, Clone, Serialize)]
pub struct ResolvedManifest {
    /// The agent.
    pub agent: ResolvedAgent,
    /// The selected bottles, in order.
    pub bottles: Vec<Name>,
    /// Every merged bottle file, in order.
    pub layers: Vec<LayerRef>,
    /// `env`.
    pub env: BTreeMap<String, Traced<EnvValue>>,
    /// `agent_provider`.
    pub provider: ProviderConfig,
    /// `git-gate.user`.
    pub git_user: GitUser,
    /// `git-gate.repos`.
    pub repos: BTreeMap<Name, Repo>,
    /// `egress`.
    pub egress: Egress,
    /// `supervise`.
    pub supervise: Traced<bool>,
    /// `backend`: none means any that can run it.
    pub backend: Option<Traced<Name>>,
    /// `resources`.
    pub resources: Resources,
}

/// The resolved agent manifest.
#[derive(Debug, Clone, Serialize)]
pub struct ResolvedAgent {
    /// The agent's name.
    pub name: Name,
    /// Its file.
    pub source: Source,
    /// The file's body.
    pub prompt: String,
    /// Skills to deliver.
    pub skills: Vec<Traced<Skill>>,
}

/// A merged bottle file.
#[derive(Debug, Clone, Serialize)]
pub struct LayerRef {
    /// The bottle's name.
    pub name: Name,
    /// Its file.
    pub source: Source,
}

impl From<&Layer> for LayerRef {
    fn from(layer: &Layer) -> Self {
        Self { name: layer.body.name.clone(), source: layer.body.source.clone() }
    }
}

/// `git-gate.user`; the agent's fields override the bottle's.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GitUser {
    /// `name`.
    pub name: Option<Traced<String>>,
    /// `email`.
    pub email: Option<Traced<String>>,
}

/// One of `git-gate.repos`.
#[derive(Debug, Clone, Serialize)]
pub struct Repo {
    /// `url`.
    pub url: Traced<RepoUrl>,
    /// `key`.
    pub key: Traced<KeySource>,
    /// `host_key`: none means that the host's `known_hosts` must have it.
    pub host_key: Option<Traced<String>>,
    /// `alias`.
    pub alias: Option<Traced<String>>,
    /// `refs`.
    pub refs: Traced<RefRules>,
    /// `on_match`.
    pub on_match: Traced<OnMatch>,
    /// `stale_ok`.
    pub stale_ok: Traced<bool>,
}

/// Host prefixes with which forges offer ssh over port 443.
const SSH_OVER_HTTPS_PREFIXES: [&str; 2] = ["ssh.", "altssh."];

impl Repo {
    /// The forge's hosts for requests other than git: the host of its URL, and that of its keys API.
    #[must_use]
    pub fn forges(&self) -> Vec<String> {
        let host = self.url.value.host();
        let bare = SSH_OVER_HTTPS_PREFIXES.iter().find_map(|part| host.strip_prefix(part)).map(str::to_owned);
        let api = match &self.key.value {
            KeySource::Gitea(key) | KeySource::Github(key) => key.api_url.as_deref(),
            KeySource::Static { .. } | KeySource::Token { .. } => None,
        };
        let api = api.and_then(|api| Some(Url::parse(api).ok()?.host_str()?.to_owned()));
        [Some(host), bare, api].into_iter().flatten().collect()
    }
}

/// `egress`.
#[derive(Debug, Clone, Serialize)]
pub struct Egress {
    /// `log`.
    pub log: Traced<LogLevel>,
    /// The provider route, then `routes`, each host once, in the order of their declaration.
    #[serde(serialize_with = "as_specs")]
    pub routes: Vec<Traced<Route>>,
    /// `ca_bundle`, absolute or for [`crate::manifest::host_path::absolute`].
    pub ca_bundle: Option<Traced<PathBuf>>,
    /// `upstream_proxy`.
    pub upstream_proxy: Option<Traced<UpstreamProxy>>,
}

/// `resources`; none means the engine's default.
#[derive(Debug, Clone, Serialize)]
pub struct Resources {
    /// Processors.
    pub cpus: Option<Traced<Cpus>>,
    /// Memory.
    pub memory: Option<Traced<ByteSize>>,
    /// Processes.
    pub pids: Traced<u64>,
    /// Disk.
    pub disk: Option<Traced<ByteSize>>,
    /// Whether processes in the bottle may create user namespaces.
    pub nested: Traced<bool>,
}

/// Serialises routes as in a manifest.
fn as_specs<S: Serializer>(routes: &[Traced<Route>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        routes
            .iter()
            .map(|route| Traced { value: RouteSpec::from(&route.value), origin: route.origin.clone() }),
    )
}
