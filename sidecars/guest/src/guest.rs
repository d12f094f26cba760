//! Defines the guest's state, which all requests share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bottle_channel::Channel;
use bottle_policy::names::WORKSPACE;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::{Overrun, Process};
use bottle_scan::OutputRedactor;
use tokio::sync::watch;

use crate::children::Children;
use crate::copy::slots::CopySlots;
use crate::facts::Facts;
use crate::failure::{Outcome, bad_state};
use crate::files::slots::FileSlots;
use crate::hosted::Hosted;
use crate::process::{Pipes, Running};
use crate::process_registry::Processes;
use crate::services::registry::Services;
use crate::{process, program, redaction};

/// The state of the guest.
pub(crate) struct Guest {
    pub(crate) facts: Facts,
    pub(crate) children: Children,
    pub(crate) agent: Arc<Hosted>,
    pub(crate) processes: Processes,
    pub(crate) services: Services,
    pub(crate) copies: CopySlots,
    pub(crate) files: FileSlots,
    environment: OnceLock<BTreeMap<String, Secret>>,
    redaction: OnceLock<Arc<OutputRedactor>>,
    work: OnceLock<Vec<PathBuf>>,
    problems: Mutex<Vec<String>>,
    overrun: OnceLock<Overrun>,
    stopped: watch::Sender<bool>,
    host: Mutex<Option<Channel>>,
}

impl Guest {
    pub(crate) fn new(facts: Facts) -> Self {
        Self {
            facts,
            children: Children::default(),
            agent: Arc::default(),
            processes: Processes::default(),
            services: Services::default(),
            copies: CopySlots::default(),
            files: FileSlots::default(),
            environment: OnceLock::new(),
            redaction: OnceLock::new(),
            work: OnceLock::new(),
            problems: Mutex::default(),
            overrun: OnceLock::new(),
            stopped: watch::Sender::new(false),
            host: Mutex::default(),
        }
    }

    /// Returns the environment variables that the host provisioned.
    pub(crate) fn environment(&self) -> Outcome<&BTreeMap<String, Secret>> {
        self.environment.get().ok_or_else(|| bad_state("the bottle is not provisioned yet"))
    }

    /// Returns the search for the secret values that are replaced in what clients read. `None` before the bottle is
    /// provisioned.
    pub(crate) fn redaction(&self) -> Option<&Arc<OutputRedactor>> {
        self.redaction.get()
    }

    /// Stores the environment variables. `secret` contains the names of the variables with secret values. Fails if
    /// variables are already stored.
    pub(crate) fn set_environment(
        &self,
        environment: BTreeMap<String, Secret>,
        secret: &BTreeSet<String>,
    ) -> Outcome<()> {
        let values = environment.iter().filter(|(name, _)| secret.contains(*name)).map(|(_, value)| value);
        // The redaction is not set yet: no output was read before, because no process runs before the environment is
        // set.
        let _ = self.redaction.set(Arc::new(redaction::of_values(values)?));
        self.environment.set(environment).map_err(|_| bad_state("the bottle is provisioned already"))
    }

    /// Sets the directories that are searched for unsaved work. These directories are searched instead of the
    /// workspace.
    pub(crate) fn set_work(&self, directories: &[String]) {
        // The value is not set yet, because the bottle is provisioned only once.
        let _ = self.work.set(directories.iter().map(|directory| self.facts.inside(directory)).collect());
    }

    /// Returns the directories that are searched for unsaved work.
    pub(crate) fn work(&self) -> Vec<PathBuf> {
        self.work.get().cloned().unwrap_or_else(|| vec![self.facts.inside(WORKSPACE)])
    }

    /// Starts the process that a request describes.
    pub(crate) fn start(&self, request: &Process) -> Outcome<Running> {
        let command = program::command(&self.facts, self.environment()?, request)?;
        let pipes = Pipes { stdin: request.stdin, merged: request.merged };
        process::start(&self.children, command, request.terminal, pipes, &self.facts)
    }

    /// Logs and records a failure of a part of the guest, such as the forwarder.
    pub(crate) fn report_problem(&self, message: String) {
        tracing::warn!("{message}");
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    /// Returns all recorded failures.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the bottle because it exceeds a limit. Kills all processes.
    pub(crate) async fn end_for(&self, overrun: Overrun) {
        tracing::warn!(?overrun, "a limit is exceeded");
        let _ = self.overrun.set(overrun);
        self.services.abandon();
        self.children.kill_all().await;
    }

    /// Returns the limit that the bottle has exceeded, if any.
    pub(crate) fn overrun(&self) -> Option<Overrun> {
        self.overrun.get().copied()
    }

    /// Sets the connection to the host, and closes the previous connection.
    pub(crate) fn connect_host(&self, host: Channel) {
        let before = self.host.lock().unwrap_or_else(PoisonError::into_inner).replace(host);
        if let Some(before) = before {
            before.close();
        }
    }

    /// Closes the connection to the host after all queued data has been sent.
    pub(crate) async fn disconnect_host(&self) {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(host) = host {
            host.close();
            host.closed().await;
        }
    }

    /// Marks the bottle as stopped, so that pid 1 may exit.
    pub(crate) fn finish(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits for [`Guest::finish`].
    pub(crate) async fn finished(&self) {
        // The sender belongs to `self`, so waiting cannot fail before the value is set.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }
}
