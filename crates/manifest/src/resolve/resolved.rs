//! The resolved manifest: all defaults are applied, and no further files are read.
//!
//! An absent `Option` has a meaning, for example "any backend"; it is not a missing default. Serialisation is
//! deterministic: maps are sorted by name, and lists keep their order.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_host::budget::{Declared, OnSpent};
use bottle_host::byte_size::ByteSize;
use bottle_policy::names::Name;
use bottle_policy::route::{Route, RouteSpec};
use bottle_protocol::session::bundle::LogLevel;
use bottle_protocol::session::process::ProcessName;
use serde::{Serialize, Serializer};
use url::Url;

use super::linearise::Layer;
use crate::Source;
use crate::egress::UpstreamProxy;
use crate::env_value::EnvValue;
use crate::git_gate::{OnMatch, RefRules, RepoUrl};
use crate::git_key::KeySource;
use crate::mcp::ChildRules;
use crate::origin::Traced;
use crate::provider::ProviderConfig;
use crate::resources::Cpus;
use crate::services::ServiceLayer;
use crate::skills::Skill;

/// A manifest in which all defaults are applied and each value records where it comes from.
#[derive(Debug, Clone, Serialize)]
pub struct ResolvedManifest {
    /// The agent.
    pub agent: ResolvedAgent,
    /// The selected bottles, in order.
    pub bottles: Vec<Name>,
    /// The bottle manifests that were merged, in the order of merging.
    pub layers: Vec<LayerRef>,
    /// The key `env`.
    pub env: BTreeMap<String, Traced<EnvValue>>,
    /// The key `agent_provider`.
    pub provider: ProviderConfig,
    /// The key `git-gate.user`.
    pub git_user: GitUser,
    /// The key `git-gate.repos`.
    pub repos: BTreeMap<Name, Repo>,
    /// The key `egress`.
    pub egress: Egress,
    /// The key `supervise`.
    pub supervise: Traced<bool>,
    /// The key `backend`. `None` means that any backend that can run the bottle may be used.
    pub backend: Option<Traced<Name>>,
    /// The key `resources`.
    pub resources: Resources,
    /// The key `services`, in the order of their start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<(ProcessName, Traced<ServiceLayer>)>,
    /// The `budget` of the agent and of all bottles, beginning with the narrowest scope.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budget: Vec<Declared>,
    /// The `cutoff` of the agent, or else of the bottles. `None` means that the `cutoff` of the settings applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cutoff: Option<Traced<OnSpent>>,
    /// The key `mcp`. `None` means that the agent may start no bottle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Traced<ChildRules>>,
}

/// The resolved agent manifest.
#[derive(Debug, Clone, Serialize)]
pub struct ResolvedAgent {
    /// The agent's name.
    pub name: Name,
    /// The file of the agent manifest.
    pub source: Source,
    /// The prompt, which is the body of the file.
    pub prompt: String,
    /// The skills that are copied into the bottle.
    pub skills: Vec<Traced<Skill>>,
}

/// A bottle manifest that was merged.
#[derive(Debug, Clone, Serialize)]
pub struct LayerRef {
    /// The bottle's name.
    pub name: Name,
    /// The file of the bottle manifest.
    pub source: Source,
}

impl From<&Layer> for LayerRef {
    fn from(layer: &Layer) -> Self {
        Self { name: layer.body.name.clone(), source: layer.body.source.clone() }
    }
}

/// The key `git-gate.user`. The agent's fields override those of the bottle.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GitUser {
    /// The key `name`.
    pub name: Option<Traced<String>>,
    /// The key `email`.
    pub email: Option<Traced<String>>,
}

/// An entry of `git-gate.repos`.
#[derive(Debug, Clone, Serialize)]
pub struct Repo {
    /// The key `url`.
    pub url: Traced<RepoUrl>,
    /// The key `key`.
    pub key: Traced<KeySource>,
    /// The key `host_key`. If absent, a `known_hosts` file on the host must contain the upstream's host key.
    pub host_key: Option<Traced<String>>,
    /// The key `alias`.
    pub alias: Option<Traced<String>>,
    /// The key `refs`.
    pub refs: Traced<RefRules>,
    /// The key `on_match`.
    pub on_match: Traced<OnMatch>,
    /// The key `stale_ok`.
    pub stale_ok: Traced<bool>,
}

/// Prefixes of the host names with which forges offer ssh on port 443.
const SSH_OVER_HTTPS_PREFIXES: [&str; 2] = ["ssh.", "altssh."];

impl Repo {
    /// Returns the hosts at which the forge accepts requests other than git: the host of the repository's URL, and the
    /// host of the forge's API for deploy keys.
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

/// The key `egress`.
#[derive(Debug, Clone, Serialize)]
pub struct Egress {
    /// The key `log`.
    pub log: Traced<LogLevel>,
    /// The provider route, followed by the routes of `egress.routes` in the order of their declaration. Each host
    /// occurs once.
    #[serde(serialize_with = "as_specs")]
    pub routes: Vec<Traced<Route>>,
    /// The key `ca_bundle`: an absolute path, or a path that [`crate::host_path::absolute`] resolves.
    pub ca_bundle: Option<Traced<PathBuf>>,
    /// The key `upstream_proxy`.
    pub upstream_proxy: Option<Traced<UpstreamProxy>>,
}

/// The key `resources`. In each field, `None` means that the default of the container engine or backend applies.
#[derive(Debug, Clone, Serialize)]
pub struct Resources {
    /// The maximum number of processors that the bottle's processes may use together.
    pub cpus: Option<Traced<Cpus>>,
    /// The maximum memory that the bottle's processes may use together.
    pub memory: Option<Traced<ByteSize>>,
    /// The maximum number of the bottle's processes and threads.
    pub pids: Traced<u64>,
    /// The maximum total size of the files that the bottle writes.
    pub disk: Option<Traced<ByteSize>>,
    /// Whether processes in the bottle may create user namespaces.
    pub nested: Traced<bool>,
}

/// Serialises routes as they are written in a manifest.
fn as_specs<S: Serializer>(routes: &[Traced<Route>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        routes
            .iter()
            .map(|route| Traced { value: RouteSpec::from(&route.value), origin: route.origin.clone() }),
    )
}
