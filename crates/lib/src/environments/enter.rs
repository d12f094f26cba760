//! Creates the bottle of a task exactly once, even with concurrent callers, and marks the bottle as in use.

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
use crate::report::Executed;

/// The maximum number of retries after a connection failed.
const RETRIES: u32 = 5;

/// The pause before the first retry. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// A use of the bottle of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The id of the task.
    pub task: String,
    /// How the bottle is made. Absent choices come from `environments` in `settings.yml`.
    pub choices: Choices,
    /// Whether the bottle must have been started by this client, which [`bottle_host::PARENT`] names.
    pub is_own: bool,
}

/// The bottle of a task while a command uses it: it is neither stopped as idle nor removed. Dropping the value ends the use.
pub struct InUse<'e> {
    environments: &'e Environments<'e>,
    task: String,
    slug: Slug,
    notify: Notify<'e>,
    _lock: FileLock,
}

impl InUse<'_> {
    /// The bottle.
    pub fn slug(&self) -> &Slug {
        &self.slug
    }

    /// Records that a command begins or ends.
    fn record(&self) -> Result<(), Failure> {
        let Environments { host, records } = self.environments;
        let recorded = records.record_use(&self.task, &self.slug, Timestamp::now(), host.parent());
        recorded.map_err(|error| unusable(&error))
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        // The result of the command matters more than this failure, so the failure is only a warning.
        self.record().unwrap_or_else(|failure| (self.notify)(Notice::Warning(failure.message)));
    }
}

impl Environments<'_> {
    /// Runs a command in the bottle of a task to its end, with this input and the time limit `limit`. Creates the
    /// bottle if there is none. If the future is dropped, a start is undone, and the command is ended.
    ///
    /// # Errors
    /// As [`Environments::enter`] and [`exec::run`].
    pub async fn run(
        &self,
        wanted: Use,
        process: Process,
        input: Option<&[u8]>,
        limit: Duration,
        notify: Notify<'_>,
    ) -> Result<Executed, Failure> {
        let used = self.enter(wanted, notify).await?;
        exec::run((self.host, used.slug(), Place::Running), process, input, limit).await
    }

    /// Makes sure that the bottle of a task runs, and that commands can connect to it. Waits until no other command starts,
    /// stops or removes it. If the future is dropped, a start is undone.
    ///
    /// # Errors
    /// When the bottle cannot be started, when its agent ends at once, or when it does not belong to the client.
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

    /// Checks that the client for which this command runs started the bottle.
    fn require_own(&self, slug: &Slug) -> Result<(), Failure> {
        match Store::of(self.host).state(slug) {
            Some(State::Alive(record)) if record.parent == self.host.parent() => Ok(()),
            _ => Err(Failure::state(format!("cannot use {slug}: another client started it"))
                .about("--own")
                .hint("choose another task id")),
        }
    }

    /// Connects to the bottle, so that a command can run in it. Retries only after a failed connection, before the
    /// command runs. A bottle that ended meanwhile is started again, unless this command started it.
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
                // The bottle's keeper may need a moment to exit.
                Err(ClientError::NotRunning { .. }) => tokio::time::sleep(PAUSE).await,
                Err(error) if is_transport(&error) => {
                    notify(Notice::Note(format!(
                        "cannot connect to {slug}: {error}; tries again in {pause:?}"
                    )));
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                // The command reports this error.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Whether the same connection may succeed later.
fn is_transport(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Unreached { .. }
            | ClientError::Handshake(_)
            | ClientError::Lost(_)
            | ClientError::Locked(_)
    )
}
