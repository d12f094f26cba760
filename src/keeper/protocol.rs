//! What travels on the keeper's own socket, in the same frames as everything else.
//!
//! The first client is the command that started the keeper; it hands over the [`LaunchOrder`] on the
//! inherited connection. Later ones connect to the bottle's socket. Requests for the guest pass through
//! untouched, so a client attaches, runs and copies by the guest's own words.

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
    /// Only on the inherited connection, once: takes over a detached bottle whose keeper is gone. Answers
    /// `Running`, and the connection then serves like any other; `Refused` when somebody else has it; or
    /// `Failed`.
    Adopt {
        /// The bottle's slug.
        slug: Slug,
        /// With which its deploy keys are revoked at its end, as far as this machine has them now.
        tokens: Tokens,
    },
    /// `attach`, `exec`, `copy-*`, `logs`, `probe` and `status` go to the guest as they are; the others
    /// are the keeper's alone and refused.
    Guest(GuestRequest),
    /// Refusals and warnings as they come, until the bottle ends ([`KeeperEvent::Ended`]).
    Notices,
    /// Ends the bottle; answers [`KeeperEvent::Ended`] when it is torn down.
    Stop {
        /// Milliseconds the agent gets between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Makes a snapshot while the bottle goes on: [`KeeperEvent::Copied`] from time to time, then
    /// [`KeeperEvent::Committed`], [`KeeperEvent::Failed`] or [`KeeperEvent::Refused`].
    Commit,
    /// Removes the bottle's snapshot: [`KeeperEvent::Done`], `Failed` or `Refused`.
    RemoveSnapshot,
    /// What is not newer than this in the workspace was pulled, all of it. Answers [`KeeperEvent::Done`].
    Pulled {
        /// By the clock that stamps files.
        at: Timestamp,
    },
    /// A user is there who can say what becomes of unsaved work. Held open; when the agent has ended by
    /// itself [`KeeperEvent::Work`] says whether there is any, and an [`EndChoice`] answers it. Without one
    /// it is kept.
    Offer,
    /// Answers a question of the bottle. Answers [`KeeperEvent::Answered`] when what it brings is done, or
    /// `Refused`; then the question waits on, unless somebody else has answered it.
    Answer(Box<Response>),
    /// Puts a question of the user's own to the queue of the bottle. Answers [`KeeperEvent::Done`]; what is
    /// answered to it counts as an answer to the agent does.
    Ask(Box<Question>),
    /// From now on this bottle lives without the client that asks; answers [`KeeperEvent::Detached`].
    Detach,
}

/// A message from the keeper on a stream of its own requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeeperEvent {
    /// The launch works on this now.
    Phase(Phase),
    /// The agent runs.
    Running {
        /// The bottle's slug.
        slug: Slug,
    },
    /// The launch or the commit failed; everything it made is undone.
    Failed(LaunchFailure),
    /// How far a commit is, or the copy of the working directory.
    Copied(Copied),
    /// There is a new snapshot.
    Committed(Committed),
    /// The answer counts, and this came of it: a sentence fragment each.
    Answered(Vec<String>),
    /// The request was carried out.
    Done,
    /// The agent has ended, and there is work that would be lost, or none.
    Work(bool),
    /// Something the user should hear of, without being asked anything.
    Notice(Notice),
    /// The bottle is gone.
    Ended(Ended),
    /// The bottle lives on by itself.
    Detached,
    /// The request was refused; a lower-case fragment.
    Refused(String),
}

/// See [`KeeperRequest::Commit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The new snapshot.
    pub snapshot: Snapshot,
    /// What the user should know of it, a sentence fragment each.
    pub notes: Vec<String>,
    /// The command that packs it for another machine.
    pub moved_by: Option<String>,
}

/// What becomes of unsaved work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndChoice {
    /// It is kept, if there still is any.
    Keep,
    /// It goes with the bottle.
    Discard,
}

/// What a launch works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The deploy keys, where there are any.
    Keys,
    /// The private network and the place of the proxy.
    Network,
    /// The bundle: started, provisioned, healthy.
    Guard,
    /// Pid 1: started, provisioned.
    Provision,
    /// The agent.
    Agent,
    /// Undoing after a failure or an interrupt.
    Undo,
}

/// Why a launch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// The exit code of `lifecycle.md`'s table.
    pub exit: u8,
    /// What happened, to what, and why: the first cause.
    pub message: String,
    /// What the user does next.
    pub hint: Option<String>,
    /// What could not be undone; `bottle cleanup` finds it.
    pub left: Vec<String>,
}

/// Something to tell the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Notice {
    /// The proxy refused a request.
    Refused(Refused),
    /// Part of the proxy closed; the sentence says what that means.
    ProxyDown(String),
    /// Something waits for a user's answer.
    Asked {
        /// Its name.
        id: Id,
        /// What.
        tool: Tool,
    },
    /// It does not any more.
    Settled {
        /// Its name.
        id: Id,
    },
    /// The bottle is locked; the sentence says why, and what the user can do.
    LockedOut(String),
    /// Anything else worth a line.
    Warning(String),
}

/// How a bottle ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How the agent ended; absent when the guest died before it could say.
    pub agent: Option<Exit>,
    /// Why the bottle ended.
    pub cause: EndCause,
    /// The limit that it went beyond.
    #[serde(default)]
    pub overrun: Option<Overrun>,
    /// The preserved workspace's path on the host, when there is work to lose.
    pub kept: Option<String>,
    /// What `bottle resume` would go on with, when the bottle is preserved.
    #[serde(default)]
    pub resumable: Option<Resumable>,
    /// Where the agent's conversations were copied to.
    #[serde(default)]
    pub transcript: Option<String>,
    /// Hosts that it was refused and that routes could let through, where it was started to learn them.
    #[serde(default)]
    pub learned: Option<usize>,
    /// The last line of its name's audit, as `number:hash`; none where nothing was ever decided.
    #[serde(default)]
    pub audit: Option<String>,
    /// What could not be removed; `bottle cleanup` finds it.
    pub left: Vec<String>,
}

/// What a preserved bottle is gone on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumable {
    /// Its own files, as they were left.
    Kept,
    /// Its snapshot.
    Snapshot,
}

/// Why a bottle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// The agent ended by itself.
    AgentExited,
    /// `bottle stop` or a signal.
    Stopped,
    /// The client that owned an attached bottle went away without detaching.
    ClientGone,
    /// Pid 1 of the bottle died.
    GuestDied,
}
