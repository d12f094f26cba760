//! The resolved manifest: all defaults applied, no file access.
//!
//! An absent `Option` is a decision (“any backend”), never a missing default. Serialisation is deterministic: maps are
//! sorted by name, lists keep their order.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_contract::names::Name;
use bottle_contract::route::{Narrowing, Route, RouteSpec};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::LogLevel;
use serde::{Serialize, Serializer};
use url::Url;

use super::linearise::Layer;
use super::origin::Traced;
use crate::manifest::Source;
use crate::manifest::egress::UpstreamProxy;
use crate::manifest::env_value::EnvValue;
use crate::manifest::git_gate::{OnMatch, RefRules, RepoUrl};
use crate::manifest::git_key::KeySource;
use crate::manifest::provider::{Image, Template};
use crate::manifest::resources::{ByteSize, Cpus};
use crate::manifest::secret_ref::SecretRef;
use crate::manifest::skills::Skill;

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
    pub provider: Provider,
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

/// `agent_provider`, all of it from one layer.
#[derive(Debug, Clone, Serialize)]
pub struct Provider {
    /// `template`.
    pub template: Traced<Template>,
    /// `dockerfile`, relative to `$BOTTLE_HOME`; none: the provider's stage of `Dockerfile.agent`.
    pub dockerfile: Option<Traced<PathBuf>>,
    /// `image`: none means one is built.
    pub image: Option<Traced<Image>>,
    /// `command`: the agent's argv, for [`Template::Command`] only and never empty there.
    pub command: Option<Traced<Vec<String>>>,
    /// `auth_token`.
    pub auth_token: Option<Traced<SecretRef>>,
    /// `forward_host_credentials`.
    pub forward_host_credentials: Traced<bool>,
    /// `route`: restricts the provider route; `egress.routes` has the result.
    pub route: Option<Traced<Narrowing>>,
    /// `settings`.
    pub settings: Settings,
}

/// `agent_provider.settings`.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    /// Arguments after the template's.
    pub startup_args: Traced<Vec<String>>,
    /// The name of the model provider in pi's settings.
    pub provider: Option<Traced<String>>,
    /// The model API's address.
    pub base_url: Option<Traced<String>>,
    /// The API's kind.
    pub api: Option<Traced<String>>,
    /// Pi's key in the bottle; never serialised.
    #[serde(serialize_with = "hidden")]
    pub api_key: Option<Traced<Secret>>,
    /// The variable in the bottle from which pi reads its key.
    pub api_key_env: Option<Traced<String>>,
    /// Model ids.
    pub models: Traced<Vec<String>>,
    /// The request field that limits output tokens.
    pub max_tokens_field: Option<Traced<String>>,
    /// Whether the API supports the developer role; none leaves it to pi.
    pub supports_developer_role: Option<Traced<bool>>,
    /// Whether the API supports reasoning effort; none leaves it to pi.
    pub supports_reasoning_effort: Option<Traced<bool>>,
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

fn hidden<S: Serializer>(secret: &Option<Traced<Secret>>, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = secret.as_ref().map(|secret| Traced { value: "[hidden]", origin: secret.origin.clone() });
    shown.serialize(serializer)
}
