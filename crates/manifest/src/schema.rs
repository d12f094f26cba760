//! The schema of manifests: every key of agent and bottle manifests.
//!
//! The types of this module define only the keys and the YAML type of each value. [`super::agent`] and
//! [`super::bottle`] convert them to checked values. A type that needs no conversion is public. A route uses the
//! type of the proxy's configuration, so that `egress.routes` in a bottle and the proxy's routes have the same
//! meaning.

use std::fmt;

use bottle_host::budget::{OnSpent, Written};
use bottle_policy::route::{Narrowing, RouteSpec};
use bottle_policy::secret::Secret;
use bottle_protocol::session::service::Restart;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Spanned;
use super::one_or_many::{Entries, OneOrMany};

/// The frontmatter of an agent manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentSchema {
    pub(super) bottle: Option<Spanned<OneOrMany>>,
    pub(super) skills: Option<Vec<Spanned<String>>>,
    #[serde(rename = "git-gate")]
    pub(super) git_gate: Option<AgentGitGateSchema>,
    pub(super) budget: Option<Spanned<Written>>,
    pub(super) cutoff: Option<Spanned<OnSpent>>,
}

/// The key `git-gate` of an agent manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentGitGateSchema {
    pub(super) user: Option<UserLayer>,
    /// This key is not allowed in an agent manifest. It is parsed so that the error message can explain the reason.
    pub(super) repos: Option<Spanned<IgnoredAny>>,
}

/// The frontmatter of a bottle manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BottleSchema {
    pub(super) extends: Option<Spanned<OneOrMany>>,
    pub(super) env: Option<Entries<String>>,
    pub(super) agent_provider: Option<Spanned<ProviderSchema>>,
    #[serde(rename = "git-gate")]
    pub(super) git_gate: Option<GitGateSchema>,
    pub(super) egress: Option<EgressSchema>,
    pub(super) supervise: Option<Spanned<bool>>,
    pub(super) backend: Option<Spanned<String>>,
    pub(super) resources: Option<ResourcesSchema>,
    pub(super) services: Option<Entries<ServiceSchema>>,
    pub(super) budget: Option<Spanned<Written>>,
    pub(super) cutoff: Option<Spanned<OnSpent>>,
    pub(super) mcp: Option<Spanned<McpSchema>>,
}

/// The key `mcp`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct McpSchema {
    pub(super) agents: Option<Vec<Spanned<String>>>,
    pub(super) bottles: Option<Spanned<u64>>,
    pub(super) access: Option<Access>,
}

/// The key `agent_provider`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderSchema {
    pub(super) template: Option<Spanned<Template>>,
    pub(super) dockerfile: Option<Spanned<String>>,
    pub(super) build_args: Option<Spanned<Entries<String>>>,
    pub(super) build_secrets: Option<Spanned<Entries<String>>>,
    pub(super) image: Option<Spanned<String>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
    pub(super) auth_token: Option<Spanned<String>>,
    pub(super) forward_host_credentials: Option<Spanned<bool>>,
    pub(super) route: Option<Spanned<Narrowing>>,
    pub(super) settings: Option<SettingsLayer>,
}

/// The key `git-gate` of a bottle manifest.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GitGateSchema {
    pub(super) user: Option<UserLayer>,
    pub(super) repos: Option<Spanned<Entries<RepoSchema>>>,
}

/// An entry of `git-gate.repos`. Any field may be missing, because another layer may contain it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RepoSchema {
    pub(super) url: Option<Spanned<String>>,
    pub(super) key: Option<Spanned<KeySchema>>,
    pub(super) host_key: Option<Spanned<String>>,
    pub(super) alias: Option<Spanned<String>>,
    pub(super) refs: Option<Spanned<RefsSchema>>,
    pub(super) on_match: Option<Spanned<OnMatch>>,
    pub(super) stale_ok: Option<Spanned<bool>>,
}

/// The key `git-gate.repos.<name>.key`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeySchema {
    pub(super) provider: KeyProviderSchema,
    pub(super) path: Option<Spanned<String>>,
    pub(super) api_url: Option<Spanned<String>>,
    pub(super) token_ref: Option<Spanned<String>>,
    pub(super) read_only: Option<Spanned<bool>>,
}

/// The key `git-gate.repos.<name>.key.provider`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeyProviderSchema {
    Static,
    Gitea,
    Github,
    Token,
}

/// The key `git-gate.repos.<name>.refs`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefsSchema {
    pub(super) allow: Option<Vec<Spanned<String>>>,
    pub(super) deny: Option<Vec<Spanned<String>>>,
    pub(super) force: Option<bool>,
    pub(super) delete: Option<bool>,
    pub(super) tags: Option<bool>,
}

/// The key `egress`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EgressSchema {
    pub(super) log: Option<Spanned<u64>>,
    pub(super) routes: Option<Vec<Spanned<RouteSpec>>>,
    pub(super) ca_bundle: Option<Spanned<String>>,
    pub(super) upstream_proxy: Option<Spanned<String>>,
}

/// An entry of `services`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceSchema {
    pub(super) command: Option<Spanned<Vec<String>>>,
    pub(super) readiness: Option<Spanned<ReadinessSchema>>,
    pub(super) interval: Option<Spanned<String>>,
    pub(super) timeout: Option<Spanned<String>>,
    pub(super) start_period: Option<Spanned<String>>,
    pub(super) restart: Option<Restart>,
    pub(super) after: Option<Vec<Spanned<String>>>,
}

/// The key `services.<name>.readiness`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadinessSchema {
    pub(super) http: Option<Spanned<String>>,
    pub(super) tcp: Option<Spanned<String>>,
    pub(super) file: Option<Spanned<String>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
}

/// The key `resources`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourcesSchema {
    pub(super) cpus: Option<Spanned<f64>>,
    pub(super) memory: Option<Spanned<String>>,
    pub(super) pids: Option<Spanned<u64>>,
    pub(super) disk: Option<Spanned<String>>,
    pub(super) nested: Option<Spanned<bool>>,
}

/// The key `git-gate.user` of one layer or of an agent manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserLayer {
    /// The key `user.name`. An empty value counts as absent.
    pub name: Option<Spanned<String>>,
    /// The key `user.email`. An empty value counts as absent.
    pub email: Option<Spanned<String>>,
}

/// What the git gate does with a push that has a finding. A push with a known secret is always refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnMatch {
    /// The user decides whether the push may proceed.
    #[default]
    Supervise,
    /// The push is refused.
    Block,
}

/// What the agent of a bottle may do with its children, in addition to starting and stopping them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The agent may list its children, and read their logs, processes and files.
    #[default]
    Read,
    /// In addition, the agent may run commands in its children, send input and signals to their processes, and change
    /// their files.
    Control,
}

/// The kind of agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Template {
    /// Claude Code.
    #[default]
    Claude,
    /// Codex.
    Codex,
    /// Pi.
    Pi,
    /// Any terminal program.
    Command,
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Pi => "pi",
            Self::Command => "command",
        })
    }
}

/// The key `agent_provider.settings` of one layer. All fields except `startup_args` are only for pi.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsLayer {
    /// Arguments that are added after those of the template.
    pub startup_args: Option<Spanned<Vec<String>>>,
    /// The name of the model provider in pi's settings.
    pub provider: Option<Spanned<String>>,
    /// The URL of the model API.
    pub base_url: Option<Spanned<String>>,
    /// The wire format of the model API, for example `anthropic-messages`.
    pub api: Option<Spanned<String>>,
    /// The API key that pi gets in the bottle. Its type is [`Secret`], because a user may write a real key in the
    /// manifest.
    pub api_key: Option<Spanned<Secret>>,
    /// The environment variable from which pi reads its API key in the bottle.
    pub api_key_env: Option<Spanned<String>>,
    /// The ids of the models. Pi uses the first model of the list.
    pub models: Option<Spanned<Vec<String>>>,
    /// The name of the request field that limits the output tokens.
    pub max_tokens_field: Option<Spanned<String>>,
    /// Whether the API accepts the message role `developer`.
    pub supports_developer_role: Option<Spanned<bool>>,
    /// Whether the API accepts the field `reasoning_effort`.
    pub supports_reasoning_effort: Option<Spanned<bool>>,
}
