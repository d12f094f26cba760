//! The children of a bottle: the bottles that its agent started.
//!
//! ```text
//! state/<parent>/children.json   what the parent may start, and the most that a child may have
//! state/<parent>/children.lock   exclusive lock of a start, so that concurrent starts count each other
//! state/<child>/metadata.json    `parent` is the client name of one launch of the parent
//! ```
//! A child belongs to one launch of its parent: a later bottle with the parent's name has no access to the child.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bottle_host::file_lock::{self, FileLock};
use bottle_host::files;
use bottle_host::files::FileError;
use bottle_manifest::mcp::ChildRules;
use bottle_plan::{Ceiling, Plan};
use bottle_policy::names::Slug;
use serde::{Deserialize, Serialize};

use super::record::{Record, Status};
use super::store::{State, Store};

/// The prefix of a bottle's client name. Names of other clients do not have this prefix.
const CLIENT: &str = "bottle:";

/// The maximum size of `children.json` in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The bottles that the agent of a bottle may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Children {
    /// Which agents and how many bottles the parent may start, and what it may do with them.
    pub rules: ChildRules,
    /// The access and limits that no child may exceed.
    pub ceiling: Ceiling,
}

/// One launch of a bottle, as the parent of other bottles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The bottle.
    pub slug: Slug,
    /// The id of the launch ([`Record::run`]).
    pub run: String,
}

/// Whether the launch of a parent still runs, as its children see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentState {
    /// The launch is running.
    Running,
    /// The keeper of the launch died. A new keeper may adopt the bottle.
    Lost,
    /// The launch has ended.
    Ended,
}

impl Parent {
    /// Returns the current launch of the record's bottle. `None` if an older version wrote the record.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        Some(Self { slug: record.slug.clone(), run: record.run.clone()? })
    }

    /// Parses a client's name. `None` if the client is not a bottle.
    ///
    /// # Errors
    /// Returns a sentence fragment if the name has the prefix of a bottle's name but is not valid.
    pub fn parse(client: &str) -> Option<Result<Self, String>> {
        let name = client.strip_prefix(CLIENT)?;
        let parsed = name.split_once(':').and_then(|(slug, run)| {
            Some(Self { slug: slug.parse().ok()?, run: run.to_owned() })
                .filter(|parent| !parent.run.is_empty())
        });
        Some(parsed.ok_or_else(|| format!("{client:?} is not the launch of a bottle")))
    }

    /// Returns the bottle's name as a client of `bottle mcp`. The records of its children contain this name as their
    /// parent.
    #[must_use]
    pub fn client(&self) -> String {
        format!("{CLIENT}{}:{}", self.slug, self.run)
    }

    /// Returns the record of the bottle. `None` if this launch no longer runs.
    #[must_use]
    pub fn record(&self, store: &Store) -> Option<Record> {
        match store.state(&self.slug)? {
            State::Alive(record) if self.is_launch(&record) => Some(*record),
            _ => None,
        }
    }

    /// Returns the state of this launch.
    #[must_use]
    pub fn state(&self, store: &Store) -> ParentState {
        self.state_in(store.state(&self.slug))
    }

    fn state_in(&self, state: Option<State>) -> ParentState {
        match state {
            Some(State::Alive(record)) if self.is_launch(&record) => ParentState::Running,
            Some(State::Dead(record)) if self.is_launch(&record) && record.is_adoptable() => {
                ParentState::Lost
            }
            // A record that is being replaced can be unreadable for a moment, so the launch may still run.
            Some(State::Damaged(_) | State::Newer(_)) => ParentState::Lost,
            _ => ParentState::Ended,
        }
    }

    /// Whether the record belongs to this launch, and the launch is not ending.
    fn is_launch(&self, record: &Record) -> bool {
        record.run.as_deref() == Some(&self.run)
            && matches!(record.status, Status::Starting | Status::Running)
    }

    /// Returns the children that are running, kept, or have lost their keeper.
    ///
    /// # Errors
    /// Fails if the state directory cannot be read.
    pub fn children(&self, store: &Store) -> Result<Vec<Slug>, FileError> {
        let client = self.client();
        let child = |state| match state {
            State::Alive(record) | State::Kept(record) | State::Dead(record) => {
                (record.parent.as_ref() == Some(&client) && !record.has_only_logs()).then_some(record.slug)
            }
            State::Damaged(_) | State::Newer(_) => None,
        };
        Ok(store.list()?.into_iter().filter_map(|listed| child(listed.state)).collect())
    }

    /// Returns the number of children that are running or kept.
    ///
    /// # Errors
    /// Fails if the state directory cannot be read.
    pub fn count(&self, store: &Store) -> Result<u64, FileError> {
        let client = self.client();
        let is_child = |record: &Record| record.parent.as_ref() == Some(&client);
        let exists = |state: &State| match state {
            State::Alive(record) | State::Kept(record) => is_child(record),
            State::Dead(record) => is_child(record) && !record.has_only_logs(),
            State::Damaged(_) | State::Newer(_) => false,
        };
        let count = store.list()?.iter().filter(|listed| exists(&listed.state)).count();
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("children.json")
}

/// Writes which children the agent of a bottle with this plan may start.
///
/// # Errors
/// Fails if the file cannot be written. The agent may then start no children.
pub fn write(directory: &Path, plan: &Plan) -> io::Result<()> {
    match std::fs::remove_file(path(directory)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let Some(rules) = plan.mcp.clone() else { return Ok(()) };
    let text = serde_json::to_vec(&Children { rules, ceiling: Ceiling::of(plan) })?;
    files::replace(&path(directory), |file| file.write_all(&text))
}

/// Reads which children the agent of a bottle may start. `None` if it may start none.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn read(directory: &Path) -> io::Result<Option<Children>> {
    let file = match File::open(path(directory)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Takes the lock that prevents other processes from starting children. The lock is released when the returned value is
/// dropped. `None` if another process holds the lock.
///
/// # Errors
/// Fails if the lock file cannot be used.
pub fn try_lock(directory: &Path) -> io::Result<Option<FileLock>> {
    FileLock::at(&directory.join("children.lock"), file_lock::try_lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_bottle_as_a_client_is_parsed() {
        let parent = Parent { slug: "one-1".parse().expect("slug"), run: "00ff".to_owned() };
        assert_eq!(Parent::parse(&parent.client()), Some(Ok(parent)));
        for other in ["stdio:/home/x", "token:bottle:a:b", ""] {
            assert_eq!(Parent::parse(other), None, "{other}");
        }
        for invalid in ["bottle:", "bottle:one", "bottle:one:", "bottle:../x:1", "bottle:stdio:"] {
            assert!(Parent::parse(invalid).is_some_and(|parsed| parsed.is_err()), "{invalid}");
        }
    }
}
