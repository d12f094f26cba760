//! What may be written in a manifest: every key of both kinds.
//!
//! These are wire types: they say which keys exist and of which YAML type their values are, and nothing
//! more. [`super::agent`] and [`super::bottle`] turn them into checked values. Routes are the
//! contract's own wire type, so that a bottle's `egress.routes` and the generated `routes.yaml` can
//! never come to mean different things.

use std::fmt;
use std::marker::PhantomData;

use bottle_contract::route::{Narrowing, RouteSpec};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::located::Located;

/// An agent's frontmatter.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentSchema {
    pub(super) bottle: Option<Located<OneOrMany>>,
    pub(super) skills: Option<Vec<Located<String>>>,
    #[serde(rename = "git-gate")]
    pub(super) git_gate: Option<AgentGitGateSchema>,
    // Claude Code's own subagent fields: see `SUBAGENT_KEYS`. A flattened map would take them all in,
    // and every misspelt key with them.
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

/// The fields of Claude Code's subagent files, accepted and ignored so that one file can serve both.
const SUBAGENT_KEYS: &[&str] = &[
    "name",
    "description",
    "tools",
    "disallowedTools",
    "model",
    "permissionMode",
    "maxTurns",
    "mcpServers",
    "hooks",
    "memory",
    "background",
    "effort",
    "isolation",
    "color",
    "initialPrompt",
];

/// Keys of a bottle that are refused until something enforces them.
const LATER_KEYS: &[&str] = &["budget", "cutoff"];

/// The keys of a bottle that people try in an agent.
const BOTTLE_KEYS: &[&str] =
    &["extends", "env", "agent_provider", "egress", "supervise", "backend", "resources", "budget", "cutoff"];

/// `git-gate` in an agent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentGitGateSchema {
    pub(super) user: Option<UserSchema>,
    /// Known, so that the error can say why it may not stand here.
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

/// One entry of `git-gate.repos`; every field may come from another layer.
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

/// A string, or a list of strings.
#[derive(Debug)]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<Located<String>>),
}

impl OneOrMany {
    /// Both forms as the list they mean.
    pub(super) fn into_list(this: Located<Self>) -> Vec<Located<String>> {
        match this.value {
            Self::One(only) => vec![Located::new(only, this.at)],
            Self::Many(list) => list,
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;

        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a list of names")
            }

            fn visit_str<E>(self, only: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany::One(only.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(OneOrMany::Many(list))
            }
        }

        deserializer.deserialize_any(NamesVisitor)
    }
}

/// A map with names of the person's choosing, in the order of the file.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(Located<String>, Located<T>)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

/// The keys worth offering out of those that are known: not what is tolerated, nor what must wait.
pub(super) fn offered_keys(known: &[&'static str]) -> Vec<&'static str> {
    let agent = known.contains(&"skills");
    let hidden = |key: &str| {
        if agent { SUBAGENT_KEYS.contains(&key) } else { LATER_KEYS.contains(&key) }
    };
    known.iter().copied().filter(|key| !hidden(key)).collect()
}

/// What to say about a key that belongs in the other kind of manifest, at the root of a file.
pub(super) fn misplaced_key(path: &str, key: &str, known: &[&str]) -> Option<&'static str> {
    if !path.is_empty() {
        return None;
    }
    let agent = known.contains(&"skills");
    if agent && BOTTLE_KEYS.contains(&key) {
        Some(
            "it belongs in a bottle: an agent says who works, and may come from a project, which must not say what the agent may reach",
        )
    } else if !agent && key == "bottle" {
        Some("a bottle takes over others with `extends`")
    } else if !agent && key == "skills" {
        Some("skills belong in an agent")
    } else {
        None
    }
}
