//! The state that client connections share with the owner task, and their commands to that task.

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
use super::notices::Notices;
use super::protocol::{Ended, Inherited, KeeperEvent};
use super::tool_calls::ToolCalls;

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
    /// Passes the user's changes to this bottle on to its children.
    pub(super) children: Children,
    /// The tool calls of the agent.
    pub(super) tool_calls: ToolCalls,
    pub(super) commands: mpsc::Sender<Command>,
    /// How the user stopped requests to models.
    pub(super) stopped: watch::Sender<Stopped>,
    /// The last value of `stopped` that took effect.
    pub(super) applied: watch::Sender<Stopped>,
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
    /// Whether the bottle continues to run without its first client. False again when it begins to end.
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
    /// Write a fact into the bottle's record.
    Record {
        /// What happened.
        fact: Fact,
        /// Receives the result. Dropped if the bottle ends already.
        recorded: oneshot::Sender<io::Result<()>>,
    },
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
    /// Freeze or kill the bottle because of a budget.
    Enforce {
        /// [`OnSpent::Freeze`] or [`OnSpent::Kill`].
        policy: OnSpent,
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

/// An event of a running bottle that its record stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fact {
    /// Its first client detached: the bottle continues to run without that client.
    Detached,
    /// A sidecar ended. `None` means that all sidecars ended.
    SidecarDown(Option<String>),
    /// The bottle is locked.
    LockedOut(LockOut),
    /// The user pulled the bottle's changes up to this time.
    Pulled(Timestamp),
    /// The bottle is paused because of a budget, for this cause. `None` if it continues.
    BudgetHold(Option<String>),
    /// The user stopped requests to models with this policy. `None` if they are allowed again.
    Stopped(Option<OnSpent>),
    /// The user approved these commands for the run.
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
    /// Asks the owner task to write a fact into the bottle's record. `None` if the bottle ends already. A failure is
    /// also logged.
    pub(super) async fn record(&self, fact: Fact) -> Option<io::Result<()>> {
        let (recorded, is_recorded) = oneshot::channel();
        let _ = self.commands.send(Command::Record { fact, recorded }).await;
        is_recorded.await.ok()
    }
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
