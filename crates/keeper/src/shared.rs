//! The state that client connections share with the owner task, and their commands to that task.

use std::io;
use std::sync::{Arc, Mutex};

use bottle_channel::{Channel, Stream};
use bottle_contract::lock_out::LockOut;
use bottle_host::budget::Policy;
use bottle_instance::record::{ApprovedCommand, Measured};
use bottle_instance::snapshots::{CommitOptions, Removal};
use bottle_queue::Asker;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use super::budget::order::Order;
use super::decisions::Decisions;
use super::family::Children;
use super::notices::Notices;
use super::protocol::{Ended, Inherited, KeeperEvent};

/// State that client connections share with the owner task. Connections count themselves in it and store offers in it;
/// all other changes are commands to that task.
pub(super) struct Shared {
    /// The channel to the guest. `None` while the keeper connects again.
    pub(super) guest: watch::Sender<Option<Channel>>,
    pub(super) notices: Arc<Notices>,
    /// Queues questions for the user and receives the answers.
    pub(super) asker: Asker,
    /// Changes the routes.
    pub(super) decisions: Decisions,
    /// Passes on what the user does to this bottle.
    pub(super) children: Children,
    pub(super) commands: mpsc::Sender<Command>,
    /// What the user ordered for requests to models.
    pub(super) order: watch::Sender<Order>,
    /// The order that took effect last.
    pub(super) applied: watch::Sender<Order>,
    pub(super) attached: watch::Sender<Attached>,
    /// The number of open connections.
    pub(super) connected: watch::Sender<usize>,
    pub(super) ended: watch::Sender<Option<Ended>>,
    /// The last measured size of the bottle.
    pub(super) size: watch::Sender<Option<Measured>>,
    /// When a model last answered the agent.
    pub(super) answered: watch::Sender<Option<Timestamp>>,
    /// What the next keeper gets if this one dies.
    pub(super) inherited: Inherited,
    /// Whether the bottle runs on without its first client. False again when it begins to end.
    pub(super) detached: watch::Sender<bool>,
    /// Whether a watcher is connected.
    pub(super) watched: watch::Sender<bool>,
    /// The stream of the last client that offered to decide about unsaved work.
    pub(super) offer: Mutex<Option<Stream>>,
}

/// A command from a client connection to the owner task.
#[derive(Debug)]
pub(super) enum Command {
    /// End the bottle.
    Stop {
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u64,
        /// Receives a notice if the bottle ends only after the running snapshot job.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Keep the bottle running without its first client.
    Detach {
        /// Receives the result of recording it. Dropped if the bottle ends already.
        recorded: oneshot::Sender<io::Result<()>>,
    },
    /// Record that a sidecar ended. `None` means that all sidecars ended.
    ServiceDown(Option<String>),
    /// Record that the bottle is locked.
    LockedOut(LockOut),
    /// Create a snapshot of the bottle.
    Commit {
        /// What to create.
        options: CommitOptions,
        /// Receives progress and the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Remove snapshots of the bottle.
    RemoveSnapshot {
        /// Which snapshots to remove.
        which: Removal,
        /// Receives the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Record that the user pulled the bottle's work.
    Pulled {
        /// Changes up to this time were pulled.
        at: Timestamp,
        /// Receives the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Record why the bottle is paused because of a budget. `None` if it continues.
    BudgetHold {
        /// The cause, as a fragment.
        why: Option<String>,
        /// Receives a message when it is recorded.
        recorded: oneshot::Sender<()>,
    },
    /// Record the commands that the user approved for this run.
    ApproveCommands {
        /// The commands.
        approved: Vec<ApprovedCommand>,
        /// Receives a message when they are recorded.
        recorded: oneshot::Sender<()>,
    },
    /// Record what the user ordered for requests to models, so that the next keeper finds it.
    BudgetOrder {
        /// The policy. `None` if the bottle continues.
        policy: Option<Policy>,
        /// Receives a message when the order is recorded.
        recorded: oneshot::Sender<()>,
    },
    /// Freeze or kill the bottle because of a budget.
    Enforce {
        /// [`Policy::Freeze`] or [`Policy::Kill`].
        policy: Policy,
        /// The cause, as a fragment.
        why: String,
    },
    /// Measure the size of the bottle, if the last measurement is old.
    Measure,
    /// Find out whether a snapshot pauses the bottle.
    FindDelay {
        /// Receives the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Find out whether something else paused the bottle.
    FindPause {
        /// Receives how the user continues the bottle. `None` if it is not paused.
        answer: oneshot::Sender<Option<String>>,
    },
    /// The first client's connection closed.
    FirstGone,
}

/// The number of clients attached to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attached {
    /// The number of open attach streams.
    pub(super) now: usize,
    /// Whether a client was attached at any time.
    pub(super) ever: bool,
}

/// Sends the last message of a stream. Ignores the error of a client that disconnected.
pub(super) async fn send_last(stream: &Stream, event: &KeeperEvent) {
    let _ = stream.message(event).await;
    let _ = stream.end().await;
}
