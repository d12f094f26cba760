//! The bottles that the agent of a bottle started: its children.
//!
//! ```text
//! state/<parent>/children.json   what the parent may start, and the most that a child may have
//! state/<parent>/children.lock   exclusive lock of a start, so that concurrent starts count each other
//! state/<child>/metadata.json    `parent` is the client name of one launch of the parent
//! ```
//! A child belongs to one launch of its parent: a later bottle with the parent's name has no access to it.

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

/// What the agent of a bottle may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Children {
    /// Which agents and how many bottles the parent may start, and what it may do with them.
    pub rules: ChildRules,
    /// The upper bound for what a child may have.
    pub ceiling: Ceiling,
}

/// One launch of a bottle, as the parent of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The bottle.
    pub slug: Slug,
    /// The id of the launch ([`Record::run`]).
    pub run: String,
}

/// What a child knows about its parent's launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentState {
    /// The launch is running.
    Running,
    /// Its keeper died. A new one may adopt the bottle.
    Lost,
    /// The launch has ended.
    Ended,
}

impl Parent {
    /// The current launch of the bottle with this record. `None` for a record of an older version.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        Some(Self { slug: record.slug.clone(), run: record.run.clone()? })
    }

    /// Parses a client's name. `None` if the client is not a bottle.
    ///
    /// # Errors
    /// Returns a sentence fragment if the name is one of a bottle, but is not valid.
    pub fn parse(client: &str) -> Option<Result<Self, String>> {
        let name = client.strip_prefix(CLIENT)?;
        let parsed = name.split_once(':').and_then(|(slug, run)| {
            Some(Self { slug: slug.parse().ok()?, run: run.to_owned() })
                .filter(|parent| !parent.run.is_empty())
        });
        Some(parsed.ok_or_else(|| format!("{client:?} is not the launch of a bottle")))
    }

    /// The name that the bottle has as a client of `bottle mcp`, and that its children have as their parent.
    #[must_use]
    pub fn client(&self) -> String {
        format!("{CLIENT}{}:{}", self.slug, self.run)
    }

    /// The record of the bottle, if this launch is still running.
    #[must_use]
    pub fn record(&self, store: &Store) -> Option<Record> {
        match store.state(&self.slug)? {
            State::Alive(record) if self.is_launch(&record) => Some(*record),
            _ => None,
        }
    }

    /// Whether this launch is still running.
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
            // A record that is being replaced can be unreadable for a moment.
            Some(State::Damaged(_) | State::Newer(_)) => ParentState::Lost,
            _ => ParentState::Ended,
        }
    }

    /// Whether the record belongs to this launch, and the launch is not ending.
    fn is_launch(&self, record: &Record) -> bool {
        record.run.as_deref() == Some(&self.run)
            && matches!(record.status, Status::Starting | Status::Running)
    }

    /// How many children exist, running or kept.
    ///
    /// # Errors
    /// When the state directory cannot be read.
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

/// Writes what a bottle that was launched from this plan may start.
///
/// # Errors
/// When the file cannot be written. The bottle then may start nothing.
pub fn write(directory: &Path, plan: &Plan) -> io::Result<()> {
    match std::fs::remove_file(path(directory)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let Some(rules) = plan.mcp.clone() else { return Ok(()) };
    let text = serde_json::to_vec(&Children { rules, ceiling: Ceiling::of(plan) })?;
    files::replace(&path(directory), |file| file.write_all(&text))
}

/// Reads what a bottle may start. `None` if it may start nothing.
///
/// # Errors
/// When the file cannot be read.
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

/// Prevents other starts of children until the value is dropped. `None` while another process prevents them.
///
/// # Errors
/// When the lock file cannot be used.
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
