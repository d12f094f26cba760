//! Builds a [`Plan`] from a resolved manifest, the user's flags and facts about the host. A plan is complete,
//! immutable and deterministic.
//!
//! The plan contains everything that a launch needs, except the values of secrets: it refers to secrets by id. The
//! client builds the plan, shows it to the user, and sends it to the keeper. The keeper launches the plan without
//! changes.

pub mod build;
mod ceiling;
mod directories;
pub mod forge;
mod git_gate;
mod image;
mod live;
mod login;
mod secret_needs;
pub mod secrets;
pub mod sensitive_env;
mod slug;
mod unlimited;

pub use build::{Flags, InRepository, PlanError, build};
pub use ceiling::Ceiling;
pub use directories::{CopiedDirectory, GitDirectory};
pub use git_gate::{HostKeyError, KnownHosts, PlannedKey, PlannedRepo};
pub use image::DockerfileError;
pub use live::LiveDirectory;
pub use login::{ChosenForm, Unsettled};
pub use secret_needs::source_of;
pub use slug::slug;
pub use unlimited::ineffective_budget;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bottle_host::budget::{Declared, OnSpent};
use bottle_host::process::ProcessId;
use bottle_host::settings::Waits;
use bottle_manifest::agent_provider::Template;
use bottle_manifest::mcp::ChildRules;
use bottle_policy::names::{Name, Slug};
use bottle_policy::route::RouteTable;
use bottle_protocol::session::bundle::{Limits, LogLevel, ModelRules};
use bottle_protocol::session::guest::Size;
use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::Service;
use serde::{Deserialize, Serialize};

/// A completely specified launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The bottle's names and working directory. The bottle's record also contains these values.
    pub identity: Identity,
    /// The backend's name.
    pub backend: String,
    /// The source of the bottle's file system, for backends that use images.
    pub image: ImageSource,
    /// Whether an image that exists on the engine is renewed.
    #[serde(default)]
    pub renewal: Renewal,
    /// The workspace's initial content.
    pub workspace: Workspace,
    /// The directory of the user that is mounted as the workspace (`--cwd=live`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveDirectory>,
    /// The git directories outside of the copied directories that the user confirmed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub git_directories: Vec<GitDirectory>,
    /// The user's own git ignore file, whose rules apply to copied directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ignore_file: Option<PathBuf>,
    /// The agent's process.
    pub agent: AgentProcess,
    /// The bottle's environment variables, in addition to the variables that every bottle has.
    pub env: BTreeMap<String, Value>,
    /// The bottle's files, in addition to the files that every bottle has. The files contain no secrets.
    pub files: Vec<PlannedFile>,
    /// The author of the agent's commits.
    pub git_identity: GitIdentity,
    /// The paths in the bottle that contain the agent's conversations
    /// ([`bottle_manifest::provider::Provider::transcript`]).
    pub transcript: Vec<String>,
    /// The configuration of the egress proxy.
    pub egress: Egress,
    /// The repositories of the git gate. If the list is empty, the bottle has no git gate.
    #[serde(default)]
    pub repos: Vec<PlannedRepo>,
    /// The part of the bottle's system-wide git configuration for the repositories in [`Plan::repos`].
    #[serde(default)]
    pub git_repos: String,
    /// Whether the user can answer proposals while the bottle runs.
    #[serde(default)]
    pub supervise: bool,
    /// Whether denied requests are logged for `bottle learn`. The log is then kept when the bottle ends.
    #[serde(default)]
    pub learn: bool,
    /// How long proposals wait for the user's answer.
    #[serde(default)]
    pub waits: Waits,
    /// The placeholders that the agent gets instead of credentials. Placeholders grant no access, so the scanner does
    /// not block them.
    #[serde(default)]
    pub placeholders: Vec<String>,
    /// The part of the plan that depends on the value of a secret. [`Plan::settle`] resolves it.
    pub unsettled: Option<Unsettled>,
    /// All secrets of this launch, without their values. The launch order, which the client sends to the keeper,
    /// contains the values.
    pub secrets: Vec<SecretNeed>,
    /// The resource limits of the bottle.
    pub resources: Resources,
    /// The services that must be ready before the agent starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<PlannedService>,
    /// The budgets of the launch, the agent and the bottles, the narrowest scope first. The budgets of `$BOTTLE_HOME`
    /// are in the settings, which may change during the launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budget: Vec<Declared>,
    /// What happens when a budget is spent. If `None`, the settings decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cutoff: Option<OnSpent>,
    /// Which bottles the agent may start. `None` if the agent may start no bottle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<ChildRules>,
    /// Whether the bottle continues to run when its client disconnects.
    pub detached: bool,
    /// The process of the user with which the bottle ends. If `None`, the bottle does not end with a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_with: Option<ProcessId>,
    /// The SHA-256 hash of the resolved manifest, in hexadecimal.
    pub manifest_hash: String,
    /// The resolved manifest as [`bottle_manifest::resolve::comparable`] renders it. `bottle resume` uses this text to
    /// show changes.
    pub manifest: String,
}

impl Plan {
    /// Returns the bottle's system-wide git configuration. The agent's own configuration, a repository's configuration
    /// and an image's `/etc/gitconfig` take precedence over the system-wide configuration.
    #[must_use]
    pub fn git_system_config(&self) -> String {
        format!("{}{}[include]\n\tpath = /etc/gitconfig\n", self.git_repos, self.git_identity.config())
    }

    /// Whether the launch registers deploy keys at a forge.
    #[must_use]
    pub fn has_deploy_keys(&self) -> bool {
        self.repos.iter().any(|repo| matches!(repo.key, PlannedKey::Deploy { .. }))
    }
}

/// The bottle's names and working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The slug, which is the bottle's unique name.
    pub slug: Slug,
    /// The value of `--label`.
    pub label: Option<String>,
    /// The value of `--color-label`.
    pub color: Option<String>,
    /// The name of the agent manifest.
    pub agent: Name,
    /// The names of the bottle manifests, in the order in which they are merged.
    pub bottles: Vec<Name>,
    /// The names of all bottle manifests that were merged, including manifests that other manifests extend, in the
    /// order in which they are merged.
    #[serde(default)]
    pub lineage: Vec<Name>,
    /// The agent's template.
    #[serde(default)]
    pub template: Option<Template>,
    /// The directory in which `bottle start` was run, or the repository that contains it if the repository was copied
    /// instead.
    pub cwd: PathBuf,
    /// The directory in which `bottle start` was run, relative to the copied repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<PathBuf>,
    /// The directories that are copied into the workspace. The first directory is `cwd`. Empty if at most one directory
    /// is copied, because that directory is then the workspace itself.
    #[serde(rename = "folders", default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<CopiedDirectory>,
}

impl Identity {
    /// Returns the directory in which the agent starts, relative to the workspace. `None` for the workspace itself.
    #[must_use]
    pub fn start_directory(&self) -> Option<&Path> {
        self.inside.as_deref().filter(|_| self.directories.is_empty())
    }
}

/// The source of the bottle's file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSource {
    /// The provider's stage of `Dockerfile.agent`.
    Provider(Template),
    /// The Dockerfile named by `agent_provider.dockerfile`.
    Dockerfile {
        /// The path, relative to `$BOTTLE_HOME`, for messages.
        path: PathBuf,
        /// The text of the Dockerfile. The plan contains the text so that the build uses the same text that the user
        /// was shown.
        text: String,
        /// `agent_provider.build_args`, by name.
        #[serde(default)]
        args: BTreeMap<String, String>,
        /// `agent_provider.build_secrets`. The keys are the ids that the Dockerfile uses. The values are ids in
        /// [`Plan::secrets`].
        #[serde(default)]
        secrets: BTreeMap<String, String>,
    },
    /// An image reference in `agent_provider.image`.
    Reference(String),
    /// A directory or archive in `agent_provider.image`: its path, relative to `$BOTTLE_HOME`.
    Path(PathBuf),
    /// The backend's name for an image that was imported together with a bottle. Manifests cannot name such an image.
    Imported(String),
}

/// Whether an image that exists on the engine is renewed before the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// `--pull`: fetches a newer image of the same name from the registry.
    pub pull: bool,
    /// `--rebuild`: builds the image again, without a build cache.
    pub rebuild: bool,
}

/// The initial content of the workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workspace {
    /// The workspace is empty.
    #[default]
    Empty,
    /// A copy of the working directory, without files that `.gitignore` excludes.
    Copy,
    /// A copy of the whole working directory.
    CopyAll,
    /// A copy of the whole working directory without its git repository. The repository comes from the snapshot from
    /// which this bottle starts.
    Files,
    /// A copy of the git repository of [`Plan::live`]. The copy has no working tree, because the user's working tree is
    /// mounted.
    Repository,
}

/// The agent's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProcess {
    /// The program and its arguments. In the arguments, `{task}`, `{task_file}` and `{prompt_file}` are replaced.
    pub argv: Vec<String>,
    /// The size of the agent's terminal. `None` if the agent runs on pipes.
    pub terminal: Option<Size>,
    /// Whether the client's standard input is forwarded to the agent.
    pub stdin: bool,
    /// The prompt: the body of the agent manifest.
    pub prompt: Option<String>,
    /// The task given with `-p`.
    pub task: Option<String>,
}

/// A value, which is either literal or the id of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// A literal value from the manifest.
    Literal(String),
    /// The value of the secret with this id.
    Secret(String),
}

/// A file that the launch creates in the bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// The absolute path of the file in the bottle.
    pub path: String,
    /// The permission bits of the file.
    pub mode: u32,
    /// The content of the file.
    pub content: Vec<u8>,
}

/// The egress proxy's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// The routes, in which a slot replaces each secret reference.
    pub routes: RouteTable,
    /// `egress.log`.
    pub log: LogLevel,
    /// `logs.keep`: the maximum size of the log in bytes.
    pub log_keep: u64,
    /// `egress.body_limit` and `egress.spool_quota`.
    #[serde(default)]
    pub limits: Limits,
    /// The settings `metering`.
    #[serde(alias = "gate")]
    #[serde(default)]
    pub metering: ModelRules,
    /// `egress.ca_bundle`: a path on the host, which is read at launch.
    pub ca_bundle: Option<PathBuf>,
    /// `egress.upstream_proxy`. The value is a secret if the URL may contain a password.
    pub upstream_proxy: Option<Value>,
}

/// The author of the agent's commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitIdentity {
    /// `user.name`.
    pub name: GitField,
    /// `user.email`.
    pub email: GitField,
}

/// One field of a [`GitIdentity`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitField {
    /// The value, without control characters.
    pub value: String,
    /// Where the value comes from.
    pub source: GitFieldSource,
}

/// Where a field of a [`GitIdentity`] comes from. An earlier variant takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GitFieldSource {
    /// `git-gate.user` of a manifest.
    Manifest,
    /// The user's git configuration for the copied working directory.
    Copied,
    /// The default, which contains the agent's name.
    Default,
}

impl GitIdentity {
    /// Returns the git configuration with the author.
    fn config(&self) -> String {
        let (name, email) = (build::quoted(&self.name.value), build::quoted(&self.email.value));
        format!("[user]\n\tname = {name}\n\temail = {email}\n")
    }

    /// Returns the variables that make the fields of a manifest take precedence over a repository's configuration. The
    /// repository can be a copy of the user's repository.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let fields = [("user.name", &self.name), ("user.email", &self.email)];
        let fixed = fields.into_iter().filter(|(_, field)| field.source == GitFieldSource::Manifest);
        let mut variables = Vec::new();
        for (number, (key, field)) in fixed.enumerate() {
            variables.push((format!("GIT_CONFIG_KEY_{number}"), key.to_owned()));
            variables.push((format!("GIT_CONFIG_VALUE_{number}"), field.value.clone()));
        }
        if !variables.is_empty() {
            variables.push(("GIT_CONFIG_COUNT".to_owned(), (variables.len() / 2).to_string()));
        }
        variables
    }
}

/// A secret that the launch needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretNeed {
    /// The id of the secret in the plan and in the launch order. For a credential, the id is the name of its
    /// slot.
    pub id: String,
    /// Where the value comes from.
    pub source: SecretSource,
    /// The purpose of the secret, which prompts and errors show, for example `egress route api.example.com`.
    pub purpose: String,
    /// For a login with several forms: the form that its value has. [`Plan::settle`] sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<ChosenForm>,
}

/// The source of a secret's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretSource {
    /// The value of an environment variable of the host.
    Env(String),
    /// The content of a file on the host.
    File(PathBuf),
    /// The password of the keychain item with this service name, which only macOS can read.
    Keychain(String),
    /// The output of a command on the host.
    Command(Vec<String>),
    /// The answer of the user to a prompt on the terminal with this text.
    Prompt(String),
    /// The agent's login, for which the manifest names no source. The value is the answer of the user to a prompt on
    /// the terminal with this text.
    Login(String),
    /// A part of the user's codex login on the host.
    CodexLogin {
        /// The path of the login file.
        file: PathBuf,
        /// Which part of the login is used.
        part: CodexPart,
    },
}

/// A part of a codex login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodexPart {
    /// The credential.
    AccessToken,
    /// The id of the account, which is not secret.
    AccountId,
}

/// A service of a bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedService {
    /// The service.
    pub service: Service,
    /// The services that must be ready before this service starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<ProcessName>,
}

/// The resource limits of a bottle. If a limit is absent, the backend's default applies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resources {
    /// The maximum number of processors that the bottle's processes may use together, in thousandths of a processor.
    pub cpus: Option<u32>,
    /// The maximum memory that the bottle's processes may use together, in bytes.
    pub memory: Option<u64>,
    /// The maximum number of the bottle's processes and threads.
    pub pids: Option<u64>,
    /// The maximum total size of the files that the bottle writes, in bytes.
    pub disk: Option<u64>,
    /// Whether processes in the bottle may create user namespaces.
    pub nested: bool,
}
