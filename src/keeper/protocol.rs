//! The messages on the keeper's socket, in the frames of `bottle-channel`.
//!
//! The first client is the command that started the keeper; it sends the [`LaunchOrder`] on the inherited
//! connection. Later clients connect to the bottle's socket. The keeper forwards requests for the guest
//! unchanged, so a client attaches, executes and copies with the guest's own messages.

use bottle_contract::names::Slug;
use bottle_contract::queue::{Id, Question, Response, Tool};
use bottle_contract::session::bundle::Refused;
use bottle_contract::session::guest::{Exit, GuestRequest, Overrun};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::{Copied, Snapshot};
use crate::instance::deploy_keys::Tokens;
use crate::launch::order::LaunchOrder;

/// The first frame of a client's stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeeperRequest {
    /// Only on the inherited connection, once: [`KeeperEvent::Phase`]s, then [`KeeperEvent::Running`] or
    /// [`KeeperEvent::Failed`].
    Launch(Box<LaunchOrder>),
    /// Only on the inherited connection, once: takes over a detached bottle whose keeper died. Answers
    /// `Running`, and the connection then serves like any other; `Refused` when another process has the bottle;
    /// or `Failed`.
    Adopt {
        /// The bottle's slug.
        slug: Slug,
        /// Forge tokens to revoke its deploy keys at its end, as far as this machine has them now.
        tokens: Tokens,
    },
    /// `attach`, `exec`, `copy-*`, `logs`, `probe` and `status` are forwarded to the guest; the others are
    /// refused, because only the keeper may send them.
    Guest(GuestRequest),
    /// Streams refusals and warnings until the bottle ends ([`KeeperEvent::Ended`]).
    Notices,
    /// Ends the bottle; answers [`KeeperEvent::Ended`] when it is torn down.
    Stop {
        /// Milliseconds the agent gets between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Makes a snapshot while the bottle runs: [`KeeperEvent::Copied`] from time to time, then
    /// [`KeeperEvent::Committed`], [`KeeperEvent::Failed`] or [`KeeperEvent::Refused`].
    Commit,
    /// Removes the bottle's snapshot: [`KeeperEvent::Done`], `Failed` or `Refused`.
    RemoveSnapshot,
    /// Records that everything in the workspace up to this time was pulled. Answers [`KeeperEvent::Done`].
    Pulled {
        /// By the clock that stamps files.
        at: Timestamp,
    },
    /// Offers to decide about unsaved work. The stream stays open; when the agent exits by itself,
    /// [`KeeperEvent::Work`] reports whether there is any, and the client answers with an [`EndChoice`].
    /// Without an answer the work is preserved.
    Offer,
    /// Answers a question of the bottle. Answers [`KeeperEvent::Answered`] when its effects are applied, or
    /// `Refused`; then the question stays pending, unless another client answered it.
    Answer(Box<Response>),
    /// Adds the user's own question to the bottle's queue. Answers [`KeeperEvent::Done`]; an answer to it counts
    /// like an answer to the agent.
    Ask(Box<Question>),
    /// Keeps the bottle running without this client; answers [`KeeperEvent::Detached`].
    Detach,
}

/// A message from the keeper in answer to a [`KeeperRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeeperEvent {
    /// The launch entered this phase.
    Phase(Phase),
    /// The agent runs.
    Running {
        /// The bottle's slug.
        slug: Slug,
    },
    /// The launch or the commit failed; everything it made is undone.
    Failed(LaunchFailure),
    /// Progress of a commit, or of the working directory's copy.
    Copied(Copied),
    /// The commit made a new snapshot.
    Committed(Committed),
    /// The answer is applied, with these effects: a sentence fragment each.
    Answered(Vec<String>),
    /// The request was carried out.
    Done,
    /// The agent exited; whether there is work that would be lost.
    Work(bool),
    /// A notice for the user, without a question.
    Notice(Notice),
    /// The bottle ended.
    Ended(Ended),
    /// The bottle runs without a client.
    Detached,
    /// The request was refused; the cause as a lower-case fragment.
    Refused(String),
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The new snapshot.
    pub snapshot: Snapshot,
    /// Notes for the user, a sentence fragment each.
    pub notes: Vec<String>,
    /// The command that exports it for another machine.
    pub moved_by: Option<String>,
}

/// The user's decision about unsaved work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndChoice {
    /// Preserve it, if there still is any.
    Keep,
    /// Remove it with the bottle.
    Discard,
}

/// A phase of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Registers deploy keys, where there are any.
    Keys,
    /// Creates the private network and the sidecars' sandbox.
    Network,
    /// Starts and provisions the bundle, and waits until it is healthy.
    Guard,
    /// Starts and provisions pid 1.
    Provision,
    /// Starts the agent.
    Agent,
    /// Removes everything after a failure or an interrupt.
    Undo,
}

/// Why a launch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// The exit code, from the table in `lifecycle.md`.
    pub exit: u8,
    /// The failed action, its object and the causes.
    pub message: String,
    /// The causes at the end of the message, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// The user's next step.
    pub hint: Option<String>,
    /// What could not be removed; `bottle cleanup` finds it.
    pub left: Vec<String>,
}

/// A notice for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Notice {
    /// The proxy refused a request.
    Refused(Refused),
    /// A sidecar ended; the sentence names the effect.
    ProxyDown(String),
    /// A proposal is pending.
    Asked {
        /// The proposal.
        id: Id,
        /// Its tool.
        tool: Tool,
    },
    /// A proposal is no longer pending.
    Settled {
        /// The proposal.
        id: Id,
    },
    /// The bottle is locked; the sentence gives the reason and the next step.
    LockedOut(String),
    /// Any other warning.
    Warning(String),
}

/// How a bottle ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The agent's exit; absent when the guest died before it reported one.
    pub agent: Option<Exit>,
    /// Why the bottle ended.
    pub cause: EndCause,
    /// The resource limit that the bottle exceeded.
    #[serde(default)]
    pub overrun: Option<Overrun>,
    /// The preserved workspace's path on the host, when there is work to lose.
    pub kept: Option<String>,
    /// What `bottle resume` would use, when the bottle is preserved.
    #[serde(default)]
    pub resumable: Option<Resumable>,
    /// The folder of the agent's copied conversations.
    #[serde(default)]
    pub transcript: Option<String>,
    /// Number of denied hosts that routes could allow, when the bottle was started with `--learn`.
    #[serde(default)]
    pub learned: Option<usize>,
    /// The last line of the slug's audit log, as `number:hash`; none where nothing was ever decided.
    #[serde(default)]
    pub audit: Option<String>,
    /// What could not be removed; `bottle cleanup` finds it.
    pub left: Vec<String>,
}

/// What a preserved bottle is resumed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumable {
    /// Its preserved files.
    Kept,
    /// Its snapshot.
    Snapshot,
}

/// Why a bottle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// The agent exited by itself.
    AgentExited,
    /// `bottle stop` or a signal.
    Stopped,
    /// The client of an attached bottle disconnected without detaching.
    ClientGone,
    /// Pid 1 of the bottle died.
    GuestDied,
}
