//! The environments of one `$BOTTLE_HOME`.

use std::io;
use std::time::Duration;

use bottle_host::Host;
use bottle_host::file_lock::FileLock;
use bottle_instance::environments::{self, Environment, Environments as Records};
use bottle_instance::{State, Store};
use bottle_policy::names::Slug;

use crate::bottles::activities;
use crate::failure::Failure;
use crate::report::ListedEnvironment;

/// The pause between two attempts to get a lock.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// The state of an environment whose bottle runs.
const RUNNING: &str = "running";

/// The environments of one `$BOTTLE_HOME`.
#[derive(Debug, Clone)]
pub struct Environments<'h> {
    pub(super) host: &'h Host,
    pub(super) records: Records,
}

impl<'h> Environments<'h> {
    /// Returns the environments of this `$BOTTLE_HOME`. Creates their directory if it is missing.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn of(host: &'h Host) -> Result<Self, Failure> {
        let records = Records::of(host).map_err(|error| unusable(&error))?;
        Ok(Self { host, records })
    }

    /// Lists the tasks that have a bottle, sorted by id.
    ///
    /// # Errors
    /// When the directory cannot be read, or a lock file cannot be used.
    pub fn list(&self) -> Result<Vec<ListedEnvironment>, Failure> {
        self.all()?.into_iter().map(|environment| self.listed(environment)).collect()
    }

    /// Lists the tasks as [`Self::list`] does, and asks the keepers of running bottles for their disk space.
    ///
    /// # Errors
    /// As [`Self::list`]. A keeper that does not answer is no error.
    pub async fn list_measured(&self) -> Result<Vec<ListedEnvironment>, Failure> {
        let mut listed = self.list()?;
        let running = listed.iter().filter(|environment| environment.state == RUNNING);
        let slugs = running.filter_map(|environment| environment.slug.parse().ok()).collect();
        let activities = activities(self.host, slugs).await;
        for environment in &mut listed {
            let slug = environment.slug.parse::<Slug>().ok();
            let size = slug.and_then(|slug| activities.get(&slug)?.size);
            environment.disk_bytes = size.map(|size| size.bytes).or(environment.disk_bytes);
        }
        Ok(listed)
    }

    /// Checks that a task has an environment.
    ///
    /// # Errors
    /// When the task has no environment, or its id cannot be used.
    pub fn require(&self, task: &str) -> Result<(), Failure> {
        match self.records.get(&slug_of(task)?) {
            Some(_) => Ok(()),
            None => Err(Failure::state(format!("there is no environment of the task {task:?}"))
                .about("TASK")
                .hint("`bottle env ls` shows all")),
        }
    }

    pub(super) fn all(&self) -> Result<Vec<Environment>, Failure> {
        self.records.list().map_err(|error| unusable(&error))
    }

    fn listed(&self, environment: Environment) -> Result<ListedEnvironment, Failure> {
        let Environment { task, slug, created_at, last_used, parent: _ } = environment;
        let in_use = self.unused(&slug)?.is_none();
        let (state, record) = match Store::of(self.host).state(&slug) {
            Some(State::Alive(record)) => (RUNNING, Some(record)),
            Some(State::Kept(record)) => ("kept", Some(record)),
            _ => ("gone", None),
        };
        let disk_bytes = record.and_then(|record| record.size).map(|size| size.bytes);
        Ok(ListedEnvironment {
            task,
            slug: slug.to_string(),
            state,
            in_use,
            created_at,
            last_used,
            disk_bytes,
        })
    }

    pub(super) fn is_running(&self, slug: &Slug) -> bool {
        matches!(Store::of(self.host).state(slug), Some(State::Alive(_)))
    }

    /// Takes a lock that prevents every use of the environment. `None` if a command uses the environment.
    pub(super) fn unused(&self, slug: &Slug) -> Result<Option<FileLock>, Failure> {
        self.records.keep_unused(slug).map_err(|error| unusable(&error))
    }
}

/// Returns the slug of a task's bottle.
///
/// # Errors
/// When the task id cannot be used.
pub fn slug_of(task: &str) -> Result<Slug, Failure> {
    environments::slug_of(task).map_err(|why| {
        Failure::usage(format!("cannot use the task id {task:?}: {why}"))
            .about("TASK")
            .hint("name the task with letters and digits, such as `django-1234`")
    })
}

/// Waits until `take` returns a lock. Other asynchronous tasks of this process can run during the wait.
pub(super) async fn locked(take: impl Fn() -> io::Result<Option<FileLock>>) -> Result<FileLock, Failure> {
    loop {
        if let Some(lock) = take().map_err(|error| unusable(&error))? {
            return Ok(lock);
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// The failure if a file of an environment cannot be used.
pub(super) fn unusable(error: &io::Error) -> Failure {
    let hint = bottle_host::disk::hint(error);
    Failure::state(format!("cannot use the directory of environments: {error}"))
        .about("BOTTLE_HOME")
        .hint(hint)
}
