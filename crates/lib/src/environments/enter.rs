//! Creates the bottle of a task exactly once, even if several callers ask for it concurrently, and marks the bottle as
//! in use.

use std::time::Duration;

use bottle_host::Settings;
use bottle_host::environment_settings::Choices;
use bottle_host::file_lock::FileLock;
use bottle_instance::{State, Store};
use bottle_keeper::client::{self, ClientError};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::Process;
use jiff::Timestamp;

use super::home::{Environments, locked, slug_of, unusable};
use super::reaper;
use crate::connect::end_of;
use crate::exec::{self, Place};
use crate::failure::Failure;
use crate::notice::{Notice, Notify};
use crate::redaction::Redaction;
use crate::report::Executed;

/// The maximum number of retries after a connection failed.
const RETRIES: u32 = 5;

/// The pause before the first retry. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// A request to use the bottle of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The id of the task.
    pub task: String,
    /// The choices for a new bottle. Absent choices come from `environments` in `settings.yml`.
    pub choices: Choices,
    /// Whether the bottle must have been started by the client that the variable [`bottle_host::PARENT`] names.
    pub is_own: bool,
}

/// The bottle of a task while a command uses it. While this value exists, the bottle is neither stopped as idle nor
/// removed.
pub struct InUse<'e> {
    environments: &'e Environments<'e>,
    task: String,
    slug: Slug,
    notify: Notify<'e>,
    _lock: FileLock,
}

impl InUse<'_> {
    /// The slug of the bottle.
    pub fn slug(&self) -> &Slug {
        &self.slug
    }

    /// Records the current time as the last use of the bottle.
    fn record(&self) -> Result<(), Failure> {
        let Environments { host, records } = self.environments;
        let recorded = records.record_use(&self.task, &self.slug, Timestamp::now(), host.parent());
        recorded.map_err(|error| unusable(&error))
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        // The result of the command matters more than a failure to record the use, so this failure is only a warning.
        self.record().unwrap_or_else(|failure| (self.notify)(Notice::Warning(failure.message)));
    }
}

impl Environments<'_> {
    /// Runs a command in the bottle of a task to its end, with this input and the time limit `limit`. Creates the
    /// bottle if the task has none. `redaction` replaces values in the output. If the future is dropped, an unfinished
    /// start is undone, and a running command is ended.
    ///
    /// # Errors
    /// Returns the errors of [`Environments::enter`] and [`exec::run`].
    pub async fn run(
        &self,
        wanted: Use,
        process: Process,
        (input, limit): (Option<&[u8]>, Duration),
        redaction: Option<&Redaction>,
        notify: Notify<'_>,
    ) -> Result<Executed, Failure> {
        let used = self.enter(wanted, notify).await?;
        exec::run((self.host, used.slug(), Place::Running), process, input, limit, redaction).await
    }

    /// Makes sure that the bottle of a task runs, and that commands can connect to it. Waits while another command
    /// starts, stops or removes the bottle. If the future is dropped, an unfinished start is undone.
    ///
    /// # Errors
    /// When the bottle cannot be started, when its agent ends immediately, or when another client started the bottle.
    pub async fn enter<'e>(&'e self, wanted: Use, notify: Notify<'e>) -> Result<InUse<'e>, Failure> {
        let Use { task, choices, is_own } = wanted;
        let slug = slug_of(&task)?;
        let settings = Settings::load(self.host)?.environments;
        let lock = locked(|| self.records.use_it(&slug)).await?;
        let state = Store::of(self.host).state(&slug);
        if choices != Choices::default() && matches!(state, Some(State::Alive(_) | State::Kept(_))) {
            notify(Notice::Warning(format!(
                "{slug} exists already; `--agent`, `--bottle`, `--backend` and `--cwd` have no effect"
            )));
        }
        let choices = choices.or(&settings.of_task(&task));
        let started = self.ensure_runs(&slug, &choices, notify).await?;
        if is_own {
            self.require_own(&slug)?;
        }
        let used = InUse { environments: self, task, slug, notify, _lock: lock };
        used.record()?;
        if settings.idle.is_some() {
            reaper::spawn(self.host, &self.records)?;
        }
        self.reach(&used.slug, &choices, started, notify).await?;
        Ok(used)
    }

    /// Checks that the bottle was started by the client for which this command runs.
    fn require_own(&self, slug: &Slug) -> Result<(), Failure> {
        match Store::of(self.host).state(slug) {
            Some(State::Alive(record)) if record.parent == self.host.parent() => Ok(()),
            _ => Err(Failure::state(format!("cannot use {slug}: another client started it"))
                .about("--own")
                .hint("choose another task id")),
        }
    }

    /// Checks that a connection to the bottle succeeds, so that a command can run in the bottle. Retries only failed
    /// connections, and only before the command runs. If the bottle has ended, starts it again, unless this command
    /// already started it.
    async fn reach(
        &self,
        slug: &Slug,
        choices: &Choices,
        mut started: bool,
        notify: Notify<'_>,
    ) -> Result<(), Failure> {
        let mut pause = PAUSE;
        for _ in 0..RETRIES {
            if let Some(ended) = end_of(self.host, slug).await {
                if started {
                    return Err(ended);
                }
                started = self.ensure_runs(slug, choices, notify).await?;
            }
            match client::connect(self.host, slug).await {
                Ok(_) => return Ok(()),
                // The keeper of a bottle that ended may need a moment to exit.
                Err(ClientError::NotRunning { .. }) => tokio::time::sleep(PAUSE).await,
                Err(error) if is_transport(&error) => {
                    notify(Notice::Note(format!(
                        "cannot connect to {slug}: {error}; tries again in {pause:?}"
                    )));
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                // The command connects again and reports this error.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Whether another attempt to connect may succeed later.
fn is_transport(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Unreached { .. }
            | ClientError::Handshake(_)
            | ClientError::Lost(_)
            | ClientError::Locked(_)
    )
}
