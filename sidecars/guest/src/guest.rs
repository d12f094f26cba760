//! What every request sees: the facts of the bottle and the state of its agent.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use bottle_channel::Channel;
use bottle_contract::names::WORKSPACE;
use bottle_contract::secret::Secret;
use bottle_contract::session::guest::{Overrun, Process};
use rustix::process::Rlimit;
use tokio::sync::watch;

use crate::agent::Agent;
use crate::children::Children;
use crate::config::Programs;
use crate::copy::Places;
use crate::failure::{Outcome, bad_state};
use crate::process::Running;
use crate::{process, program};

/// What stays as the backend said it.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) root: PathBuf,
    pub(crate) programs: Programs,
    /// The limit on open files that processes get back.
    pub(crate) files: Rlimit,
}

impl Facts {
    /// Where a path of a request lies for the guest; relative ones start in the workspace. Only the text
    /// is looked at: whoever opens files for the host goes through `rooted` instead.
    pub(crate) fn inside(&self, path: &str) -> PathBuf {
        let mut found = self.root.clone();
        found.push(relative_to_root(path));
        found
    }
}

/// A request's path without its leading slash, its `..` resolved in the text, never above the root.
pub(crate) fn relative_to_root(path: &str) -> PathBuf {
    let absolute = Path::new(WORKSPACE).join(path);
    let mut found = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => {
                found.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    found
}

/// The guest's state.
pub(crate) struct Guest {
    pub(crate) facts: Facts,
    pub(crate) children: Children,
    pub(crate) agent: Agent,
    pub(crate) copies: Places,
    environment: OnceLock<BTreeMap<String, Secret>>,
    troubles: Mutex<Vec<String>>,
    overrun: OnceLock<Overrun>,
    stopped: watch::Sender<bool>,
    host: Mutex<Option<Channel>>,
}

impl Guest {
    pub(crate) fn new(facts: Facts) -> Self {
        Self {
            facts,
            children: Children::default(),
            agent: Agent::default(),
            copies: Places::default(),
            environment: OnceLock::new(),
            troubles: Mutex::default(),
            overrun: OnceLock::new(),
            stopped: watch::Sender::new(false),
            host: Mutex::default(),
        }
    }

    /// The provisioned environment.
    pub(crate) fn environment(&self) -> Outcome<&BTreeMap<String, Secret>> {
        self.environment.get().ok_or_else(|| bad_state("the bottle is not provisioned yet"))
    }

    /// Keeps the environment, once.
    pub(crate) fn set_environment(&self, environment: BTreeMap<String, Secret>) -> Outcome<()> {
        self.environment.set(environment).map_err(|_| bad_state("the bottle is provisioned already"))
    }

    /// Starts a process of a request.
    pub(crate) fn start(&self, request: &Process) -> Outcome<Running> {
        let command = program::command(&self.facts, self.environment()?, request)?;
        process::start(&self.children, command, request.terminal, request.stdin, self.facts.files)
    }

    /// Notes what of the guest's own services does not work.
    pub(crate) fn trouble(&self, sentence: String) {
        tracing::warn!("{sentence}");
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).push(sentence);
    }

    /// All of that.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A limit was found to be overrun: nothing in the bottle goes on.
    pub(crate) async fn end_for(&self, overrun: Overrun) {
        tracing::warn!(?overrun, "a limit is overrun");
        let _ = self.overrun.set(overrun);
        self.children.kill_all().await;
    }

    /// That limit.
    pub(crate) fn overrun(&self) -> Option<Overrun> {
        self.overrun.get().copied()
    }

    /// A new host speaks; the one before is closed.
    pub(crate) fn meet(&self, host: Channel) {
        let before = self.host.lock().unwrap_or_else(PoisonError::into_inner).replace(host);
        if let Some(before) = before {
            before.close();
        }
    }

    /// Closes the host's connection after everything queued was sent.
    pub(crate) async fn part(&self) {
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(host) = host {
            host.close();
            host.closed().await;
        }
    }

    /// Everything is ended; pid 1 may go.
    pub(crate) fn finish(&self) {
        self.stopped.send_replace(true);
    }

    /// Resolves when [`Guest::finish`] was called.
    pub(crate) async fn finished(&self) {
        // The sender lives in `self`, so this ends only when the value is set.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_leads_above_the_root() {
        for (path, relative) in [
            ("/etc/passwd", "etc/passwd"),
            ("notes", "workspace/notes"),
            ("../../../etc", "etc"),
            ("/a/../../b/./c", "b/c"),
            ("/", ""),
            ("", "workspace"),
        ] {
            assert_eq!(relative_to_root(path), Path::new(relative), "{path}");
        }
    }
}
