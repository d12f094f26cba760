//! The schema of manifests: every key of both kinds.
//!
//! These wire types define the keys and the YAML types of their values, and nothing more. [`super::agent`] and
//! [`super::bottle`] convert them to checked values. Routes use the contract's wire type, so that a bottle's
//! `egress.routes` and the generated `routes.yaml` always mean the same.

use bottle_contract::route::{Narrowing, RouteSpec};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::located::Located;
use super::one_or_many::{Entries, OneOrMany};

/// An agent's frontmatter.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentSchema {
    pub(super) bottle: Option<Located<OneOrMany>>,
    pub(super) skills: Option<Vec<Located<String>>>,
    #[serde(rename = "git-gate")]
    pub(super) git_gate: Option<AgentGitGateSchema>,
    // Claude Code's subagent fields (`keys`). A flattened map would accept them all, and every misspelt key too.
    #[serde(rename = "name")]
    _name: Option<IgnoredAny>,
    #[serde(rename = "description")]
    _description: Option<IgnoredAny>,
    #[serde(rename = "tools")]
    _tools: Option<IgnoredAny>,
    #[serde(rename = "disallowedTools")]
    _disallowed_tools: Option<IgnoredAny>,
    #[serde(rename = "model")]
    _model: Option<IgnoredAny>,
    #[serde(rename = "permissionMode")]
    _permission_mode: Option<IgnoredAny>,
    #[serde(rename = "maxTurns")]
    _max_turns: Option<IgnoredAny>,
    #[serde(rename = "mcpServers")]
    _mcp_servers: Option<IgnoredAny>,
    #[serde(rename = "hooks")]
    _hooks: Option<IgnoredAny>,
    #[serde(rename = "memory")]
    _memory: Option<IgnoredAny>,
    #[serde(rename = "background")]
    _background: Option<IgnoredAny>,
    #[serde(rename = "effort")]
    _effort: Option<IgnoredAny>,
    #[serde(rename = "isolation")]
    _isolation: Option<IgnoredAny>,
    #[serde(rename = "color")]
    _color: Option<IgnoredAny>,
    #[serde(rename = "initialPrompt")]
    _initial_prompt: Option<IgnoredAny>,
}

/// `git-gate` in an agent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentGitGateSchema {
    pub(super) user: Option<UserSchema>,
    /// Accepted here so that the error can explain why an agent must not have it.
    pub(super) repos: Option<Located<IgnoredAny>>,
}

/// A bottle's frontmatter.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BottleSchema {
    pub(super) extends: Option<Located<OneOrMany>>,
    pub(super) env: Option<Entries<String>>,
    pub(super) agent_provider: Option<Located<ProviderSchema>>,
    #[serde(rename = "git-gate")]
    pub(super) git_gate: Option<GitGateSchema>,
    pub(super) egress: Option<EgressSchema>,
    pub(super) supervise: Option<Located<bool>>,
    pub(super) backend: Option<Located<String>>,
    pub(super) resources: Option<ResourcesSchema>,
    pub(super) budget: Option<Located<IgnoredAny>>,
    pub(super) cutoff: Option<Located<IgnoredAny>>,
}

/// `agent_provider`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderSchema {
    pub(super) template: Option<Located<TemplateSchema>>,
    pub(super) dockerfile: Option<Located<String>>,
    pub(super) image: Option<Located<String>>,
    pub(super) command: Option<Located<Vec<String>>>,
    pub(super) auth_token: Option<Located<String>>,
    pub(super) forward_host_credentials: Option<Located<bool>>,
    pub(super) route: Option<Located<Narrowing>>,
    pub(super) settings: Option<Located<SettingsSchema>>,
}

/// `agent_provider.template`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TemplateSchema {
    Claude,
    Codex,
    Pi,
    Command,
}

/// `agent_provider.settings`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsSchema {
    pub(super) startup_args: Option<Located<Vec<String>>>,
    pub(super) provider: Option<Located<String>>,
    pub(super) base_url: Option<Located<String>>,
    pub(super) api: Option<Located<String>>,
    pub(super) api_key: Option<Located<String>>,
    pub(super) api_key_env: Option<Located<String>>,
    pub(super) models: Option<Located<Vec<String>>>,
    pub(super) max_tokens_field: Option<Located<String>>,
    pub(super) supports_developer_role: Option<Located<bool>>,
    pub(super) supports_reasoning_effort: Option<Located<bool>>,
}

/// `git-gate` in a bottle.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GitGateSchema {
    pub(super) user: Option<UserSchema>,
    pub(super) repos: Option<Located<Entries<RepoSchema>>>,
}

/// `git-gate.user`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UserSchema {
    pub(super) name: Option<Located<String>>,
    pub(super) email: Option<Located<String>>,
}

/// One entry of `git-gate.repos`; any field may come from another layer.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RepoSchema {
    pub(super) url: Option<Located<String>>,
    pub(super) key: Option<Located<KeySchema>>,
    pub(super) host_key: Option<Located<String>>,
    pub(super) alias: Option<Located<String>>,
    pub(super) refs: Option<Located<RefsSchema>>,
    pub(super) on_match: Option<Located<OnMatchSchema>>,
    pub(super) stale_ok: Option<Located<bool>>,
}

/// `git-gate.repos.<name>.key`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeySchema {
    pub(super) provider: KeyProviderSchema,
    pub(super) path: Option<Located<String>>,
    pub(super) api_url: Option<Located<String>>,
    pub(super) token_ref: Option<Located<String>>,
    pub(super) read_only: Option<Located<bool>>,
}

/// `git-gate.repos.<name>.key.provider`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeyProviderSchema {
    Static,
    Gitea,
    Github,
    Token,
}

/// `git-gate.repos.<name>.refs`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefsSchema {
    pub(super) allow: Option<Vec<Located<String>>>,
    pub(super) deny: Option<Vec<Located<String>>>,
    pub(super) force: Option<bool>,
    pub(super) delete: Option<bool>,
    pub(super) tags: Option<bool>,
}

/// `git-gate.repos.<name>.on_match`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OnMatchSchema {
    Supervise,
    Block,
}

/// `egress`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EgressSchema {
    pub(super) log: Option<Located<u64>>,
    pub(super) routes: Option<Vec<Located<RouteSpec>>>,
    pub(super) ca_bundle: Option<Located<String>>,
    pub(super) upstream_proxy: Option<Located<String>>,
}

/// `resources`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourcesSchema {
    pub(super) cpus: Option<Located<f64>>,
    pub(super) memory: Option<Located<String>>,
    pub(super) pids: Option<Located<u64>>,
    pub(super) disk: Option<Located<String>>,
    pub(super) nested: Option<Located<bool>>,
}
