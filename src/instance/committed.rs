//! Reads and writes `committed-image`, which names a bottle's last complete snapshot. The file has a version; its type
//! is converted when the file is read or written.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::Snapshot;
use crate::host::files;

/// The file's name in the bottle's folder.
const NAME: &str = "committed-image";

/// The schema version that this program writes. It refuses newer versions.
const SCHEMA: u32 = 1;

/// The size limit in bytes, which is more than a reference needs. A larger file is treated as damaged.
const MAX: u64 = 64 << 10;

/// A bottle's last complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// The snapshot contains all changes up to this time, by the clock that stamps the bottle's files.
    pub covers: Timestamp,
}

/// The content of `committed-image`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    schema: u32,
    snapshot: Snapshot,
    covers: Timestamp,
}

/// The bottle's last snapshot. `None` if there was no commit.
///
/// # Errors
/// When the file exists but cannot be read. It is then unknown whether the bottle has a snapshot.
pub fn read(folder: &Path) -> io::Result<Option<Committed>> {
    let path = folder.join(NAME);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(named)?,
    };
    let mut text = Vec::new();
    file.take(MAX).read_to_end(&mut text).map_err(named)?;
    let written: Written = serde_json::from_slice(&text).map_err(|error| named(error.into()))?;
    if written.schema > SCHEMA {
        return Err(named(io::Error::other(format!(
            "written by a newer bottle (schema {})",
            written.schema
        ))));
    }
    Ok(Some(Committed { snapshot: written.snapshot, covers: written.covers }))
}

/// Replaces the recorded snapshot atomically and durably.
///
/// # Errors
/// When the file cannot be written. The previous file then stays.
pub(super) fn write(folder: &Path, committed: &Committed) -> io::Result<()> {
    let Committed { snapshot, covers } = committed.clone();
    let written = Written { schema: SCHEMA, snapshot, covers };
    files::replace_durably(&folder.join(NAME), |file| {
        serde_json::to_writer_pretty(&mut *file, &written)?;
        file.write_all(b"\n")
    })
}

/// Removes the file. A missing file is no error.
///
/// # Errors
/// When the file cannot be removed.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_the_snapshot_and_fails_on_a_damaged_file() {
        let here = tempfile::tempdir().expect("folder");
        let snapshot = |reference: &str| Committed {
            snapshot: Snapshot {
                slug: "one".parse().expect("slug"),
                reference: reference.to_owned(),
                made_at: Timestamp::UNIX_EPOCH,
                bytes: Some(5),
            },
            covers: Timestamp::MAX,
        };
        assert_eq!(read(here.path()).expect("read"), None);
        write(here.path(), &snapshot("a")).expect("written");
        write(here.path(), &snapshot("b")).expect("written");
        assert_eq!(read(here.path()).expect("read"), Some(snapshot("b")));
        for broken in [
            "{",
            r#"{"schema": 9, "snapshot": {"slug": "a", "reference": "", "made_at": "1970-01-01T00:00:00Z", "bytes": null}, "covers": "1970-01-01T00:00:00Z"}"#,
        ] {
            fs::write(here.path().join(NAME), broken).expect("written");
            assert!(read(here.path()).is_err(), "{broken}");
        }
        remove(here.path()).expect("removed");
        remove(here.path()).expect("twice is no error");
        assert_eq!(read(here.path()).expect("read"), None);
    }
}
