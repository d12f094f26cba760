//! A bottle's record on disk, `metadata.json`. The file has a schema version.

use std::path::PathBuf;

use bottle_backend::{EngineIdentity, Resource, Sandbox};
use bottle_host::budget::{Declared, OnSpent};
use bottle_host::process::ProcessId;
use bottle_host::{Host, clock};
use bottle_manifest::agent_provider::Template;
use bottle_plan::forge::{Keys, Named};
use bottle_plan::{
    CopiedDirectory, GitIdentity, ImageSource, InRepository, LiveDirectory, Plan, SecretSource,
};
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::{Name, Slug};
use bottle_protocol::session::guest::{Exit, Size};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::repositories::CopiedRepository;
use super::unsaved::Unsaved;

/// The schema version that this program writes. The program reads older versions and refuses newer versions.
pub const SCHEMA: u32 = 1;

/// The content of `metadata.json`. Never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The [`SCHEMA`] of the program that wrote the record.
    pub schema: u32,
    /// The bottle's unique name.
    pub slug: Slug,
    /// The value of `--label`.
    pub label: Option<String>,
    /// The value of `--color-label`.
    pub color: Option<String>,
    /// The agent manifest's name.
    pub agent: Name,
    /// The names of the bottle manifests, in the order in which they are merged.
    pub bottles: Vec<Name>,
    /// The names of all bottle manifests that were merged, including the manifests that other manifests extend, in the
    /// order in which they are merged. Empty in records of older versions.
    #[serde(default)]
    pub lineage: Vec<Name>,
    /// The agent's template. Absent in records of older versions.
    #[serde(default)]
    pub template: Option<Template>,
    /// The id of the bottle's current launch. Absent before the first launch, and in records of older versions.
    #[serde(default)]
    pub run: Option<String>,
    /// The budgets of the current launch, the agent and the bottles, beginning with the nearest scope.
    #[serde(default)]
    pub budget: Vec<Declared>,
    /// What happens in the current launch when a budget is spent. `None` if the settings decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cutoff: Option<OnSpent>,
    /// The working directory of `bottle start`. If the repository that contains this directory was copied instead, the
    /// directory of the repository.
    pub cwd: PathBuf,
    /// The working directory of `bottle start`, relative to the copied repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<PathBuf>,
    /// The directories that were copied into the workspace. The first directory is `cwd`. Empty if at most one
    /// directory was copied, and in records of older versions.
    #[serde(rename = "folders", default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<CopiedDirectory>,
    /// The repositories of the directories that were copied or mounted, as the repositories were at that time. Empty in
    /// records of older versions, and if the files were imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<CopiedRepository>,
    /// Whether the working directory was copied into the bottle.
    pub copied_cwd: bool,
    /// Whether the copy included files that `.gitignore` excludes.
    #[serde(default)]
    pub copied_all: bool,
    /// The author of the agent's commits. Absent in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<GitIdentity>,
    /// The bottle from whose files this bottle was forked.
    #[serde(default)]
    pub forked_from: Option<Slug>,
    /// The client that started the bottle with `bottle mcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The image that the bottle uses instead of the image in its manifest. It is set if the bottle's files were
    /// imported.
    #[serde(default)]
    pub image: Option<ImageSource>,
    /// The backend's name.
    pub backend: String,
    /// The engine that has the bottle's resources and its snapshot. `None` on a backend without an engine, and in
    /// records of older versions.
    #[serde(default)]
    pub engine: Option<EngineIdentity>,
    /// Whether the bottle ends when its client disconnects.
    pub mode: Mode,
    /// The process of the user with which the bottle ends (`--owned`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_with: Option<ProcessId>,
    /// Whether the agent has a pseudo-terminal.
    #[serde(default)]
    pub terminal: bool,
    /// The size of the pseudo-terminal when the bottle ended. `None` while the bottle runs, and in records of older
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal_size: Option<Size>,
    /// The bottle's current phase.
    pub status: Status,
    /// The time at which the launch began.
    pub started_at: Timestamp,
    /// The keeper process, as `pid:start-time`.
    pub keeper: Option<String>,
    /// The directory of the keeper's socket. Absent in records of older versions.
    #[serde(default)]
    pub runtime: Option<PathBuf>,
    /// The backend's resources, in the order of their creation.
    pub resources: Vec<Resource>,
    /// The time at which the workspace was ready for the agent, by the clock that stamps the bottle's files. Changes
    /// after this time are unsaved work.
    #[serde(default)]
    pub workspace_ready: Option<Timestamp>,
    /// The offset of this machine's clock when the workspace was ready, as [`clock::boot_offset`] reports it.
    #[serde(default)]
    pub clock_lead: Option<SignedDuration>,
    /// The time up to which the user has pulled all changes.
    #[serde(default)]
    pub pulled_at: Option<Timestamp>,
    /// Whether an earlier launch kept the layers. The layers are then treated as unsaved work.
    #[serde(default)]
    pub kept: bool,
    /// Why the files or the conversation are kept. `None` while the bottle runs, if only a snapshot is kept, and in
    /// records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_for: Option<KeptFor>,
    /// The paths in the bottle at which the agent stores its conversations.
    #[serde(default)]
    pub transcript: Vec<String>,
    /// Deploy keys to revoke when the bottle ends.
    #[serde(default)]
    pub deploy_keys: Vec<DeployKey>,
    /// Whether the logs stay after the bottle ends, for `bottle learn`.
    #[serde(default)]
    pub learn: bool,
    /// The bottle's sidecars, as the keeper last recorded them.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Why the bottle is locked, so that all its traffic is denied. `None` if it is not locked.
    #[serde(default)]
    pub locked: Option<LockOut>,
    /// Why the bottle is paused because of a budget, as a sentence fragment. `None` if no budget paused the bottle.
    #[serde(default)]
    pub budget_hold: Option<String>,
    /// The user's order for requests to models, given with `bottle budget stop`. `None` if the user gave no order.
    #[serde(default)]
    pub budget_order: Option<OnSpent>,
    /// The commands that the user approved for the current run. A program outside of the bottle asked to run these
    /// commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approved_commands: Vec<ApprovedCommand>,
    /// The exit status of the agent. `None` until the agent has exited.
    #[serde(default)]
    pub agent_exit: Option<Exit>,
    /// Whether another program removed the bottle's files before they could be kept.
    #[serde(default)]
    pub lost: bool,
    /// The disk space that the bottle's files took when it ended. `None` while the bottle runs, and if the space was
    /// not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Measured>,
    /// The inputs of the bottle's sandbox. The inputs are needed to open the bottle's kept files. Absent in records of
    /// older versions.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// The SHA-256 of the resolved manifest, in hexadecimal.
    pub manifest_hash: String,
}

/// A deploy key that was requested from a forge, and that may not be revoked yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployKey {
    /// The repository's name in the manifest.
    pub repo: Name,
    /// The forge API of the repository's keys.
    pub keys: Keys,
    /// The key's title at the forge.
    pub title: String,
    /// The public half of the key.
    pub public: String,
    /// The forge's id of the key. Absent until the forge has answered.
    pub id: Option<u64>,
    /// The source of the forge token.
    pub token: SecretSource,
    /// The value of `egress.ca_bundle`.
    pub ca_bundle: Option<PathBuf>,
}

impl DeployKey {
    pub(super) fn named(&self) -> Named<'_> {
        Named { title: &self.title, public: &self.public, id: self.id }
    }

    /// Returns a description of the key for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("\"{}\" of {} at {}", self.title, self.keys.repository, self.keys.host())
    }
}

/// Why files or the conversation of an ended bottle are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptFor {
    /// The files are kept, because they contain unsaved work.
    Unsaved(Unsaved),
    /// The files are kept, because the agent failed and had a conversation.
    Failure,
    /// The files are kept, because the bottle belongs to a task.
    Task,
    /// Only the copy of the agent's conversation is kept. No file changed.
    Conversation,
}

/// Commands that the user approved: all commands that match the rule and begin with the words of `prefix`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedCommand {
    /// The id of the rule.
    pub rule: String,
    /// The first words of the approved commands.
    pub prefix: Vec<String>,
}

/// The disk space that a bottle's own files took when it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The size in bytes. Files that the bottle shares with other bottles are not included.
    pub bytes: u64,
    /// When the size was measured.
    pub at: Timestamp,
}

/// One of a bottle's sidecars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The sidecar's name: `egress`, `git-gate` or `supervise`.
    pub name: String,
    /// Whether the sidecar runs. If the sidecar does not run, its traffic is blocked.
    pub up: bool,
}

/// Whether a bottle ends when its client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The bottle ends when the client that started it disconnects.
    Attached,
    /// The bottle runs without a client.
    Detached,
}

/// A bottle's phase, as its keeper last recorded it. Only the lock shows whether that keeper still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The bottle is being launched.
    Starting,
    /// The agent runs.
    Running,
    /// The bottle is being torn down.
    Ending,
    /// The bottle ended; only its logs remain.
    Ended,
    /// The bottle ended and has unsaved work, a conversation or a snapshot.
    #[serde(alias = "preserved")]
    Kept,
}

impl Record {
    /// Creates the record of a bottle that is made from this plan. The bottle has no files, engine or keeper yet.
    #[must_use]
    pub fn starting(plan: &Plan, host: &Host) -> Self {
        let identity = plan.identity.clone();
        Self {
            schema: SCHEMA,
            slug: identity.slug,
            label: identity.label,
            color: identity.color,
            agent: identity.agent,
            bottles: identity.bottles,
            lineage: identity.lineage,
            template: identity.template,
            run: None,
            budget: plan.budget.clone(),
            cutoff: plan.cutoff,
            cwd: identity.cwd,
            inside: identity.inside,
            directories: identity.directories,
            repositories: Vec::new(),
            copied_cwd: false,
            copied_all: false,
            author: Some(plan.git_identity.clone()),
            forked_from: None,
            parent: host.parent(),
            image: None,
            backend: plan.backend.clone(),
            engine: None,
            mode: if plan.detached { Mode::Detached } else { Mode::Attached },
            ends_with: plan.ends_with,
            terminal: false,
            terminal_size: None,
            status: Status::Starting,
            started_at: Timestamp::now(),
            keeper: None,
            runtime: Some(host.runtime.clone()),
            resources: Vec::new(),
            workspace_ready: None,
            clock_lead: None,
            pulled_at: None,
            kept: false,
            kept_for: None,
            transcript: plan.transcript.clone(),
            deploy_keys: Vec::new(),
            learn: false,
            services: Vec::new(),
            locked: None,
            budget_hold: None,
            budget_order: None,
            approved_commands: Vec::new(),
            agent_exit: None,
            lost: false,
            size: None,
            sandbox: None,
            manifest_hash: plan.manifest_hash.clone(),
        }
    }

    /// Returns the working directory of `bottle start`.
    #[must_use]
    pub fn start_directory(&self) -> PathBuf {
        self.inside.as_ref().map_or_else(|| self.cwd.clone(), |inside| self.cwd.join(inside))
    }

    /// Returns the repository that was copied instead of the working directory of `bottle start`.
    #[must_use]
    pub fn repository(&self) -> Option<InRepository> {
        self.inside.as_ref().map(|inside| InRepository { top: self.cwd.clone(), inside: inside.clone() })
    }

    /// Returns the directory of the user that is mounted as the workspace.
    #[must_use]
    pub fn live(&self) -> Option<&LiveDirectory> {
        self.sandbox.as_ref()?.live.as_ref()
    }

    /// Whether the bottle ended and only its conversation is kept. `resume` then creates the bottle again with that
    /// conversation.
    #[must_use]
    pub fn has_only_conversation(&self) -> bool {
        self.status == Status::Kept && !self.kept && self.kept_for == Some(KeptFor::Conversation)
    }

    /// Whether the workspace was copied from a repository of the user. The agent's work can then be pulled into that
    /// repository.
    #[must_use]
    pub fn is_of_repository(&self) -> bool {
        self.copied_cwd && !self.repositories.is_empty()
    }

    /// Whether the bottle ended and only its logs remain.
    #[must_use]
    pub fn has_only_logs(&self) -> bool {
        self.status == Status::Ended && self.resources.is_empty() && self.deploy_keys.is_empty()
    }

    /// Whether a new keeper can adopt the bottle: it is detached, it runs, and it is not about to end.
    #[must_use]
    pub fn is_adoptable(&self) -> bool {
        self.mode == Mode::Detached && self.status == Status::Running && self.agent_exit.is_none()
    }

    /// Returns the time after which a change in the workspace is unsaved work. `None` if no agent ran in the workspace.
    /// `offset` is the current offset of this machine's clock. If the clock was set back after the workspace was ready,
    /// new changes may have time stamps before that moment or before a pull. The returned time is then earlier by the
    /// amount by which the clock was set back, and pulls are ignored.
    #[must_use]
    pub fn work_since(&self, offset: SignedDuration) -> Option<Timestamp> {
        let ready = self.changed_since(offset)?;
        Some(match self.set_back(offset) {
            Some(_) => ready,
            None => ready.max(self.pulled_at.unwrap_or(Timestamp::MIN)),
        })
    }

    /// Returns the time after which a change in the workspace was made after the workspace was ready, whether the
    /// change was pulled or not. `offset` is the current offset of this machine's clock, as in [`Record::work_since`].
    #[must_use]
    pub fn changed_since(&self, offset: SignedDuration) -> Option<Timestamp> {
        let ready = self.workspace_ready?;
        let back = self.set_back(offset).unwrap_or_default();
        Some(ready.checked_sub(back).unwrap_or(Timestamp::MIN))
    }

    /// Returns how far the clock was set back since the workspace was ready. `None` if the clock was not set back.
    #[must_use]
    pub fn set_back(&self, offset: SignedDuration) -> Option<SignedDuration> {
        clock::set_back(self.clock_lead?, offset)
    }
}
