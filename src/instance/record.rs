//! `metadata.json`, a bottle's record on disk. A wire type: converted at the edge, versioned.

use std::path::PathBuf;

use bottle_contract::lock_out::LockOut;
use bottle_contract::names::{Name, Slug};
use bottle_contract::session::guest::Exit;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::backend::Resource;
use crate::forge::{Keys, Named};
use crate::host::clock;
use crate::plan::SecretSource;

/// The schema this program writes. A newer one is refused, an older one is read.
pub const SCHEMA: u32 = 1;

/// `metadata.json`. Never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
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
    /// Whether that directory was copied into the bottle.
    pub copied_cwd: bool,
    /// Whether the copy included files that `.gitignore` excludes.
    #[serde(default)]
    pub copied_all: bool,
    /// The backend's name.
    pub backend: String,
    /// Whether it ends with its client.
    pub mode: Mode,
    /// Whether its agent has a pseudo-terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Its phase.
    pub status: Status,
    /// When the launch began.
    pub started_at: Timestamp,
    /// The keeper, as `pid:start-time`.
    pub keeper: Option<String>,
    /// The folder of its keeper's socket; absent in records of older versions.
    #[serde(default)]
    pub runtime: Option<PathBuf>,
    /// The backend's resources, in the order of their creation.
    pub resources: Vec<Resource>,
    /// When the workspace was ready for the agent, by the clock that stamps files; later changes are work.
    #[serde(default)]
    pub workspace_ready: Option<Timestamp>,
    /// The offset of this machine's clock at that moment, as [`clock::boot_offset`] reports it.
    #[serde(default)]
    pub clock_lead: Option<SignedDuration>,
    /// Changes up to this time were pulled.
    #[serde(default)]
    pub pulled_at: Option<Timestamp>,
    /// Whether an earlier launch preserved the layers; they then count as work.
    #[serde(default)]
    pub kept: bool,
    /// Paths in the bottle with the agent's conversations.
    #[serde(default)]
    pub transcript: Vec<String>,
    /// Deploy keys to revoke when it ends.
    #[serde(default)]
    pub deploy_keys: Vec<DeployKey>,
    /// Whether its logs stay for `bottle learn`.
    #[serde(default)]
    pub learn: bool,
    /// Its sidecars, as the keeper last knew them.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Why it is locked; all its traffic is then denied.
    #[serde(default)]
    pub locked: Option<LockOut>,
    /// The agent's exit, after it ended.
    #[serde(default)]
    pub agent_exit: Option<Exit>,
    /// SHA-256 of the resolved manifest, hex.
    pub manifest_hash: String,
}

/// A key that was requested from a forge and is not known to be revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeployKey {
    /// The repository's name in the manifest.
    pub repo: Name,
    /// The repository's keys API.
    pub keys: Keys,
    /// Its title there.
    pub title: String,
    /// Its public half.
    pub public: String,
    /// The forge's id for it; absent until the forge answered.
    pub id: Option<u64>,
    /// The source of the token.
    pub token: SecretSource,
    /// `egress.ca_bundle`.
    pub ca_bundle: Option<PathBuf>,
}

impl DeployKey {
    pub(super) fn named(&self) -> Named<'_> {
        Named { title: &self.title, public: &self.public, id: self.id }
    }

    /// A description for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("\"{}\" of {} at {}", self.title, self.keys.repository, self.keys.host())
    }
}

/// One of a bottle's sidecars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `egress`, `git-gate`, `supervise`.
    pub name: String,
    /// Whether it runs; the traffic of one that does not is blocked.
    pub up: bool,
}

/// Whether a bottle ends with its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It ends with the client that started it.
    Attached,
    /// It runs without a client.
    Detached,
}

/// A bottle's phase, as its keeper last wrote it. Only the lock shows whether that keeper still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Being launched.
    Starting,
    /// The agent runs.
    Running,
    /// Being torn down.
    Ending,
    /// Ended; only its logs remain.
    Ended,
    /// Ended, with unsaved work or a snapshot.
    Preserved,
}

impl Record {
    /// Whether the bottle ended and only its logs remain.
    #[must_use]
    pub fn has_only_logs(&self) -> bool {
        self.status == Status::Ended && self.resources.is_empty() && self.deploy_keys.is_empty()
    }

    /// Whether a new keeper can adopt the bottle: it is detached, running, and not about to end.
    #[must_use]
    pub fn is_adoptable(&self) -> bool {
        self.mode == Mode::Detached && self.status == Status::Running && self.agent_exit.is_none()
    }

    /// The time after which a change in the workspace counts as unsaved work; absent when no agent ran in it.
    /// `offset` is the clock's current offset. If the clock was set back, changes may have older time stamps, also
    /// older than a pull: the time then moves back by as much, and pulls do not count.
    #[must_use]
    pub fn work_since(&self, offset: SignedDuration) -> Option<Timestamp> {
        let ready = self.workspace_ready?;
        Some(match self.set_back(offset) {
            Some(back) => ready.checked_sub(back).unwrap_or(Timestamp::MIN),
            None => ready.max(self.pulled_at.unwrap_or(Timestamp::MIN)),
        })
    }

    /// How far the clock was set back since the workspace was ready.
    #[must_use]
    pub fn set_back(&self, offset: SignedDuration) -> Option<SignedDuration> {
        clock::set_back(self.clock_lead?, offset)
    }
}
