//! Resolved manifest + flags + host facts → [`Plan`]: complete, immutable, and the same for the same input.
//!
//! Everything that a launch needs to know and that is not secret stands here; secrets are named, never
//! held. The client makes the plan, shows it, and hands it to the keeper, which launches exactly it.

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
use bottle_contract::session::bundle::{Limits, LogLevel};
use bottle_contract::session::guest::Size;
use serde::{Deserialize, Serialize};

use crate::host::settings::Waits;
use crate::manifest::provider::Template;

/// What will be launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Who and where, as the record keeps it.
    pub identity: Identity,
    /// The backend's name.
    pub backend: String,
    /// What the bottle's file system is made of, where the backend makes it of an image.
    pub image: ImageSource,
    /// What the workspace holds at the start.
    pub workspace: Workspace,
    /// The agent's process.
    pub agent: AgentProcess,
    /// Environment of everything in the bottle, beside what every bottle has.
    pub env: BTreeMap<String, Value>,
    /// Files of the bottle, beside what every bottle has; never secret.
    pub files: Vec<PlannedFile>,
    /// Files and folders inside with the agent's conversations: see [`crate::provider::Provider::transcript`].
    pub transcript: Vec<String>,
    /// The proxy.
    pub egress: Egress,
    /// The repositories of the git gate; none: there is no gate.
    #[serde(default)]
    pub repos: Vec<PlannedRepo>,
    /// Whether a user can be asked while the bottle runs.
    #[serde(default)]
    pub supervise: bool,
    /// Whether what is refused is learned from: it is logged, and the log outlives the bottle.
    #[serde(default)]
    pub learn: bool,
    /// How long they are waited for.
    #[serde(default)]
    pub waits: Waits,
    /// What the agent holds in place of credentials: it opens nothing, so that it may go anywhere.
    #[serde(default)]
    pub placeholders: Vec<String>,
    /// What waits for the value of a secret: [`Plan::settle`].
    pub unsettled: Option<Unsettled>,
    /// Every secret of this launch, by name; the launch order carries the values.
    pub secrets: Vec<SecretNeed>,
    /// Limits.
    pub resources: Resources,
    /// Whether the bottle lives on when its client goes away.
    pub detached: bool,
    /// SHA-256 of the resolved manifest, hex.
    pub manifest_hash: String,
    /// The resolved manifest as [`crate::resolve::comparable`] has it; kept, so that a resume can say what
    /// changed since.
    pub manifest: String,
}

impl Plan {
    /// Whether a forge is asked for keys at launch.
    #[must_use]
    pub fn has_deploy_keys(&self) -> bool {
        self.repos.iter().any(|repo| matches!(repo.key, PlannedKey::Deploy { .. }))
    }
}

/// Who and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The bottle's name in everything.
    pub slug: Slug,
    /// As given with `--label`.
    pub label: Option<String>,
    /// As given with `--color-label`.
    pub color: Option<String>,
    /// The agent.
    pub agent: Name,
    /// The bottles, in the order they were folded.
    pub bottles: Vec<Name>,
    /// The directory `bottle` was started in.
    pub cwd: PathBuf,
}

/// What the bottle's file system is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSource {
    /// The provider's own part of `Dockerfile.agent`.
    Provider(Template),
    /// `agent_provider.dockerfile`.
    Dockerfile {
        /// The path, relative to `$BOTTLE_HOME`: what it is called in messages.
        path: PathBuf,
        /// What it says, so that what was shown is what is built.
        text: String,
    },
    /// `agent_provider.image`, by its reference.
    Reference(String),
    /// `agent_provider.image`, a folder or an archive: its path, relative to `$BOTTLE_HOME`.
    Path(PathBuf),
}

/// What the workspace holds at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workspace {
    /// Nothing.
    Empty,
    /// The working directory without what `.gitignore` leaves out.
    Copy,
    /// The working directory, all of it.
    CopyAll,
}

/// The agent's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProcess {
    /// Program and arguments, every placeholder replaced.
    pub argv: Vec<String>,
    /// A terminal of this size, or pipes.
    pub terminal: Option<Size>,
    /// Whether the client's standard input goes to it.
    pub stdin: bool,
    /// The manifest's body.
    pub prompt: Option<String>,
    /// `-p`.
    pub task: Option<String>,
}

/// A value that is written in the manifest, or the name of a secret.
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
    /// Absolute path inside.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// The bytes.
    pub content: Vec<u8>,
}

/// The proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// `routes.yaml`, runtime form.
    pub routes: String,
    /// `egress.log`.
    pub log: LogLevel,
    /// `logs.keep`: bytes of log kept.
    pub log_keep: u64,
    /// `egress.body_limit` and `egress.spool_quota`.
    #[serde(default)]
    pub limits: Limits,
    /// `egress.ca_bundle`: a path of the host, read at launch.
    pub ca_bundle: Option<PathBuf>,
    /// `egress.upstream_proxy`; a secret when the URL may carry a password.
    pub upstream_proxy: Option<Value>,
}

/// A secret this launch needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretNeed {
    /// How plan and launch order name it; for credentials the slot.
    pub id: String,
    /// Where its value comes from.
    pub source: SecretSource,
    /// What it is for, in words for the prompt and for errors (`egress route api.example.com`).
    pub purpose: String,
}

/// Where a secret's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretSource {
    /// A variable of the host.
    Env(String),
    /// A file of the host.
    File(PathBuf),
    /// A command's output.
    Command(Vec<String>),
    /// Asked for on the terminal, with this text.
    Prompt(String),
    /// The agent's login, which the manifest does not name: asked for on the terminal, with this text.
    Login(String),
    /// A part of codex's own login on the host, in this file.
    CodexLogin {
        /// The file.
        file: PathBuf,
        /// The part.
        part: CodexPart,
    },
}

/// A part of codex's own login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodexPart {
    /// The credential.
    AccessToken,
    /// The id of the account that it belongs to; no credential.
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
    /// Whether own user namespaces may be made inside.
    pub nested: bool,
}
