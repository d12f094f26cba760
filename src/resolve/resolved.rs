//! The resolved manifest: a value with no absent fields and no file access.
//!
//! An `Option` here is an answer (“no backend was asked for”), never a question left open. Serialised,
//! it is the same bytes for the same files; maps are sorted by name, lists keep their meaning's order.

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

/// What was asked for, with every default filled in and every value's origin beside it.
#[derive(Debug, Clone, Serialize)]
pub struct ResolvedManifest {
    /// Who works.
    pub agent: ResolvedAgent,
    /// The bottles that were picked, in order.
    pub bottles: Vec<Name>,
    /// Every bottle file that was folded, in order.
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

/// Who works.
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

/// A bottle file that was folded.
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

/// `git-gate.user`, with the agent's over the bottle's.
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

/// Names that forges give their ssh where a firewall lets only the web's port through.
const OVER_THE_WEBS_PORT: [&str; 2] = ["ssh.", "altssh."];

impl Repo {
    /// The hosts at which its forge is spoken to otherwise than by git: that of its address, and that of the API
    /// which is asked for its keys.
    #[must_use]
    pub fn forges(&self) -> Vec<String> {
        let host = self.url.value.host();
        let bare = OVER_THE_WEBS_PORT.iter().find_map(|part| host.strip_prefix(part)).map(str::to_owned);
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
    /// The provider's own route, then `routes`, each host once, in the order they were declared.
    #[serde(serialize_with = "as_words")]
    pub routes: Vec<Traced<Route>>,
    /// `ca_bundle`, absolute or as [`crate::manifest::host_path::absolute`] completes it.
    pub ca_bundle: Option<Traced<PathBuf>>,
    /// `upstream_proxy`.
    pub upstream_proxy: Option<Traced<UpstreamProxy>>,
}

/// `resources`; none means the engine's own default.
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
    /// Whether own user namespaces may be made inside.
    pub nested: Traced<bool>,
}

/// Routes in the words of a manifest.
fn as_words<S: Serializer>(routes: &[Traced<Route>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        routes
            .iter()
            .map(|route| Traced { value: RouteSpec::from(&route.value), origin: route.origin.clone() }),
    )
}
