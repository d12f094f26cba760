//! Builds a [`Plan`] from a resolved manifest, flags and host facts: complete, immutable, deterministic.
//!
//! The plan has everything that a launch needs, except secret values: it names secrets by id. The client builds the
//! plan, shows it, and sends it to the keeper, which launches exactly it.

pub mod build;
mod gate;
mod image;
mod login;
mod secrets;
pub mod sensitive_env;
mod slug;

pub use build::{Flags, PlanError, build};
pub use gate::{HostKeyError, KnownHosts, PlannedKey, PlannedRepo};
pub use image::DockerfileError;
pub use login::Unsettled;
pub use slug::slug;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_contract::names::{Name, Slug};
use bottle_contract::route::RouteTable;
use bottle_contract::session::bundle::{Limits, LogLevel};
use bottle_contract::session::guest::Size;
use serde::{Deserialize, Serialize};

use crate::host::settings::Waits;
use crate::manifest::provider::Template;

/// A launch, fully specified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Names and working directory, as in the record.
    pub identity: Identity,
    /// The backend's name.
    pub backend: String,
    /// The source of the bottle's file system, for backends that use images.
    pub image: ImageSource,
    /// The workspace's initial content.
    pub workspace: Workspace,
    /// The agent's process.
    pub agent: AgentProcess,
    /// The bottle's environment, besides that of every bottle.
    pub env: BTreeMap<String, Value>,
    /// The bottle's files, besides those of every bottle; never secret.
    pub files: Vec<PlannedFile>,
    /// Paths in the bottle with the agent's conversations ([`crate::provider::Provider::transcript`]).
    pub transcript: Vec<String>,
    /// The egress proxy.
    pub egress: Egress,
    /// The repositories of the git gate; without any there is no gate.
    #[serde(default)]
    pub repos: Vec<PlannedRepo>,
    /// Whether the user can answer proposals while the bottle runs.
    #[serde(default)]
    pub supervise: bool,
    /// Whether denied requests are logged for `bottle learn`; the log then outlives the bottle.
    #[serde(default)]
    pub learn: bool,
    /// How long proposals wait for the user.
    #[serde(default)]
    pub waits: Waits,
    /// The agent's placeholders for credentials. They grant no access, so they may be sent anywhere.
    #[serde(default)]
    pub placeholders: Vec<String>,
    /// The part that depends on a secret's value; [`Plan::settle`] resolves it.
    pub unsettled: Option<Unsettled>,
    /// Every secret of this launch, without its value, which is in the launch order.
    pub secrets: Vec<SecretNeed>,
    /// Limits.
    pub resources: Resources,
    /// Whether the bottle keeps running when its client disconnects.
    pub detached: bool,
    /// SHA-256 of the resolved manifest, hex.
    pub manifest_hash: String,
    /// The resolved manifest from [`crate::resolve::comparable`], so that a resume can report changes.
    pub manifest: String,
}

impl Plan {
    /// Whether the launch registers deploy keys.
    #[must_use]
    pub fn has_deploy_keys(&self) -> bool {
        self.repos.iter().any(|repo| matches!(repo.key, PlannedKey::Deploy { .. }))
    }
}

/// The bottle's names and working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The bottle's unique name.
    pub slug: Slug,
    /// As given with `--label`.
    pub label: Option<String>,
    /// As given with `--color-label`.
    pub color: Option<String>,
    /// The agent manifest's name.
    pub agent: Name,
    /// The bottle manifests, in the order of their merge.
    pub bottles: Vec<Name>,
    /// The working directory of `bottle start`.
    pub cwd: PathBuf,
}

/// The source of the bottle's file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSource {
    /// The provider's stage of `Dockerfile.agent`.
    Provider(Template),
    /// `agent_provider.dockerfile`.
    Dockerfile {
        /// The path, relative to `$BOTTLE_HOME`, for messages.
        path: PathBuf,
        /// Its text, so that the built text is the one that was shown.
        text: String,
    },
    /// `agent_provider.image`, by its reference.
    Reference(String),
    /// `agent_provider.image`, a folder or an archive: its path, relative to `$BOTTLE_HOME`.
    Path(PathBuf),
}

/// The workspace's initial content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workspace {
    /// Nothing.
    #[default]
    Empty,
    /// The working directory without files ignored by `.gitignore`.
    Copy,
    /// The whole working directory.
    CopyAll,
}

/// The agent's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProcess {
    /// Program and arguments, every placeholder replaced.
    pub argv: Vec<String>,
    /// A terminal of this size, or pipes.
    pub terminal: Option<Size>,
    /// Whether the client's standard input is forwarded to it.
    pub stdin: bool,
    /// The manifest's body.
    pub prompt: Option<String>,
    /// `-p`.
    pub task: Option<String>,
}

/// A literal value, or the id of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Written in the manifest.
    Literal(String),
    /// The secret of this id.
    Secret(String),
}

/// A file of the bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// Absolute path in the bottle.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The bytes.
    pub content: Vec<u8>,
}

/// The egress proxy's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// The routes, with slots in place of references.
    pub routes: RouteTable,
    /// `egress.log`.
    pub log: LogLevel,
    /// `logs.keep`: most bytes of the log.
    pub log_keep: u64,
    /// `egress.body_limit` and `egress.spool_quota`.
    #[serde(default)]
    pub limits: Limits,
    /// `egress.ca_bundle`: a path of the host, read at launch.
    pub ca_bundle: Option<PathBuf>,
    /// `egress.upstream_proxy`; a secret when the URL may carry a password.
    pub upstream_proxy: Option<Value>,
}

/// A secret that the launch needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretNeed {
    /// Its id in the plan and the launch order; for credentials the slot.
    pub id: String,
    /// The source of its value.
    pub source: SecretSource,
    /// Its purpose, for the prompt and for errors (`egress route api.example.com`).
    pub purpose: String,
}

/// The source of a secret's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretSource {
    /// A host variable.
    Env(String),
    /// A host file.
    File(PathBuf),
    /// A command's output.
    Command(Vec<String>),
    /// Prompted on the terminal with this text.
    Prompt(String),
    /// The agent's login, which the manifest does not name: prompted on the terminal with this text.
    Login(String),
    /// A part of codex's login on the host.
    CodexLogin {
        /// The file.
        file: PathBuf,
        /// The part.
        part: CodexPart,
    },
}

/// A part of codex's login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodexPart {
    /// The credential.
    AccessToken,
    /// The account's id, which is not secret.
    AccountId,
}

/// Limits of a bottle; absent means the backend's default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Processors, in thousandths.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes.
    pub pids: Option<u64>,
    /// Bytes of disk.
    pub disk: Option<u64>,
    /// Whether processes in the bottle may create user namespaces.
    pub nested: bool,
}
