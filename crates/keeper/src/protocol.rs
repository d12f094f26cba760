//! The messages on the keeper's socket. The crate `bottle-channel` transports them in frames.
//!
//! The first client is the command that started the keeper. This command sends the [`LaunchOrder`] on a connection that
//! the keeper inherited. Later clients connect to the bottle's socket. The keeper forwards requests for the guest
//! unchanged, so clients use the guest's messages to attach, to run commands and to copy files.
//!
//! To use the files of a kept bottle, a command starts a keeper that only opens these files ([`KeeperRequest::Open`]).

use std::collections::BTreeMap;

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
use bottle_protocol::session::replaced::ReplacedValues;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::launch::order::LaunchOrder;

/// The request in the first frame of a client's stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "body", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeeperRequest {
    /// Launches a bottle. Allowed once, on the inherited connection. Answered with [`KeeperEvent::Phase`] for each
    /// phase, and then with [`KeeperEvent::Running`] or [`KeeperEvent::Failed`].
    Launch(Box<LaunchOrder>),
    /// Adopts a detached bottle whose keeper died. Allowed once, on the inherited connection. Answered with `Running`,
    /// with `Refused` if another process holds the bottle's lock, or with `Failed`. After `Running`, the connection
    /// accepts the same requests as other connections.
    Adopt {
        /// The bottle's slug.
        slug: Slug,
        /// The secrets of the previous keeper, for the new keeper.
        inherited: Inherited,
        /// Whether to continue a bottle that the user paused. A paused bottle cannot be stopped.
        #[serde(default)]
        unpauses: bool,
    },
    /// Opens the files of a kept bottle. Allowed once on the inherited connection, and on every connection to a keeper
    /// that has opened the files. Answered with [`KeeperEvent::Opened`], with `Refused` if another command uses the
    /// files, or with `Failed`. After `Opened`, the connection accepts requests for the guest that work with files and
    /// programs.
    Open {
        /// The bottle's slug.
        slug: Slug,
        /// Whether the client may change the files.
        access: Access,
    },
    /// A request for the guest, which the keeper forwards. The keeper refuses the requests that only the keeper itself
    /// may send, for example to provision the bottle, to start the agent or to stop the bottle.
    Guest(GuestRequest),
    /// Streams denials and warnings until the bottle ends ([`KeeperEvent::Ended`]).
    Notices,
    /// Watches the keeper of a detached bottle. The client starts a new keeper when this keeper dies. Answered with
    /// [`KeeperEvent::Watched`], and with [`KeeperEvent::Done`] when the bottle begins to end. Answered with `Refused`
    /// if another process watches the keeper.
    Watch,
    /// Asks whether the bottle is paused for a snapshot, so that requests for the guest must wait. Answered with a
    /// [`KeeperEvent::Notice`] if the bottle is paused for a snapshot, and otherwise with [`KeeperEvent::Done`].
    FindDelay,
    /// Asks what the agent does, and how much disk space the bottle uses. Answered with [`KeeperEvent::Activity`] in
    /// less than two seconds.
    Activity,
    /// Ends the bottle. Answered with [`KeeperEvent::Ended`] after the teardown. If a snapshot is being saved or
    /// removed, the bottle ends only after the snapshot job, and the first answer is a [`KeeperEvent::Notice`] about
    /// this delay.
    Stop {
        /// The milliseconds between SIGTERM and SIGKILL to the agent.
        grace_ms: u64,
    },
    /// Creates a snapshot while the bottle runs. Answered with [`KeeperEvent::Copied`] as progress, and then with
    /// [`KeeperEvent::Committed`], [`KeeperEvent::Failed`] or [`KeeperEvent::Refused`].
    Commit,
    /// Like [`KeeperRequest::Commit`], but creates the snapshot with these options, for example a name.
    CommitAs(CommitOptions),
    /// Removes all snapshots of the bottle. Answered with [`KeeperEvent::Done`], `Failed` or `Refused`.
    RemoveSnapshot,
    /// Removes one snapshot of the bottle. Has the same answers as [`KeeperRequest::RemoveSnapshot`].
    RemoveOneSnapshot {
        /// The snapshot's name. `None` for the snapshot without a name.
        name: Option<Name>,
    },
    /// Records that the user pulled all changes in the workspace up to a time. Answered with [`KeeperEvent::Done`].
    Pulled {
        /// The time up to which changes were pulled, according to the clock that sets the time stamps of the bottle's
        /// files.
        at: Timestamp,
    },
    /// Offers to decide about unsaved work. The stream stays open. When the agent exits, [`KeeperEvent::Work`] reports
    /// whether there is unsaved work, and the client answers with an [`EndChoice`]. If the client does not answer, the
    /// work is kept.
    Offer,
    /// Sends the user's answer to a proposal of the bottle. Answered with [`KeeperEvent::Answered`] after the effects
    /// are applied, or with `Refused`. After `Refused`, the proposal stays pending, unless another client has answered
    /// it.
    Answer(Box<Response>),
    /// Changes the routes as the user requests, without a proposal. Answered with [`KeeperEvent::RoutesChanged`], or
    /// with `Refused` if no routes were changed.
    ChangeRoutes(Box<RouteRequest>),
    /// Replaces the values of credentials. Answered with [`KeeperEvent::Done`] when the proxy uses the new values for
    /// its next request, or with `Refused` if no value was replaced.
    ReplaceSecrets(Box<NewSecrets>),
    /// Adds a question of the client as a proposal to the supervise queue. Answered with [`KeeperEvent::Done`] when the
    /// proposal is in the queue, or with `Refused`. The user's answer has the same effect as an answer to a proposal of
    /// the agent.
    Ask(Box<Question>),
    /// Asks the user to approve a command that this client wants to run in the bottle. Answered with
    /// [`KeeperEvent::Decision`]. The question is withdrawn if the client disconnects.
    Permit {
        /// The question.
        question: Box<Question>,
        /// The commands that are approved if the user's approval is valid for the whole run.
        approves: Vec<ApprovedCommand>,
    },
    /// Stops the bottle's requests to models, or allows them again. Answered with [`KeeperEvent::Done`].
    Budget {
        /// The user's order.
        order: BudgetChange,
        /// The account name of the user.
        by: String,
    },
    /// Applies a change of the parent (the bottle that started this bottle). The parent's keeper sends this request.
    /// Answered with [`KeeperEvent::Done`] when the change applies to this bottle too, or with `Refused`.
    OfParent(Box<ParentChange>),
    /// Detaches the first client: the bottle continues to run when this client disconnects. Answered with
    /// [`KeeperEvent::Detached`].
    Detach,
}

/// The secrets of a keeper that the next keeper needs and cannot read from the bottle. These secrets are never written
/// to disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inherited {
    /// The forge tokens with which the bottle's deploy keys are revoked when the bottle ends. A missing token is read
    /// again when it is needed.
    pub tokens: Tokens,
    /// The values that are masked in logs, conversations and the supervise queue. A command that adopts a bottle does
    /// not know these values and sends an empty list.
    pub secrets: Vec<SecretText>,
    /// The values that the user set for credentials since the launch. They are masked too.
    #[serde(default, skip_serializing_if = "ReplacedValues::is_empty")]
    pub replaced: ReplacedValues,
}

/// New values for credentials of a running bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSecrets {
    /// The values by the name of their slot, which is the host of the route.
    pub values: BTreeMap<String, SecretText>,
    /// The account name of the user.
    pub by: String,
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
    /// The launch, the commit or the removal of a snapshot failed. All resources that the failed operation created are
    /// removed, except the resources in [`LaunchFailure::left`].
    Failed(LaunchFailure),
    /// The progress of a commit, or of copying the working directory.
    Copied(Copied),
    /// The commit created a new snapshot.
    Committed(Committed),
    /// The user's answer to a proposal was applied. The strings describe its effects, as clauses for a message.
    Answered(Vec<String>),
    /// The user's answer to [`KeeperRequest::Permit`].
    Decision(Answer),
    /// The result of a change of the routes.
    RoutesChanged(Box<RouteReport>),
    /// The request was carried out.
    Done,
    /// The answer to [`KeeperRequest::Activity`].
    Activity(Activity),
    /// The agent exited. Contains the unsaved work that would be lost with the bottle.
    Work(Unsaved),
    /// A notice for the user that needs no answer.
    Notice(Notice),
    /// The keeper accepted the client as its watcher. If the keeper dies, the watcher sends these secrets to the next
    /// keeper.
    Watched(Box<Inherited>),
    /// The bottle ended.
    Ended(Ended),
    /// The bottle is detached: it continues to run without its first client.
    Detached,
    /// The keeper refused the request. The string is the reason, as a clause that begins in lower case.
    Refused(String),
}

/// What an agent does, and the disk space of its bottle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Whether the agent works: it wrote output recently, a model responds to it, or its programs use the processor.
    /// `None` if the activity is not known, for example because the bottle is paused.
    pub works: Option<bool>,
    /// The last time at which the agent wrote output or a model responded to the agent. `None` if neither time is
    /// known.
    pub active_at: Option<Timestamp>,
    /// The last measured size. `None` if the backend cannot measure it, or has not measured it yet.
    pub size: Option<Measured>,
}

/// An order of the user about a bottle's requests to models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetChange {
    /// Applies this policy as if a budget were spent. [`Self::Continue`] ends a pause or a cutoff.
    Stop(OnSpent),
    /// Ends a pause or cutoff that the user ordered.
    Continue,
}

/// A change of a parent (a bottle that started another bottle). The change also applies to the parent's children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, while it is sent to a child")]
pub enum ParentChange {
    /// The user narrowed the parent's routes.
    Routes {
        /// The edit. `None` if the change was an undo.
        edit: Option<RouteEdit>,
        /// The parent's routes before the change.
        before: RouteTable,
        /// The parent's routes after the change.
        after: RouteTable,
        /// The account name of the user.
        by: String,
    },
    /// The user stopped the parent's requests to models, or allowed them again.
    Budget {
        /// The user's order.
        order: BudgetChange,
        /// The account name of the user.
        by: String,
    },
    /// The parent is locked.
    Locked(LockOut),
}

impl ParentChange {
    /// Describes how a child behaves if it has not applied the change, as the predicate of a sentence.
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
    /// Notes for the user. Each note is a clause.
    pub notes: Vec<String>,
}

/// A change of a running bottle's routes that the user requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRequest {
    /// The change.
    pub change: RouteChange,
    /// The account name of the user.
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
        /// The hosts, in the form in which the user wrote them.
        host: String,
    },
}

/// Whether the user agrees to a change that weakens the protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consent {
    /// The user was not asked.
    Unasked,
    /// The user agreed to the change of the routes with this revision.
    At(u64),
    /// The user agrees to every effect of the change.
    Always,
}

/// The effect of a change of the routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReport {
    /// The hosts of the change, in canonical form.
    pub host: String,
    /// Whether the change was applied. If it was not, the user was not asked about `weakenings`, or the change has no
    /// effect.
    pub live: bool,
    /// The revision of the current routes.
    pub revision: u64,
    /// Whether the new routes differ from the previous routes.
    pub changed: bool,
    /// The new routes of these hosts, in the format of `egress.routes`. Empty if the hosts have no routes.
    pub routes: Vec<String>,
    /// Descriptions of the requests that become allowed.
    pub gains: Vec<String>,
    /// Descriptions of the requests that are no longer allowed.
    pub losses: Vec<String>,
    /// Descriptions of how the change weakens the protection.
    pub weakenings: Vec<String>,
    /// Messages about children of this bottle to which the narrower routes do not apply.
    #[serde(default)]
    pub not_followed: Vec<String>,
}

/// The user's decision about unsaved work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndChoice {
    /// Keep the unsaved work, if there still is unsaved work.
    Keep,
    /// Remove the unsaved work with the bottle.
    Discard,
}

/// A phase of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Registers deploy keys, if the plan needs deploy keys.
    Keys,
    /// Creates the private network and the directory of the proxy's sockets.
    Network,
    /// Starts and provisions the bundle, and waits until it is healthy.
    Sidecars,
    /// Starts and provisions pid 1.
    Provision,
    /// Starts the services, if the plan has services, and waits until they are ready.
    Services,
    /// Starts the agent.
    Agent,
    /// Removes all resources of the launch after a failure or an interrupt.
    Undo,
}

/// The kind of the cause of a failed launch, commit or snapshot removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchFailureKind {
    /// The backend is missing or reported an error.
    Backend,
    /// The isolation probe failed.
    Isolation,
    /// The image or the host does not have the agent's program.
    ProgramMissing,
    /// The agent's program exists but cannot be executed.
    ProgramRefused,
    /// A signal interrupted the launch.
    Interrupted,
    /// Any other cause. Also used if a keeper of an older version reports no cause.
    #[default]
    Other,
}

/// Why a launch, a commit or the removal of a snapshot failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// The kind of the cause.
    #[serde(default)]
    pub kind: LaunchFailureKind,
    /// The error message, which names the failed action, its object and the causes.
    pub message: String,
    /// The causes at the end of `message`, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// What the user can do next.
    pub hint: Option<String>,
    /// The resources that could not be removed. `bottle cleanup` finds them.
    pub left: Vec<String>,
    /// Whether the bottle runs but does not answer now, for example because it is paused.
    #[serde(default)]
    pub is_busy: bool,
}

/// A notice for the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Notice {
    /// The proxy denied a request.
    Refused(Refused),
    /// A sidecar ended. The string describes the effect.
    ProxyDown(String),
    /// A proposal is pending.
    Asked {
        /// The proposal's id.
        id: Id,
        /// The tool that made the proposal.
        tool: Tool,
    },
    /// A proposal is no longer pending.
    Settled {
        /// The proposal's id.
        id: Id,
    },
    /// The bottle is locked. The string contains the reason and the next step.
    LockedOut(String),
    /// Any other warning.
    Warning(String),
}

/// The commands that can retrieve the agent's work from the kept files of a bottle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retrieval {
    /// `diff`, `apply` and `pull`, because the files were copied from a repository.
    Repository,
    /// `diff` and `apply`, because the files were copied from a directory without a repository, and these files are
    /// recorded.
    Directory,
    /// `cp` only.
    #[default]
    Files,
}

/// How a bottle ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The agent's exit. `None` if the guest died before it reported the exit.
    pub agent: Option<Exit>,
    /// Why the bottle ended.
    pub cause: EndCause,
    /// The resource limit that the bottle exceeded.
    #[serde(default)]
    pub overrun: Option<Overrun>,
    /// Whether something other than `bottle` removed the bottle's files, including unsaved work.
    #[serde(default)]
    pub lost: bool,
    /// The host path of the workspace, if the bottle's files are kept.
    pub kept: Option<String>,
    /// Why the files or the conversation are kept.
    #[serde(default)]
    pub kept_for: Option<KeptFor>,
    /// The commands that can retrieve the agent's work from the kept files.
    #[serde(default)]
    pub retrieval: Retrieval,
    /// The files or conversation from which `bottle resume` would start the bottle. `None` if nothing is kept.
    #[serde(default)]
    pub resumable: Option<Resumable>,
    /// The directory that contains the copied conversations of the agent.
    #[serde(default)]
    pub transcript: Option<String>,
    /// The agent's changes in the directory of `--cwd=live` that can have an effect outside the bottle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveChanges>,
    /// The number of denied hosts that routes could allow, if the bottle was started with `--learn`.
    #[serde(default)]
    pub learned: Option<usize>,
    /// The number and the hash of the last line of the slug's audit log, as `number:hash`. `None` if the audit log has
    /// no entries.
    #[serde(default)]
    pub audit: Option<String>,
    /// The resources that could not be removed. `bottle cleanup` finds them.
    pub left: Vec<String>,
}

/// The files or conversation from which a resumed bottle starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumable {
    /// The kept files of the bottle.
    Kept,
    /// A snapshot of the bottle.
    Snapshot,
    /// The conversation of the agent. The bottle's files are created again.
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
    /// The bottle was frozen or killed, because a budget was enforced or the user ran `bottle budget stop`.
    Budget(OnSpent),
    /// The client of an attached bottle disconnected without detaching.
    ClientGone,
    /// Pid 1 of the bottle died.
    GuestDied,
}
