//! Registers the processes that clients and services started, with their handles and names.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bottle_protocol::session::guest::FailureKind;
use bottle_protocol::session::process::{PROCESSES_DEFAULT, PROCESSES_MAX, ProcessName};
use rustix::process::Pid;
use tokio::sync::watch;

use crate::children::ExitWatch;
use crate::failure::{Outcome, bad_state, failed, other};
use crate::hosted::Hosted;

/// The registry of all processes that clients and services started, oldest first.
#[derive(Default)]
pub(crate) struct Processes {
    known: Mutex<Known>,
    /// The maximum number of processes. If it is not set, [`PROCESSES_DEFAULT`] is the maximum.
    most: OnceLock<usize>,
    /// Notifies watchers of starts.
    started: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    /// The number in the handle of the last process.
    last: u64,
    all: VecDeque<Entry>,
}

/// A process with its handle and its name.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) handle: ProcessName,
    pub(crate) name: Option<ProcessName>,
    pub(crate) hosted: Arc<Hosted>,
}

impl Entry {
    fn is(&self, name: &ProcessName) -> bool {
        self.handle == *name || self.name.as_ref() == Some(name)
    }

    fn runs(&self) -> bool {
        self.hosted.process().is_some_and(|(_, exit)| exit.now().is_none())
    }
}

impl Processes {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the maximum number of processes.
    pub(crate) fn set_most(&self, most: usize) {
        // The value is not set yet, because the bottle is provisioned only once.
        let _ = self.most.set(most.clamp(1, PROCESSES_MAX));
    }

    /// Starts a process with the function `start`, and registers it.
    pub(crate) fn start(
        &self,
        name: Option<ProcessName>,
        start: impl FnOnce(&Arc<Hosted>) -> Outcome<(Pid, ExitWatch)>,
    ) -> Outcome<Started> {
        let mut known = self.known();
        if let Some(name) = &name {
            if name.is_handle() {
                return Err(other(format!("{name} cannot be a name, because handles look like this")));
            }
            if let Some(entry) = known.all.iter().find(|entry| entry.is(name) && entry.runs()) {
                return Err(bad_state(format!("a process named {name} runs already: {}", entry.handle)));
            }
        }
        let most = self.most.get().copied().unwrap_or(PROCESSES_DEFAULT);
        if known.all.len() >= most {
            let ended = known.all.iter().position(|entry| !entry.runs());
            let why = || format!("{most} processes run already, and `processes.keep` allows no more");
            let ended = ended.ok_or_else(|| bad_state(why()))?;
            known.all.remove(ended);
        }
        known.last += 1;
        let handle = ProcessName::handle(known.last);
        let hosted: Arc<Hosted> = Arc::default();
        let (pid, exit) = start(&hosted)?;
        known.all.push_back(Entry { handle: handle.clone(), name, hosted });
        self.started.send_replace(known.last);
        Ok(Started { handle, pid, exit })
    }

    /// Returns a receiver that is notified whenever a process starts.
    pub(crate) fn starts(&self) -> watch::Receiver<u64> {
        self.started.subscribe()
    }

    pub(crate) fn all(&self) -> Vec<Entry> {
        self.known().all.iter().cloned().collect()
    }

    /// Finds a process by its handle or its name. If several processes have the name, returns the last of them.
    pub(crate) fn find(&self, name: &ProcessName) -> Outcome<Arc<Hosted>> {
        let known = self.known();
        if let Some(entry) = known.all.iter().rev().find(|entry| entry.is(name)) {
            return Ok(entry.hosted.clone());
        }
        let shown = |entry: &Entry| match &entry.name {
            Some(name) => format!("{} ({name})", entry.handle),
            None => entry.handle.to_string(),
        };
        let all: Vec<String> = known.all.iter().map(shown).collect();
        let have =
            if all.is_empty() { "none was started".to_owned() } else { format!("it has {}", all.join(", ")) };
        Err(failed(FailureKind::BadState, format!("the bottle has no process {name}: {have}")))
    }

    /// Removes the ended processes with the name `name` that were started before the process with the handle `first`.
    pub(crate) fn forget_runs_before(&self, name: &ProcessName, first: &ProcessName) {
        let mut known = self.known();
        let kept = known.all.iter().position(|entry| entry.handle == *first).unwrap_or(0);
        let mut at = 0;
        known.all.retain(|entry| {
            at += 1;
            at > kept || entry.name.as_ref() != Some(name) || entry.runs()
        });
    }

    /// Waits until no client follows the output of any process.
    pub(crate) async fn unfollowed(&self) {
        for entry in self.all() {
            entry.hosted.unfollowed().await;
        }
    }

    /// Returns the process with the name or handle `name`. Returns the agent if `name` is `None`.
    pub(crate) fn hosted_or(&self, agent: &Arc<Hosted>, name: Option<&ProcessName>) -> Outcome<Arc<Hosted>> {
        name.map_or_else(|| Ok(agent.clone()), |name| self.find(name))
    }
}

/// A process that was started.
pub(crate) struct Started {
    pub(crate) handle: ProcessName,
    pub(crate) pid: Pid,
    pub(crate) exit: ExitWatch,
}
