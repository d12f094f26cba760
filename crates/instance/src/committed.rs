//! Reads and writes `committed-image`, the file that names a bottle's complete snapshots. The file has a schema
//! version. This module converts the content of version 1 when it reads the file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use bottle_backend::Snapshot;
use bottle_host::files;
use bottle_host::process::ProcessId;
use bottle_policy::names::Name;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The file's name in the bottle's directory.
const NAME: &str = "committed-image";

/// The schema version that this program writes. The program refuses files of newer versions. A file of version 1 names
/// only one snapshot.
const SCHEMA: u32 = 2;

/// The size limit of the file in bytes. A larger file is treated as damaged.
const MAX: u64 = 1 << 20;

/// The maximum number of snapshots of a bottle, so that `committed-image` stays below its size limit.
pub const MAX_SNAPSHOTS: usize = 1000;

/// A complete snapshot of a bottle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The snapshot contains all changes up to this time, by the clock that stamps the bottle's files.
    pub covers: Timestamp,
    /// The process that made the snapshot for itself and that removes the snapshot after use, as [`ProcessId`] writes
    /// it. `None` for a snapshot that the user wants to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_by: Option<String>,
}

impl Committed {
    /// Whether the process that should remove the snapshot has ended without removing it.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let runs = |process: &String| process.parse().is_ok_and(ProcessId::is_alive);
        self.removed_by.as_ref().is_some_and(|process| !runs(process))
    }
}

/// The snapshots of a bottle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommittedList {
    /// The snapshots, oldest first. At most one snapshot has no name, and no two snapshots have the same name.
    pub snapshots: Vec<Committed>,
    /// The reference of the snapshot that the bottle's files were last stored in or restored from. `None` if there was
    /// no such snapshot, or the snapshot is not known.
    pub current: Option<String>,
}

impl CommittedList {
    /// Returns the snapshot with this name. If `name` is `None`, returns the snapshot without a name.
    #[must_use]
    pub fn find(&self, name: Option<&Name>) -> Option<&Snapshot> {
        self.snapshots.iter().map(|entry| &entry.snapshot).find(|found| found.name.as_ref() == name)
    }

    /// Returns the entry of this snapshot.
    #[must_use]
    pub fn entry(&self, snapshot: &Snapshot) -> Option<&Committed> {
        self.snapshots.iter().find(|entry| entry.snapshot.is_same(snapshot))
    }

    /// Whether the list contains this snapshot.
    #[must_use]
    pub fn contains(&self, snapshot: &Snapshot) -> bool {
        self.entry(snapshot).is_some()
    }
}

/// The content of `committed-image`.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    schema: u32,
    #[serde(default)]
    snapshots: Vec<Committed>,
    #[serde(default)]
    current: Option<String>,
    /// The only snapshot, in version 1.
    #[serde(default, skip_serializing)]
    snapshot: Option<Snapshot>,
    /// [`Committed::covers`] of the only snapshot, in version 1.
    #[serde(default, skip_serializing)]
    covers: Option<Timestamp>,
}

/// Reads the bottle's snapshots. The list is empty if there was no commit.
///
/// # Errors
/// Fails if the file exists but cannot be read. It is then unknown whether the bottle has a snapshot.
pub fn read(directory: &Path) -> io::Result<CommittedList> {
    let path = directory.join(NAME);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CommittedList::default()),
        file => file.map_err(named)?,
    };
    let mut text = Vec::new();
    file.take(MAX).read_to_end(&mut text).map_err(named)?;
    let written: Written = serde_json::from_slice(&text).map_err(|error| named(error.into()))?;
    match (written.schema, written.snapshot, written.covers) {
        (SCHEMA, ..) => Ok(CommittedList { snapshots: written.snapshots, current: written.current }),
        (1, Some(snapshot), Some(covers)) => {
            let current = Some(snapshot.reference.clone());
            Ok(CommittedList { snapshots: vec![Committed { snapshot, covers, removed_by: None }], current })
        }
        (1, ..) => Err(named(io::ErrorKind::InvalidData.into())),
        (newer, ..) => Err(named(io::Error::other(format!("written by a newer bottle (schema {newer})")))),
    }
}

/// Replaces the recorded snapshots atomically and durably. If the list is empty, removes the file.
///
/// # Errors
/// Fails if the file cannot be written. The previous file then stays.
pub fn write(directory: &Path, list: &CommittedList) -> io::Result<()> {
    if list.snapshots.is_empty() {
        return remove(directory);
    }
    let CommittedList { snapshots, current } = list.clone();
    let written = Written { schema: SCHEMA, snapshots, current, snapshot: None, covers: None };
    files::replace_durably(&directory.join(NAME), |file| {
        serde_json::to_writer_pretty(&mut *file, &written)?;
        file.write_all(b"\n")
    })
}

/// Removes the file `committed-image`. A missing file is not an error.
///
/// # Errors
/// Fails if the file cannot be removed.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(reference: &str, name: Option<&str>) -> Committed {
        Committed {
            snapshot: Snapshot {
                slug: "one".parse().expect("slug"),
                reference: reference.to_owned(),
                made_at: Timestamp::UNIX_EPOCH,
                bytes: Some(5),
                name: name.map(|name| name.parse().expect("name")),
                parent: None,
            },
            covers: Timestamp::MAX,
            removed_by: None,
        }
    }

    #[test]
    fn reads_back_the_snapshots_and_fails_on_a_damaged_file() {
        let here = tempfile::tempdir().expect("directory");
        assert_eq!(read(here.path()).expect("read"), CommittedList::default());
        let mut list = CommittedList { snapshots: vec![committed("a", None)], current: Some("a".to_owned()) };
        write(here.path(), &list).expect("written");
        list.snapshots.push(committed("b", Some("good")));
        write(here.path(), &list).expect("written");
        assert_eq!(read(here.path()).expect("read"), list);
        let reference = |name: Option<&str>| {
            let name = name.map(|name| name.parse().expect("name"));
            list.find(name.as_ref()).map(|found| found.reference.as_str())
        };
        assert_eq!([None, Some("good"), Some("bad")].map(reference), [Some("a"), Some("b"), None]);
        for broken in ["{", r#"{"schema": 9}"#, r#"{"schema": 1}"#, r#"{"schema": 0}"#] {
            fs::write(here.path().join(NAME), broken).expect("written");
            assert!(read(here.path()).is_err(), "{broken}");
        }
        write(here.path(), &CommittedList::default()).expect("removed");
        remove(here.path()).expect("twice is no error");
        assert_eq!(read(here.path()).expect("read"), CommittedList::default());
    }

    #[test]
    fn reads_the_file_of_an_older_version() {
        let here = tempfile::tempdir().expect("directory");
        let old = r#"{"schema": 1, "snapshot": {"slug": "one", "reference": "a", "made_at": "1970-01-01T00:00:00Z",
            "bytes": 5}, "covers": "9999-12-30T22:00:00.999999999Z"}"#;
        fs::write(here.path().join(NAME), old).expect("written");
        let list = CommittedList { snapshots: vec![committed("a", None)], current: Some("a".to_owned()) };
        assert_eq!(read(here.path()).expect("read"), list);
    }
}
