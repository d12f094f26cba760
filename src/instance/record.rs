//! `metadata.json`: what is known of a bottle on disk. A wire type: converted at the edge, versioned.

use std::path::PathBuf;

use bottle_contract::lock_out::LockOut;
use bottle_contract::names::{Name, Slug};
use bottle_contract::session::guest::Exit;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::deploy_keys::DeployKey;
use crate::backend::Resource;
use crate::host::clock;

/// The schema this program writes. A newer one is refused, an older one is read.
pub const SCHEMA: u32 = 1;

/// `metadata.json`. Never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// The bottle's name.
    pub slug: Slug,
    /// As given with `--label`.
    pub label: Option<String>,
    /// As given with `--color-label`.
    pub color: Option<String>,
    /// The agent.
    pub agent: Name,
    /// The bottles, in the order they were folded.
    pub bottles: Vec<Name>,
    /// The directory it was started in.
    pub cwd: PathBuf,
    /// Whether that directory was copied in.
    pub copied_cwd: bool,
    /// Whether all of it was, and not only what its `.gitignore` files let through.
    #[serde(default)]
    pub copied_all: bool,
    /// The backend's name.
    pub backend: String,
    /// Whether it needs its client.
    pub mode: Mode,
    /// Whether its agent has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// How far it is.
    pub status: Status,
    /// When the launch began.
    pub started_at: Timestamp,
    /// The keeper, as `pid:start-time`.
    pub keeper: Option<String>,
    /// The folder of its keeper's socket; absent in records of older programs.
    #[serde(default)]
    pub runtime: Option<PathBuf>,
    /// What the backend made, in the order it was made.
    pub resources: Vec<Resource>,
    /// When the workspace was ready for the agent, by the clock that stamps files; what is newer is work.
    #[serde(default)]
    pub workspace_ready: Option<Timestamp>,
    /// The lead of this machine's clock at that moment, see [`clock::lead`].
    #[serde(default)]
    pub clock_lead: Option<SignedDuration>,
    /// What of the workspace is not newer was pulled.
    #[serde(default)]
    pub pulled_at: Option<Timestamp>,
    /// Whether the layers were kept by an earlier launch: then they are work, whatever became of this one.
    #[serde(default)]
    pub kept: bool,
    /// Files and folders inside with the agent's conversations.
    #[serde(default)]
    pub transcript: Vec<String>,
    /// Keys on forges that are to be revoked with it.
    #[serde(default)]
    pub deploy_keys: Vec<DeployKey>,
    /// Whether its logs stay, to be learned from.
    #[serde(default)]
    pub learn: bool,
    /// What guards its proxy, as it was last known to the keeper.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Why it is locked, once it is: nothing leaves it any more.
    #[serde(default)]
    pub locked: Option<LockOut>,
    /// How the agent ended, once it has.
    #[serde(default)]
    pub agent_exit: Option<Exit>,
    /// SHA-256 of the resolved manifest, hex.
    pub manifest_hash: String,
}

/// One of the programs that guard a bottle's proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `egress`, `git-gate`, `supervise`.
    pub name: String,
    /// Whether it works; the part of the proxy of one that does not is closed.
    pub up: bool,
}

/// Whether a bottle needs its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It ends with the client that started it.
    Attached,
    /// It lives by itself.
    Detached,
}

/// How far a bottle is, as its keeper last wrote it. Whether that keeper still lives is the lock's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Being launched.
    Starting,
    /// The agent runs.
    Running,
    /// Being torn down.
    Ending,
    /// Ended; only its logs are left.
    Ended,
    /// Ended; there is work in it, or a snapshot of it.
    Preserved,
}

impl Record {
    /// Whether the bottle ended and left nothing but its logs.
    #[must_use]
    pub fn has_only_logs(&self) -> bool {
        self.status == Status::Ended && self.resources.is_empty() && self.deploy_keys.is_empty()
    }

    /// Whether a bottle without a keeper goes on by itself until somebody asks for it: one that was launched, was
    /// detached, and was not about to end.
    #[must_use]
    pub fn is_adoptable(&self) -> bool {
        self.mode == Mode::Detached && self.status == Status::Running && self.agent_exit.is_none()
    }

    /// From when on a change of the workspace is work that would be lost; absent when no agent was let at it.
    /// `lead` is the one that the clock has now. When it was set back meanwhile, changes may look older than
    /// they are, also older than a pull: then everything counts from as much earlier.
    #[must_use]
    pub fn work_since(&self, lead: SignedDuration) -> Option<Timestamp> {
        let ready = self.workspace_ready?;
        Some(match self.set_back(lead) {
            Some(back) => ready.checked_sub(back).unwrap_or(Timestamp::MIN),
            None => ready.max(self.pulled_at.unwrap_or(Timestamp::MIN)),
        })
    }

    /// By how much the clock was set back since the workspace was ready.
    #[must_use]
    pub fn set_back(&self, lead: SignedDuration) -> Option<SignedDuration> {
        clock::set_back(self.clock_lead?, lead)
    }
}
