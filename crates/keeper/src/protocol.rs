//! The messages on the keeper's socket, as frames of the crate `bottle-channel`.
//!
//! The first client is the command that started the keeper. It sends the [`LaunchOrder`] on a connection that the
//! keeper inherited. Later clients connect to the bottle's socket. Clients attach, run commands and copy files with the
//! guest's messages, because the keeper forwards requests for the guest unchanged.
//!
//! For the files of a kept bottle, a command starts a keeper that only opens these files
//! ([`KeeperRequest::Open`]).

use bottle_backend::{Access, Copied, Snapshot};
use bottle_host::budget::OnSpent;
use bottle_instance::deploy_keys::Tokens;
use bottle_instance::live_changes::LiveChanges;
use bottle_instance::record::{ApprovedCommand, KeptFor, Measured};
use bottle_instance::snapshots::CommitOptions;
use bottle_instance::work::Unsaved;
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::{Name, Slug};
use bottle_policy::route::RouteTable;
use bottle_policy::route::edit::RouteEdit;
use bottle_protocol::queue::{Answer, Id, Question, Response, Tool};
use bottle_protocol::session::bundle::Refused;
use bottle_protocol::session::guest::{Exit, GuestRequest, Overrun, SecretText};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::launch::order::LaunchOrder;

/// The request in the first frame of a client's stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeeperRequest {
    /// Launches a bottle. Allowed once, on the inherited connection. Answered with [`KeeperEvent::Phase`] for each
    /// phase, then [`KeeperEvent::Running`] or [`KeeperEvent::Failed`].
    Launch(Box<LaunchOrder>),
    /// Adopts a detached bottle whose keeper died. Allowed once, on the inherited connection. Answered with `Running`,
    /// after which the connection accepts the same requests as other connections; with `Refused`, if another process
    /// holds the bottle's lock; or with `Failed`.
    Adopt {
        /// The bottle's slug.
        slug: Slug,
        /// The secrets of the previous keeper that the new keeper gets.
        inherited: Inherited,
        /// Whether to continue a bottle that the user paused. A paused bottle cannot be stopped.
        #[serde(default)]
        unpauses: bool,
    },
    /// Opens the files of a kept bottle. Allowed once on the inherited connection, and on every connection to a
    /// keeper that has opened the files. Answered with [`KeeperEvent::Opened`], after which the connection accepts
    /// requests for the guest that work with files and programs; with `Refused`, if another command uses the files; or
    /// with `Failed`.
    Open {
        /// The bottle's slug.
        slug: Slug,
        /// Whether the files may be changed.
        access: Access,
    },
    /// A request for the guest, which the keeper forwards. It refuses the requests that only the keeper may send: to
    /// provision the bottle, to start the agent and to stop it.
    Guest(GuestRequest),
    /// Streams denials and warnings until the bottle ends ([`KeeperEvent::Ended`]).
    Notices,
    /// Watches the keeper of a detached bottle, to start a new one when this one dies. Answered with
    /// [`KeeperEvent::Watched`], and with [`KeeperEvent::Done`] when the bottle begins to end; or with `Refused` if
    /// another process watches.
    Watch,
    /// Asks whether a snapshot pauses the bottle at present, so that requests for the guest wait. Answered with a
    /// [`KeeperEvent::Notice`] that says so, or with [`KeeperEvent::Done`].
    FindDelay,
    /// Asks what the agent does, and how much disk space the bottle takes. Answered with [`KeeperEvent::Activity`] in
    /// less than two seconds.
    Activity,
    /// Ends the bottle. Answered with [`KeeperEvent::Ended`] after the teardown. If a snapshot is being saved or
    /// removed, the bottle ends after that, and a [`KeeperEvent::Notice`] that says so comes first.
    Stop {
        /// Milliseconds between SIGTERM and SIGKILL to the agent.
        grace_ms: u64,
    },
    /// Creates a snapshot while the bottle runs. Answered with [`KeeperEvent::Copied`] as progress, then with
    /// [`KeeperEvent::Committed`], [`KeeperEvent::Failed`] or [`KeeperEvent::Refused`].
    Commit,
    /// As [`KeeperRequest::Commit`], for a snapshot with a name.
    CommitAs(CommitOptions),
    /// Removes all snapshots of the bottle. Answered with [`KeeperEvent::Done`], `Failed` or `Refused`.
    RemoveSnapshot,
    /// Removes one snapshot of the bottle. Answered as [`KeeperRequest::RemoveSnapshot`].
    RemoveOneSnapshot {
        /// The snapshot's name. `None` for the one without a name.
        name: Option<Name>,
    },
    /// Records that the user pulled all changes in the workspace up to a time. Answered with [`KeeperEvent::Done`].
    Pulled {
        /// The time up to which changes were pulled, by the clock that stamps the bottle's files.
        at: Timestamp,
    },
    /// Offers to decide about unsaved work. The stream stays open. When the agent exits, [`KeeperEvent::Work`] reports
    /// whether there is unsaved work, and the client answers with an [`EndChoice`]. If the client does not answer, the
    /// work is kept.
    Offer,
    /// Answers a question of the bottle. Answered with [`KeeperEvent::Answered`] after the effects are applied, or with
    /// `Refused`. After `Refused` the question stays pending, unless another client answered it.
    Answer(Box<Response>),
    /// Changes the routes as the user wishes, without a proposal. Answered with [`KeeperEvent::RoutesChanged`], or with
    /// `Refused`; nothing is changed then.
    ChangeRoutes(Box<RouteRequest>),
    /// Adds a question of the user to the bottle's queue. Answered with [`KeeperEvent::Done`] after its proposal is in
    /// the queue, or with `Refused`. The answer to this question has the same effect as an answer to a question of the
    /// agent.
    Ask(Box<Question>),
    /// Asks the user to approve a command that this client wants to run in the bottle. Answered with
    /// [`KeeperEvent::Decision`]. The question is withdrawn if the client disconnects.
    Permit {
        /// The question.
        question: Box<Question>,
        /// The commands that an approval for the run covers.
        approves: Vec<ApprovedCommand>,
    },
    /// Stops the bottle's requests to models, or allows them again. Answered with [`KeeperEvent::Done`].
    Budget {
        /// The order.
        order: BudgetChange,
        /// The account of the user.
        by: String,
    },
    /// Passes on a change of the parent (the bottle that started this one). The parent's keeper sends it. Answered with
    /// [`KeeperEvent::Done`] when the change applies to this bottle too, or with `Refused`.
    OfParent(Box<ParentChange>),
    /// Keeps the bottle running without this client. Answered with [`KeeperEvent::Detached`].
    Detach,
}

/// The secrets of a keeper that the next one needs and cannot read from the bottle. They are never written to disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inherited {
    /// Forge tokens with which the bottle's deploy keys are revoked when it ends. A missing token is read again when it
    /// is needed.
    pub tokens: Tokens,
    /// The values that are masked in logs, conversations and the queue. A command that adopts a bottle knows none.
    pub secrets: Vec<SecretText>,
}

/// The keeper's answer to a [`KeeperRequest`], or an event on its stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeeperEvent {
    /// The launch has entered this phase.
    Phase(Phase),
    /// The agent runs.
    Running {
        /// The bottle's slug.
        slug: Slug,
    },
    /// The files of the kept bottle are open.
    Opened,
    /// The launch, the commit or the removal of a snapshot failed. Everything that it created is removed, except the
    /// resources in [`LaunchFailure::left`].
    Failed(LaunchFailure),
    /// The progress of a commit or of the copy of the working directory.
    Copied(Copied),
    /// The commit created a new snapshot.
    Committed(Committed),
    /// The answer was applied. The strings describe its effects, as sentence fragments.
    Answered(Vec<String>),
    /// The user's answer to [`KeeperRequest::Permit`].
    Decision(Answer),
    /// The result of a change of the routes.
    RoutesChanged(Box<RouteReport>),
    /// The request was carried out.
    Done,
    /// What the agent does ([`KeeperRequest::Activity`]).
    Activity(Activity),
    /// The agent exited. The value says what would be lost with the bottle.
    Work(Unsaved),
    /// A notice for the user that needs no answer.
    Notice(Notice),
    /// The keeper is watched. If it dies, the next keeper gets these secrets.
    Watched(Box<Inherited>),
    /// The bottle ended.
    Ended(Ended),
    /// The bottle runs without a client.
    Detached,
    /// The keeper refused the request. The string gives the reason, as a lower-case fragment.
    Refused(String),
}

/// What an agent does, and the disk space of its bottle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Whether the agent works: it wrote output a moment ago, a model answers it, or its programs use the processor.
    /// `None` if that is not known, for example because the bottle is paused.
    pub works: Option<bool>,
    /// When the agent last wrote output, or a model last answered it. `None` if neither is known.
    pub active_at: Option<Timestamp>,
    /// The last measured size. `None` if the backend cannot measure it, or has not measured it yet.
    pub size: Option<Measured>,
}

/// What the user orders for a bottle's requests to models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetChange {
    /// Acts as if a budget were spent, until [`Self::Continue`].
    Stop(OnSpent),
    /// Ends a pause or cutoff that the user ordered.
    Continue,
}

/// A change of a parent (a bottle that started another one) that also applies to its children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, while it is sent to a child")]
pub enum ParentChange {
    /// The user narrowed the parent's routes.
    Routes {
        /// The edit. `None` if the change was an undo.
        edit: Option<RouteEdit>,
        /// The parent's routes before.
        before: RouteTable,
        /// The parent's routes now.
        after: RouteTable,
        /// The account of the user.
        by: String,
    },
    /// The user stopped the parent's requests to models, or allowed them again.
    Budget {
        /// The order.
        order: BudgetChange,
        /// The account of the user.
        by: String,
    },
    /// The parent is locked.
    Locked(LockOut),
}

impl ParentChange {
    /// How a child behaves if it has not carried out the change, as the predicate of a sentence.
    #[must_use]
    pub fn effect_of_failure(&self) -> &'static str {
        match self {
            Self::Routes { .. } => "may still reach what was denied",
            Self::Budget { order: BudgetChange::Stop(_), .. } => "still sends requests to models",
            Self::Budget { order: BudgetChange::Continue, .. } => "does not go on",
            Self::Locked(_) => "is not locked",
        }
    }
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The new snapshot.
    pub snapshot: Snapshot,
    /// Notes for the user, a sentence fragment each.
    pub notes: Vec<String>,
}

/// The user's own change of a running bottle's routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRequest {
    /// The change.
    pub change: RouteChange,
    /// The account of the user.
    pub by: String,
    /// Whether the user agrees to a change that weakens the protection.
    pub weaken: Consent,
}

/// A change of the routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteChange {
    /// Allows or denies requests, or changes the scanning.
    Edit(RouteEdit),
    /// Undoes the last change of exactly these hosts.
    Undo {
        /// The hosts, as the user writes them.
        host: String,
    },
}

/// Whether the user agrees to weaker protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consent {
    /// The user was not asked.
    Unasked,
    /// The user approved the change for the routes of this revision.
    At(u64),
    /// The user agrees to every effect.
    Always,
}

/// The effect of a change of the routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReport {
    /// The hosts of the change, in canonical form.
    pub host: String,
    /// Whether the new routes are live. If not, nothing was changed yet, because the user was not asked about
    /// `weakenings`.
    pub live: bool,
    /// The revision of the current routes.
    pub revision: u64,
    /// Whether the routes differ from the previous ones.
    pub changed: bool,
    /// The new routes of these hosts, as `egress.routes` has them. Empty if there are none.
    pub routes: Vec<String>,
    /// Requests that become allowed, in words.
    pub gains: Vec<String>,
    /// Requests that are no longer allowed, in words.
    pub losses: Vec<String>,
    /// How the change weakens the protection, in words.
    pub weakenings: Vec<String>,
    /// The bottles started by this one to which a narrower route does not apply, a sentence each.
    #[serde(default)]
    pub not_followed: Vec<String>,
}

/// The user's decision about unsaved work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndChoice {
    /// Keep the work if there still is any.
    Keep,
    /// Remove the work with the bottle.
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
    Sidecars,
    /// Starts and provisions pid 1.
    Provision,
    /// Starts the services, where there are any, and waits until they are ready.
    Services,
    /// Starts the agent.
    Agent,
    /// Removes everything after a failure or an interrupt.
    Undo,
}

/// The kind of the cause of a failed launch, commit or snapshot removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchFailureKind {
    /// The backend is missing or refused.
    Backend,
    /// The isolation was not proven.
    Isolation,
    /// The image or the host lacks the program of the agent.
    ProgramMissing,
    /// The program of the agent cannot run.
    ProgramRefused,
    /// A signal interrupted the launch.
    Interrupted,
    /// Any other cause, or no reported cause, as from a keeper of an older version.
    #[default]
    Other,
}

/// Why a launch, a commit or the removal of a snapshot failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// The kind of the cause.
    #[serde(default)]
    pub kind: LaunchFailureKind,
    /// The action that failed, its object and the causes.
    pub message: String,
    /// The causes that end the message, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// The user's next step.
    pub hint: Option<String>,
    /// The resources that could not be removed. `bottle cleanup` finds them.
    pub left: Vec<String>,
    /// Whether the bottle runs but cannot be contacted now.
    #[serde(default)]
    pub is_busy: bool,
}

/// A notice for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Notice {
    /// The proxy refused a request.
    Refused(Refused),
    /// A sidecar ended. The sentence describes the effect.
    ProxyDown(String),
    /// A proposal is pending.
    Asked {
        /// The proposal's id.
        id: Id,
        /// The tool of the proposal.
        tool: Tool,
    },
    /// A proposal is no longer pending.
    Settled {
        /// The proposal's id.
        id: Id,
    },
    /// The bottle is locked. The sentence gives the reason and the next step.
    LockedOut(String),
    /// Any other warning.
    Warning(String),
}

/// The commands that retrieve the work from the kept files of a bottle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retrieval {
    /// `diff`, `apply` and `pull`, because the files were copied from a repository.
    Repository,
    /// `diff` and `apply`, because the files were copied from another directory, and are recorded.
    Directory,
    /// `cp` only.
    #[default]
    Files,
}

/// How a bottle ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The agent's exit. Absent if the guest died before it reported one.
    pub agent: Option<Exit>,
    /// Why the bottle ended.
    pub cause: EndCause,
    /// The resource limit that the bottle exceeded.
    #[serde(default)]
    pub overrun: Option<Overrun>,
    /// Whether something other than `bottle` removed the bottle's files, with the work in them.
    #[serde(default)]
    pub lost: bool,
    /// The host path of the workspace, if its files are kept.
    pub kept: Option<String>,
    /// Why the files or the conversation are kept.
    #[serde(default)]
    pub kept_for: Option<KeptFor>,
    /// The commands that retrieve the work from the kept files.
    #[serde(default)]
    pub retrieval: Retrieval,
    /// What `bottle resume` would start from, if anything is kept.
    #[serde(default)]
    pub resumable: Option<Resumable>,
    /// The directory of the agent's copied conversations.
    #[serde(default)]
    pub transcript: Option<String>,
    /// The agent's changes in the directory of `--cwd=live` that have an effect outside the bottle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveChanges>,
    /// The number of denied hosts that routes could allow, if the bottle was started with `--learn`.
    #[serde(default)]
    pub learned: Option<usize>,
    /// The last line of the slug's audit log, as `number:hash`. `None` if the log has no entries.
    #[serde(default)]
    pub audit: Option<String>,
    /// The resources that could not be removed. `bottle cleanup` finds them.
    pub left: Vec<String>,
}

/// What a resumed bottle starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumable {
    /// The kept files of the bottle.
    Kept,
    /// The snapshot of the bottle.
    Snapshot,
    /// The conversation of the agent. The files are created anew.
    Conversation,
}

/// Why a bottle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// The agent exited by itself.
    AgentExited,
    /// The user ran `bottle stop`, or a signal arrived.
    Stopped,
    /// A budget was enforced, or the user ran `bottle budget stop`: the bottle was frozen or killed.
    Budget(OnSpent),
    /// The client of an attached bottle disconnected without detaching.
    ClientGone,
    /// Pid 1 of the bottle died.
    GuestDied,
}
