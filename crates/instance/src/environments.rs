//! The environments of `bottle env`: which bottle belongs to which task, and the locks that make concurrent commands
//! create only one bottle for each task.
//!
//! ```text
//! $BOTTLE_HOME/environments/SLUG.json    the record
//! $BOTTLE_HOME/environments/SLUG.use     shared lock of each command that uses it; exclusive lock to stop or remove it
//! $BOTTLE_HOME/environments/SLUG.make    exclusive lock to start its bottle
//! $BOTTLE_HOME/environments/start-N      exclusive locks, which bound how many bottles start at the same time
//! $BOTTLE_HOME/environments/reaper       exclusive lock of the process that stops idle bottles
//! ```
//! The kernel releases a lock when the process that holds the lock exits.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_host::file_lock::{FileLock, try_lock, try_lock_shared};
use bottle_host::files::{create_private_directory, replace};
use bottle_policy::names::Slug;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The name of the directory in `$BOTTLE_HOME`.
const DIRECTORY: &str = "environments";

/// The longest id of a task in bytes.
pub const TASK_MAX: usize = 200;

/// The maximum number of task bottles that start at the same time. Each start uses a processor and reads an image.
const STARTS: u32 = 4;

/// The maximum number of characters of the task's id that the slug contains.
const READABLE: usize = 24;

/// The maximum size of a record in bytes.
const RECORD_MAX: u64 = 16 << 10;

/// The environments of a home.
#[derive(Debug, Clone)]
pub struct Environments(PathBuf);

/// One environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The id of the task.
    pub task: String,
    /// The task's bottle.
    pub slug: Slug,
    /// When the environment was created.
    pub created_at: Timestamp,
    /// When a command last began or ended in the environment.
    pub last_used: Timestamp,
    /// The client of `bottle mcp` that created the environment, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// Why the id of a task cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTask {
    /// The id is empty, or has no letter or digit.
    #[error("it needs at least one ASCII letter or digit")]
    NoName,
    /// The id is longer than [`TASK_MAX`].
    #[error("it is longer than {TASK_MAX} bytes")]
    TooLong,
    /// The id has a control character.
    #[error("it has a control character")]
    Control,
}

/// Returns the slug of a task's bottle. Equal ids have equal slugs. Different ids almost always have different slugs,
/// because the slug contains 32 bits of a hash of the id.
///
/// # Errors
/// Returns [`BadTask`] if the id cannot be used.
pub fn slug_of(task: &str) -> Result<Slug, BadTask> {
    if task.len() > TASK_MAX {
        return Err(BadTask::TooLong);
    }
    if task.chars().any(char::is_control) {
        return Err(BadTask::Control);
    }
    let readable = Slug::from_label(task).map_err(|_| BadTask::NoName)?;
    let readable: String = readable.as_str().chars().take(READABLE).collect();
    let digest = Sha256::digest(task.as_bytes());
    let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    Slug::from_label(&format!("env-{readable}-{digest}")).map_err(|_| BadTask::NoName)
}

impl Environments {
    /// Returns the environments of this home. Creates the directory of the environments.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn of(host: &Host) -> io::Result<Self> {
        let directory = host.home.join(DIRECTORY);
        create_private_directory(&directory)?;
        Ok(Self(directory))
    }

    /// Takes the lock that prevents other processes from stopping or removing the environment. `None` if a process is
    /// stopping or removing it.
    ///
    /// # Errors
    /// Fails if the lock file cannot be used.
    pub fn use_it(&self, slug: &Slug) -> io::Result<Option<FileLock>> {
        self.lock(&format!("{slug}.use"), try_lock_shared)
    }

    /// Takes the lock that prevents all commands from using the environment. `None` if a command uses the environment.
    ///
    /// # Errors
    /// Fails if the lock file cannot be used.
    pub fn keep_unused(&self, slug: &Slug) -> io::Result<Option<FileLock>> {
        self.lock(&format!("{slug}.use"), try_lock)
    }

    /// Takes the lock to start the environment's bottle. `None` if another command is starting the bottle.
    ///
    /// # Errors
    /// Fails if the lock file cannot be used.
    pub fn make(&self, slug: &Slug) -> io::Result<Option<FileLock>> {
        self.lock(&format!("{slug}.make"), try_lock)
    }

    /// Takes one of the slots for starting a task's bottle. `None` if all slots are taken.
    ///
    /// # Errors
    /// Fails if a lock file cannot be used.
    pub fn start_slot(&self) -> io::Result<Option<FileLock>> {
        (0..STARTS).find_map(|slot| self.lock(&format!("start-{slot}"), try_lock).transpose()).transpose()
    }

    /// Takes the lock of the reaper, the process that stops idle bottles. `None` if another process holds the lock.
    ///
    /// # Errors
    /// Fails if the lock file cannot be used.
    pub fn reap(&self) -> io::Result<Option<FileLock>> {
        self.lock("reaper", try_lock)
    }

    /// Lists all environments, sorted by the ids of their tasks. A record that cannot be read is left out.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<Environment>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                all.extend(read(&path));
            }
        }
        all.sort_by(|one, other| one.task.cmp(&other.task));
        Ok(all)
    }

    /// Returns the environment of this bottle.
    #[must_use]
    pub fn get(&self, slug: &Slug) -> Option<Environment> {
        read(&self.record_path(slug))
    }

    /// Whether this bottle belongs to a task of this home.
    #[must_use]
    pub fn has(home: &Path, slug: &Slug) -> bool {
        read(&home.join(DIRECTORY).join(format!("{slug}.json"))).is_some()
    }

    /// Records that a command of the task begins or ends. If the environment is new, also records the environment, with
    /// `parent` as its parent.
    ///
    /// # Errors
    /// Fails if the record cannot be written.
    pub fn record_use(
        &self,
        task: &str,
        slug: &Slug,
        now: Timestamp,
        parent: Option<String>,
    ) -> io::Result<()> {
        let before = self.get(slug).map(|before| (before.created_at, before.parent));
        let (created_at, parent) = before.unwrap_or((now, parent));
        let (task, slug) = (task.to_owned(), slug.clone());
        let record = Environment { task, slug, created_at, last_used: now, parent };
        replace(&self.record_path(&record.slug), |file| {
            serde_json::to_writer(file, &record).map_err(io::Error::from)
        })
    }

    /// Removes the record of an environment that no command uses.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub fn forget(&self, slug: &Slug, _unused: &FileLock) -> io::Result<()> {
        let files = ["json", "make", "use"].map(|extension| self.0.join(format!("{slug}.{extension}")));
        files.iter().try_for_each(|path| match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }

    fn record_path(&self, slug: &Slug) -> PathBuf {
        self.0.join(format!("{slug}.json"))
    }

    /// Takes the lock in the file `name`. `None` if `take` returns false.
    fn lock(&self, name: &str, take: impl Fn(&File) -> io::Result<bool>) -> io::Result<Option<FileLock>> {
        FileLock::at(&self.0.join(name), take)
    }
}

fn read(path: &Path) -> Option<Environment> {
    let file = File::open(path).ok()?;
    serde_json::from_reader(io::Read::take(file, RECORD_MAX)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn environments() -> (tempfile::TempDir, Environments) {
        let directory = tempfile::tempdir().expect("directory");
        let environments = Environments(directory.path().to_owned());
        (directory, environments)
    }

    #[test]
    fn tasks_with_similar_ids_have_different_bottles() {
        let long = "django__django-".to_owned() + &"1".repeat(60);
        let tasks = ["a", "A", "a/", "a b", "a-b", &long, &format!("{long}2")];
        let slugs: HashSet<Slug> = tasks.iter().map(|task| slug_of(task).expect("a slug")).collect();
        assert_eq!(slugs.len(), tasks.len());
        assert_eq!(slug_of("django__django-1").expect("a slug").as_str(), "env-django-django-1-2db36eed");
        assert_eq!(slug_of(""), Err(BadTask::NoName));
        assert_eq!(slug_of("../.."), Err(BadTask::NoName));
        assert_eq!(slug_of("a\nb"), Err(BadTask::Control));
        assert_eq!(slug_of(&"a".repeat(TASK_MAX + 1)), Err(BadTask::TooLong));
    }

    #[test]
    fn an_environment_in_use_is_not_removed() {
        let (_directory, environments) = environments();
        let slug = slug_of("one").expect("a slug");
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().expect("a time");
        let used = || environments.use_it(&slug).expect("a try");
        let (first, second) = (used().expect("a lock"), used().expect("a lock"));
        environments.record_use("one", &slug, now, None).expect("recorded");
        drop(first);
        assert!(environments.keep_unused(&slug).expect("a try").is_none(), "the second command uses it");
        drop(second);
        let unused = environments.keep_unused(&slug).expect("a try").expect("unused");
        assert!(used().is_none(), "the environment is being removed");
        environments.forget(&slug, &unused).expect("removed");
        assert!(
            environments.keep_unused(&slug).expect("a try").is_some(),
            "the lock was of the removed file"
        );
        assert_eq!((environments.get(&slug), environments.list().expect("a list")), (None, Vec::new()));
    }

    #[test]
    fn a_use_keeps_the_time_of_creation() {
        let (directory, environments) = environments();
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let (then, now) = (time("2026-01-31T12:00:00Z"), time("2026-01-31T13:00:00Z"));
        for task in ["two", "one"] {
            environments
                .record_use(task, &slug_of(task).expect("a slug"), then, Some("me".to_owned()))
                .expect("recorded");
        }
        environments.record_use("one", &slug_of("one").expect("a slug"), now, None).expect("recorded");
        fs::write(directory.path().join("damaged.json"), "{").expect("written");
        let all = environments.list().expect("a list");
        let shown: Vec<_> =
            all.iter().map(|found| (found.task.as_str(), found.created_at, found.last_used)).collect();
        assert_eq!(shown, [("one", then, now), ("two", then, then)]);
        // A later use does not change the parent.
        assert_eq!(
            all.iter().map(|found| found.parent.as_deref()).collect::<Vec<_>>(),
            [Some("me"), Some("me")]
        );
    }

    proptest! {
        #[test]
        fn every_id_has_a_valid_slug_or_a_reason(task in any::<String>()) {
            if let Ok(slug) = slug_of(&task) {
                prop_assert!(slug.as_str().parse::<Slug>().is_ok());
            }
        }
    }
}
