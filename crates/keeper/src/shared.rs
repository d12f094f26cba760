//! The state that client connections share with the owner task, and the commands that connections send to the owner
//! task.

use std::io;
use std::sync::{Arc, Mutex};

use bottle_channel::{Channel, Stream};
use bottle_host::budget::OnSpent;
use bottle_instance::record::{ApprovedCommand, Measured, Mode, Record, Service};
use bottle_instance::snapshots::{CommitOptions, Removal};
use bottle_policy::lock_out::LockOut;
use bottle_queue::Asker;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use super::budget::stopped::Stopped;
use super::decisions::Decisions;
use super::family::Children;
use super::mask::Mask;
use super::notices::Notices;
use super::protocol::{Ended, Inherited, KeeperEvent};
use super::tool_calls::ToolCalls;

/// The state that client connections share with the owner task. Connections may change only the counts of connections
/// and the offer. For all other changes, they send commands to the owner task.
pub(super) struct Shared {
    /// The channel to the guest. `None` while the keeper reconnects to the guest.
    pub(super) guest: watch::Sender<Option<Channel>>,
    pub(super) notices: Arc<Notices>,
    /// Queues questions for the user and receives the answers.
    pub(super) asker: Asker,
    /// Applies the user's decisions and changes the routes.
    pub(super) decisions: Decisions,
    /// Sends the user's changes to this bottle to the bottle's children.
    pub(super) children: Children,
    /// The tool calls of the agent.
    pub(super) tool_calls: ToolCalls,
    pub(super) commands: mpsc::Sender<Command>,
    /// Whether and how the user stopped the requests to models.
    pub(super) stopped: watch::Sender<Stopped>,
    /// The last value of `stopped` that took effect.
    pub(super) applied: watch::Sender<Stopped>,
    pub(super) attached: watch::Sender<Attached>,
    /// The number of open connections.
    pub(super) connected: watch::Sender<usize>,
    pub(super) ended: watch::Sender<Option<Ended>>,
    /// The last measured size of the bottle.
    pub(super) size: watch::Sender<Option<Measured>>,
    /// The time at which a model last responded to the agent.
    pub(super) answered: watch::Sender<Option<Timestamp>>,
    /// The secrets that the next keeper receives if this keeper dies.
    pub(super) inherited: watch::Sender<Inherited>,
    /// Masks the secrets in `inherited`.
    pub(super) mask: Mask,
    /// Held while credentials are replaced.
    pub(super) replacing: tokio::sync::Mutex<()>,
    /// Whether the bottle continues to run without its first client. Set to false when the bottle begins to end.
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
        /// The milliseconds between SIGTERM and SIGKILL to the agent.
        grace_ms: u64,
        /// Receives a notice if the bottle ends only after the running snapshot job.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Write a fact into the bottle's record.
    Record {
        /// The fact to record.
        fact: Fact,
        /// Receives the result. Dropped without a result if the bottle is already ending.
        recorded: oneshot::Sender<io::Result<()>>,
    },
    /// Create a snapshot of the bottle.
    Commit {
        /// The options of the snapshot, for example its name.
        options: CommitOptions,
        /// Receives the progress and the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Remove snapshots of the bottle.
    RemoveSnapshot {
        /// The snapshots to remove.
        which: Removal,
        /// Receives the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Freeze or kill the bottle because of a budget.
    Enforce {
        /// [`OnSpent::Freeze`] or [`OnSpent::Kill`].
        policy: OnSpent,
        /// The cause, as a clause for a message.
        why: String,
    },
    /// Measure the size of the bottle, if the last measurement is old.
    Measure,
    /// Find out whether the bottle is paused for a snapshot.
    FindDelay {
        /// Receives the result.
        events: mpsc::Sender<KeeperEvent>,
    },
    /// Find out whether something other than `bottle` paused the bottle.
    FindPause {
        /// Receives a hint how the user can continue the bottle, or `None` if the bottle is not paused.
        answer: oneshot::Sender<Option<String>>,
    },
    /// The first client's connection closed.
    FirstGone,
}

/// An event of a running bottle that the bottle's record stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// The first client detached, and the bottle continues to run without it.
    Detached,
    /// A sidecar ended. `None` means that all sidecars ended.
    SidecarDown(Option<String>),
    /// The bottle is locked.
    LockedOut(LockOut),
    /// The user pulled the bottle's changes up to this time.
    Pulled(Timestamp),
    /// The bottle is paused because of a budget. Contains the cause, or `None` if the bottle continues to run.
    BudgetHold(Option<String>),
    /// The user stopped the requests to models with this policy. `None` if the user allowed the requests again.
    Stopped(Option<OnSpent>),
    /// The user approved these commands for the whole run.
    ApprovedCommands(Vec<ApprovedCommand>),
}

impl Fact {
    /// Writes the fact into the record.
    pub(super) fn write(self, record: &mut Record) {
        match self {
            Self::Detached => record.mode = Mode::Detached,
            Self::SidecarDown(name) => {
                let down = |sidecar: &&mut Service| name.as_ref().is_none_or(|name| sidecar.name == *name);
                record.services.iter_mut().filter(down).for_each(|sidecar| sidecar.up = false);
            }
            Self::LockedOut(why) => record.locked = Some(why),
            Self::Pulled(at) => record.pulled_at = record.pulled_at.max(Some(at)),
            Self::BudgetHold(why) => record.budget_hold = why,
            Self::Stopped(policy) => record.budget_order = policy,
            Self::ApprovedCommands(approved) => {
                for command in approved {
                    if !record.approved_commands.contains(&command) {
                        record.approved_commands.push(command);
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Asks the owner task to write a fact into the bottle's record. Returns `None` if the bottle is already ending.
    /// The owner task also logs a failure.
    pub(super) async fn record(&self, fact: Fact) -> Option<io::Result<()>> {
        let (recorded, is_recorded) = oneshot::channel();
        let _ = self.commands.send(Command::Record { fact, recorded }).await;
        is_recorded.await.ok()
    }
}

/// Counts the clients that are attached to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attached {
    /// The number of open attach streams.
    pub(super) now: usize,
    /// Whether a client was attached at any time.
    pub(super) ever: bool,
}

/// Sends the last message of a stream and ends the stream. Ignores errors, because the client may have disconnected.
pub(super) async fn send_last(stream: &Stream, event: &KeeperEvent) {
    let _ = stream.message(event).await;
    let _ = stream.end().await;
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_fact_has_its_place_in_the_record() {
        let mut record: Record = serde_json::from_value(json!({
            "schema": 1, "slug": "one", "label": null, "color": null, "agent": "probe", "bottles": [],
            "cwd": "/", "copied_cwd": false, "backend": "fake", "mode": "attached", "status": "running",
            "started_at": "2026-01-01T00:00:00Z", "keeper": null, "resources": [], "agent_exit": null,
            "manifest_hash": "", "services": [{"name": "egress", "up": true}, {"name": "git-gate", "up": true}],
        }))
        .expect("a record");
        let at = |second| Fact::Pulled(Timestamp::from_second(second).expect("a time"));
        let approved = |name: &str| ApprovedCommand { rule: name.to_owned(), prefix: Vec::new() };
        let lock = LockOut { daemon: "egress".to_owned(), hits: 5, places: Vec::new(), parent: None };
        for (fact, key, wanted) in [
            (Fact::Detached, "mode", json!("detached")),
            (
                Fact::SidecarDown(Some("egress".to_owned())),
                "services",
                json!([{"name": "egress", "up": false}, {"name": "git-gate", "up": true}]),
            ),
            (
                Fact::SidecarDown(None),
                "services",
                json!([{"name": "egress", "up": false}, {"name": "git-gate", "up": false}]),
            ),
            (Fact::LockedOut(lock.clone()), "locked", serde_json::to_value(&lock).expect("JSON")),
            (at(20), "pulled_at", json!("1970-01-01T00:00:20Z")),
            (at(10), "pulled_at", json!("1970-01-01T00:00:20Z")),
            (Fact::BudgetHold(Some("why".to_owned())), "budget_hold", json!("why")),
            (Fact::BudgetHold(None), "budget_hold", Value::Null),
            (Fact::Stopped(Some(OnSpent::Pause)), "budget_order", json!("pause")),
            (Fact::Stopped(None), "budget_order", Value::Null),
            (
                Fact::ApprovedCommands(vec![approved("a"), approved("a"), approved("b")]),
                "approved_commands",
                json!([approved("a"), approved("b")]),
            ),
        ] {
            fact.clone().write(&mut record);
            let written = serde_json::to_value(&record).expect("JSON");
            assert_eq!(written.get(key).cloned().unwrap_or_default(), wanted, "{fact:?}");
        }
    }
}
