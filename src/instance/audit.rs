//! What was decided, and what became live because of it: `$BOTTLE_HOME/audit/<slug>.jsonl`.
//!
//! A line for each, chained to the one before ([`bottle_contract::audit`]); the last hash also stands in
//! `audit/heads/<slug>`, so that a file cut short shows. Both outlive the bottle, and bottles of one name share
//! them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bottle_contract::audit::{self, Head, Record};
use bottle_contract::lock_out::LockOut;
use bottle_contract::names::Slug;
use bottle_contract::queue::{Id, Scope, Status, Tool};
use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::host::files;

/// Bytes of one file that are read: tens of thousands of decisions.
const MOST: u64 = 256 << 20;

/// Bytes of a head: a number and 64 digits.
const MOST_HEAD: u64 = 128;

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Entry {
    /// A user answered, and nothing at the proxy changes by it.
    Decided {
        /// The question.
        proposal: Id,
        /// What was asked for.
        tool: Tool,
        /// The answer.
        status: Status,
        /// The reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// SHA-256 of what was asked, in hexadecimal.
        payload: String,
    },
    /// These routes are about to become live, because a user said so.
    Intent {
        /// The question.
        proposal: Id,
        /// What was asked for.
        tool: Tool,
        /// The answer.
        status: Status,
        /// How long they hold.
        #[serde(default)]
        scope: Scope,
        /// The reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The number they will have.
        revision: u64,
        /// What they allow that the ones before did not.
        gains: Vec<String>,
        /// The change, as a unified diff.
        diff: String,
    },
    /// They are live.
    Live {
        /// The question.
        proposal: Id,
        /// Their number.
        revision: u64,
    },
    /// A request passed by what was allowed for one: from here on nothing does.
    Spent {
        /// The question.
        proposal: Id,
    },
    /// The bottle guessed at credentials that its agent does not hold, and was locked: until its run ends nothing
    /// leaves it.
    LockedOut(LockOut),
    /// They are not, and the question waits on.
    Failed {
        /// The question.
        proposal: Id,
        /// The number they would have had.
        revision: u64,
        /// Why.
        why: String,
    },
}

/// Why a chain is not what it was.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It was altered.
    #[error("{}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// How.
        why: String,
    },
}

/// The audit of one bottle's name.
#[derive(Debug, Clone)]
pub struct Trail {
    path: PathBuf,
    head: PathBuf,
}

/// Whose audits there are.
///
/// # Errors
/// When the folder is there and cannot be read.
pub fn slugs(home: &Path) -> io::Result<Vec<Slug>> {
    let entries = match std::fs::read_dir(home.join("audit")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut slugs = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        slugs.extend(name.to_str().and_then(|name| name.strip_suffix(".jsonl")?.parse::<Slug>().ok()));
    }
    slugs.sort();
    Ok(slugs)
}

impl Trail {
    /// The audit of this name; nothing is made before the first line.
    #[must_use]
    pub fn of(home: &Path, slug: &Slug) -> Self {
        let folder = home.join("audit");
        Self { path: folder.join(format!("{slug}.jsonl")), head: folder.join("heads").join(slug.as_str()) }
    }

    /// Adds a line. When it returns the line is on the disk.
    ///
    /// # Errors
    /// [`AuditError`]; then there is no such line. To a chain that is broken nothing is added.
    pub fn append(&self, by: &str, entry: &Entry) -> Result<(), AuditError> {
        let heads = self.head.parent().unwrap_or(&self.head);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(heads)
            .map_err(|source| AuditError::Io { path: heads.to_owned(), source })?;
        let mut file = self.open(true).map_err(|error| self.io(error))?;
        let text = read(&file).map_err(|error| self.io(error))?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            // Of a write that was cut off: nothing was done because of it.
            file.set_len(whole as u64).map_err(|error| self.io(error))?;
        }
        let head = self.check(&text[..whole])?;
        let (line, next) =
            audit::append(&head, Timestamp::now(), by, entry).map_err(|error| self.io(error.into()))?;
        let written = file
            .seek(SeekFrom::End(0))
            .and_then(|_| file.write_all(format!("{line}\n").as_bytes()))
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Best effort: what is left is cut off before the next line.
            let _ = file.set_len(whole as u64);
            return Err(self.io(error));
        }
        files::replace_durably(&self.head, |file| write!(file, "{next}"))
            .map_err(|source| AuditError::Io { path: self.head.clone(), source })
    }

    /// The last line as it was kept beside the file, for a user to keep elsewhere; none where nothing was decided.
    #[must_use]
    pub fn kept_head(&self) -> Option<String> {
        let file = File::open(&self.head).ok()?;
        let mut kept = String::new();
        file.take(MOST_HEAD).read_to_string(&mut kept).ok()?;
        (!kept.is_empty()).then_some(kept)
    }

    /// All lines, checked.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn read(&self) -> Result<(Vec<Record<Entry>>, Head), AuditError> {
        let file = match self.open(false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.head.exists() => {
                return Ok((Vec::new(), Head::default()));
            }
            Err(error) => return Err(self.io(error)),
        };
        let text = read(&file).map_err(|error| self.io(error))?;
        // A write that was cut off; the next one takes its beginning away.
        let text = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        self.check(text)?;
        let mut head = Head::default();
        let mut records = Vec::new();
        for line in text.lines() {
            let (record, next) =
                audit::read::<Entry>(&head, line).map_err(|broken| self.broken(broken.to_string()))?;
            records.push(record);
            head = next;
        }
        Ok((records, head))
    }

    /// Checks the chain, and that the head which was kept beside it is part of it.
    fn check(&self, text: &str) -> Result<Head, AuditError> {
        let head = audit::verify(text.lines()).map_err(|broken| self.broken(broken.to_string()))?;
        let kept = match std::fs::read_to_string(&self.head) {
            Ok(kept) => kept,
            Err(error) if error.kind() == io::ErrorKind::NotFound && head.seq <= 1 => return Ok(head),
            Err(source) => return Err(AuditError::Io { path: self.head.clone(), source }),
        };
        let seq = kept.split(':').next().and_then(|seq| usize::try_from(seq.parse::<u64>().ok()?).ok());
        let seq = seq.ok_or_else(|| self.broken("the head that was kept of it cannot be read".to_owned()))?;
        // A keeper that was killed between the two has written one line more than the head says.
        let there =
            audit::verify(text.lines().take(seq)).map_err(|broken| self.broken(broken.to_string()))?;
        if there.to_string() == kept {
            return Ok(head);
        }
        let why =
            format!("it was cut short or written anew: it does not lead to the head kept of it, {kept}");
        Err(self.broken(why))
    }

    /// Opens the file, and holds off whoever writes to it.
    fn open(&self, write: bool) -> io::Result<File> {
        let no_links = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).write(write).create(write).mode(0o600).custom_flags(no_links);
        let file = options.open(&self.path)?;
        if write {
            file.lock()?
        } else {
            file.lock_shared()?
        }
        Ok(file)
    }

    fn io(&self, source: io::Error) -> AuditError {
        AuditError::Io { path: self.path.clone(), source }
    }

    fn broken(&self, why: String) -> AuditError {
        AuditError::Broken { path: self.path.clone(), why }
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut text = String::new();
    let mut file = file;
    file.seek(SeekFrom::Start(0))?;
    if file.take(MOST + 1).read_to_string(&mut text)? as u64 > MOST {
        return Err(io::Error::other("it is larger than any audit that is read; move it away"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> Entry {
        Entry::Live { proposal: Id::from_random([1; 16]), revision: number }
    }

    fn trail() -> (tempfile::TempDir, Trail) {
        let home = tempfile::tempdir().expect("home");
        let trail = Trail::of(home.path(), &"a-1".parse().expect("slug"));
        for number in 0..3 {
            trail.append("someone", &entry(number)).expect("appended");
        }
        (home, trail)
    }

    #[test]
    fn what_was_written_is_read_and_what_was_done_to_it_shows() {
        let (home, trail) = trail();
        let (records, head) = trail.read().expect("read");
        assert_eq!(
            records.iter().map(|record| record.entry.clone()).collect::<Vec<_>>(),
            [0, 1, 2].map(entry)
        );
        assert_eq!(head.seq, 3);
        assert_eq!(slugs(home.path()).expect("slugs"), ["a-1".parse().expect("slug")]);
        let text = std::fs::read_to_string(&trail.path).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for (done, what) in [
            (format!("{}\n{}\n", lines[0], lines[1]), "cut short"),
            (String::new(), "emptied"),
            (text.replacen("\"revision\":1", "\"revision\":7", 1), "altered"),
            (format!("{}\n{}\n", lines[0], lines[2]), "a line taken out"),
        ] {
            std::fs::write(&trail.path, done).expect("written");
            assert!(matches!(trail.read(), Err(AuditError::Broken { .. })), "{what}");
            assert!(trail.append("someone", &entry(9)).is_err(), "{what}");
        }
        std::fs::remove_file(&trail.path).expect("removed");
        assert!(trail.read().is_err(), "a file that is gone shows as well");
    }

    #[test]
    fn a_kill_at_any_byte_of_a_write_breaks_nothing() {
        let (_home, trail) = trail();
        let text = std::fs::read_to_string(&trail.path).expect("text");
        let kept = std::fs::read_to_string(&trail.head).expect("head");
        trail.append("someone", &entry(3)).expect("appended");
        let longer = std::fs::read_to_string(&trail.path).expect("text");
        // The line is whole and the head is not written yet.
        std::fs::write(&trail.head, &kept).expect("head");
        assert_eq!(trail.read().expect("read").1.seq, 4);
        for cut in (text.len()..longer.len()).step_by(7) {
            std::fs::write(&trail.path, &longer[..cut]).expect("cut");
            std::fs::write(&trail.head, &kept).expect("head");
            trail.append("someone", &entry(4)).expect("appended");
            assert_eq!(trail.read().expect("read").1.seq, 4);
        }
    }
}
