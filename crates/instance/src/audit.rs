//! The audit log of the user's decisions and of route changes: `$BOTTLE_HOME/audit/<slug>.jsonl`.
//!
//! Each line is an entry that contains the hash of the previous line ([`bottle_protocol::audit`]). The number and hash
//! of the last line (the *head*) are also stored in `audit/heads/<slug>`, so that a truncated log is detected. The log
//! and the head outlive the bottle. Bottles with the same slug share one log and one head.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bottle_host::files;
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::Slug;
use bottle_policy::route::edit::RouteEdit;
use bottle_protocol::audit::{self, Head, Record};
use bottle_protocol::queue::{Id, Scope, Status, Tool};
use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::audited_routes::AuditedChange;

/// The size limit of one log in bytes. Tens of thousands of decisions fit into one log. A larger log can be neither
/// read nor extended until the user moves it away.
const MAX_BYTES: u64 = 256 << 20;

/// The maximum number of bytes that are read from a stored head. A head is shorter: it consists of a number and 64
/// hexadecimal digits.
const MAX_HEAD_BYTES: u64 = 128;

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Entry {
    /// A budget was enforced, automatically or by the user.
    Enforced {
        /// The scope, the provider and the window of the budget's limit. `None` if the user ordered the action.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<String>,
        /// The action: `pause`, `cutoff`, `freeze`, `kill`, or `continue`.
        action: String,
        /// Why the budget was enforced, in words.
        why: String,
    },
    /// The user answered a proposal, and the answer does not change the routes: a rejection, or an answer to a question
    /// that is not about routes.
    Decided {
        /// The proposal's id.
        proposal: Id,
        /// The proposal's tool.
        tool: Tool,
        /// The user's answer.
        status: Status,
        /// The user's reason for the answer, if the user gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// SHA-256 of the proposed file, in hexadecimal.
        payload: String,
    },
    /// The user approved new routes, and the keeper is about to activate them.
    Intent {
        /// The proposal's id.
        proposal: Id,
        /// The proposal's tool.
        tool: Tool,
        /// The user's answer.
        status: Status,
        /// How long the new routes stay valid.
        #[serde(default)]
        scope: Scope,
        /// The user's reason for the answer, if the user gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The revision of the new routes.
        revision: u64,
        /// The requests that the new routes allow and the old routes do not allow.
        gains: Vec<String>,
        /// The change of the routes, as a unified diff.
        diff: String,
        /// The effective routes before, and the routes that apply after [`Entry::Live`]. `None` in entries of earlier
        /// versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effective: Option<Box<AuditedChange>>,
    },
    /// The user changes the routes without a proposal, and the keeper is about to activate the new routes.
    Change {
        /// The id of the change.
        change: Id,
        /// The change as the user described it; `None` if the user undoes the last change of these hosts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        edit: Option<RouteEdit>,
        /// The hosts whose routes the user changes.
        host: String,
        /// The revision of the new routes.
        revision: u64,
        /// The requests that the new routes allow and the old routes do not allow.
        gains: Vec<String>,
        /// The requests that the old routes allowed and the new routes do not allow.
        losses: Vec<String>,
        /// The change of the routes, as a unified diff.
        diff: String,
        /// The effective routes before, and the routes that apply after [`Entry::Live`]. `None` in entries of earlier
        /// versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effective: Option<Box<AuditedChange>>,
    },
    /// The approved routes are active: either the proxy confirmed them, or the old routes already allowed everything
    /// that was proposed.
    Live {
        /// The id of the proposal, or of the user's change.
        proposal: Id,
        /// The revision of the routes.
        revision: u64,
    },
    /// A request used a one-time grant, and the grant was removed.
    Spent {
        /// The proposal whose approval created the grant.
        proposal: Id,
    },
    /// The bottle sent several credentials that it does not hold, so the proxy locked the bottle. The proxy denies all
    /// traffic of a locked bottle until the current run ends.
    LockedOut(LockOut),
    /// The user replaces the values of credentials, and the keeper is about to send the values to the proxy. The log
    /// contains no values.
    ReplacesSecrets {
        /// The id of the change.
        change: Id,
        /// The names of the credentials' slots.
        slots: Vec<String>,
    },
    /// The keeper sent the new values of credentials to the proxy.
    ReplacedSecrets {
        /// The id of the change.
        change: Id,
        /// Why the proxy does not use the values. `None` if the proxy uses them for its next request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// The new routes could not be activated. If they come from a proposal, the proposal stays pending.
    Failed {
        /// The id of the proposal, or of the user's change.
        proposal: Id,
        /// The revision of the routes.
        revision: u64,
        /// Why the routes could not be activated.
        why: String,
    },
}

/// Why the audit log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file that cannot be read or written.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The log was altered.
    #[error("{}", path.display())]
    Broken {
        /// The path of the altered log.
        path: PathBuf,
        /// How the log was altered.
        source: Alteration,
    },
}

/// The way in which an audit log was altered.
#[derive(Debug, thiserror::Error)]
pub enum Alteration {
    /// The hash chain is broken.
    #[error(transparent)]
    Link(#[from] audit::Broken),
    /// The stored head cannot be parsed.
    #[error("cannot parse its stored head")]
    Head,
    /// The log does not contain the line that the stored head describes.
    #[error("it was truncated or rewritten: it does not contain its stored head {0}")]
    Rewritten(String),
}

/// The audit log of one slug.
#[derive(Debug, Clone)]
pub struct Trail {
    path: PathBuf,
    head: PathBuf,
}

/// Returns the slugs that have an audit log.
///
/// # Errors
/// Fails if the directory exists but cannot be read.
pub fn slugs(home: &Path) -> io::Result<Vec<Slug>> {
    slugs_with_file(&home.join("audit"))
}

/// Returns the sorted slugs for which `directory` contains a file `<slug>.jsonl`. The list is empty if the directory
/// does not exist.
pub(super) fn slugs_with_file(directory: &Path) -> io::Result<Vec<Slug>> {
    let entries = match std::fs::read_dir(directory) {
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
    /// Returns the audit log of this slug. Its files are created when the first entry is appended.
    #[must_use]
    pub fn of(home: &Path, slug: &Slug) -> Self {
        let directory = home.join("audit");
        Self {
            path: directory.join(format!("{slug}.jsonl")),
            head: directory.join("heads").join(slug.as_str()),
        }
    }

    /// Appends an entry and syncs it to disk.
    ///
    /// # Errors
    /// Returns [`AuditError`]. The log then does not contain the entry, except if only the new head could not be
    /// stored. If the log was altered, or the entry is longer than readers accept, no entry is appended.
    pub fn append(&self, by: &str, entry: &Entry) -> Result<(), AuditError> {
        let heads = self.head.parent().unwrap_or(&self.head);
        files::create_private_directory(heads)
            .map_err(|source| AuditError::Io { path: heads.to_owned(), source })?;
        let mut file = self.open(true).map_err(|error| self.io(error))?;
        let text = read(&file).map_err(|error| self.io(error))?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            // Removes the incomplete last line of an interrupted write. No action was based on this line.
            file.set_len(whole as u64).map_err(|error| self.io(error))?;
        }
        let head = self.check(&text[..whole])?;
        let (line, next) =
            audit::append(&head, Timestamp::now(), by, entry).map_err(|error| self.io(error.into()))?;
        if line.len() > audit::MAX_LINE {
            // Readers would report this line, and every later decision would fail.
            let why = format!("the entry is larger than {} MiB", audit::MAX_LINE >> 20);
            return Err(self.io(io::Error::other(why)));
        }
        let written = file
            .seek(SeekFrom::End(0))
            .and_then(|_| file.write_all(format!("{line}\n").as_bytes()))
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // An error is ignored here, because the next append removes the incomplete line.
            let _ = file.set_len(whole as u64);
            return Err(self.io(error));
        }
        files::replace_durably(&self.head, |file| write!(file, "{next}"))
            .map_err(|source| AuditError::Io { path: self.head.clone(), source })
    }

    /// Returns the stored head, of which the user can keep a copy elsewhere. `None` if no head is stored, or the stored
    /// head cannot be read.
    #[must_use]
    pub fn stored_head(&self) -> Option<String> {
        let file = File::open(&self.head).ok()?;
        let mut stored = String::new();
        file.take(MAX_HEAD_BYTES).read_to_string(&mut stored).ok()?;
        (!stored.is_empty()).then_some(stored)
    }

    /// Reads and verifies all entries.
    ///
    /// # Errors
    /// Returns [`AuditError`].
    pub fn read(&self) -> Result<(Vec<Record<Entry>>, Head), AuditError> {
        let file = match self.open(false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.head.exists() => {
                return Ok((Vec::new(), Head::default()));
            }
            Err(error) => return Err(self.io(error)),
        };
        let text = read(&file).map_err(|error| self.io(error))?;
        // Ignores the incomplete last line of an interrupted write. The next `append` removes this line.
        let text = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        self.check(text)?;
        let mut head = Head::default();
        let mut records = Vec::new();
        for line in text.lines() {
            let (record, next) = audit::read::<Entry>(&head, line).map_err(|broken| self.broken(broken))?;
            records.push(record);
            head = next;
        }
        Ok((records, head))
    }

    /// Verifies the hash chain, and that the log contains the stored head.
    fn check(&self, text: &str) -> Result<Head, AuditError> {
        let head = audit::verify(text.lines()).map_err(|broken| self.broken(broken))?;
        let stored = match std::fs::read_to_string(&self.head) {
            Ok(stored) => stored,
            Err(error) if error.kind() == io::ErrorKind::NotFound && head.seq <= 1 => return Ok(head),
            Err(source) => return Err(AuditError::Io { path: self.head.clone(), source }),
        };
        let seq = stored.split(':').next().and_then(|seq| usize::try_from(seq.parse::<u64>().ok()?).ok());
        let seq = seq.ok_or_else(|| self.broken(Alteration::Head))?;
        // If a keeper was killed after it appended an entry and before it stored the new head, the log has one entry
        // after the stored head.
        let at_head = audit::verify(text.lines().take(seq)).map_err(|broken| self.broken(broken))?;
        if at_head.to_string() == stored {
            return Ok(head);
        }
        Err(self.broken(Alteration::Rewritten(stored)))
    }

    /// Opens and locks the file. The lock is exclusive if `write` is set.
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

    fn broken(&self, how: impl Into<Alteration>) -> AuditError {
        AuditError::Broken { path: self.path.clone(), source: how.into() }
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut text = String::new();
    let mut file = file;
    file.seek(SeekFrom::Start(0))?;
    if file.take(MAX_BYTES + 1).read_to_string(&mut text)? as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than {} MiB; move it away", MAX_BYTES >> 20)));
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
    fn reads_back_entries_and_detects_alterations() {
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
            (format!("{}\n{}\n", lines[0], lines[2]), "a line removed"),
        ] {
            std::fs::write(&trail.path, done).expect("written");
            assert!(matches!(trail.read(), Err(AuditError::Broken { .. })), "{what}");
            assert!(trail.append("someone", &entry(9)).is_err(), "{what}");
        }
        std::fs::remove_file(&trail.path).expect("removed");
        assert!(trail.read().is_err(), "the file is missing");
    }

    #[test]
    fn survives_a_kill_at_any_byte_of_a_write() {
        let (_home, trail) = trail();
        let text = std::fs::read_to_string(&trail.path).expect("text");
        let stored = std::fs::read_to_string(&trail.head).expect("head");
        trail.append("someone", &entry(3)).expect("appended");
        let longer = std::fs::read_to_string(&trail.path).expect("text");
        // The last line is complete, but the new head is not yet written.
        std::fs::write(&trail.head, &stored).expect("head");
        assert_eq!(trail.read().expect("read").1.seq, 4);
        for cut in (text.len()..longer.len()).step_by(7) {
            std::fs::write(&trail.path, &longer[..cut]).expect("cut");
            std::fs::write(&trail.head, &stored).expect("head");
            trail.append("someone", &entry(4)).expect("appended");
            assert_eq!(trail.read().expect("read").1.seq, 4);
        }
    }

    /// Formats the error and its cause, with paths relative to the home.
    fn shown(home: &Path, error: AuditError) -> String {
        let chain = format!("{:#}", anyhow::Error::new(error));
        chain.replace(&format!("{}/", home.display()), "")
    }

    #[test]
    fn says_how_a_log_was_altered() {
        let (home, trail) = trail();
        let text = std::fs::read_to_string(&trail.path).expect("text");
        let head = std::fs::read_to_string(&trail.head).expect("head");
        let first = text.lines().next().expect("a line");
        let other = head.replacen("3:", "2:", 1);
        let cases = [
            (
                text.replacen("someone", "anyone!", 1),
                &*head,
                "line 1: it was altered: its hash does not match",
            ),
            (text.replacen(first, "", 1), &head, "line 1: it carries no hash"),
            (text.clone(), "three", "cannot parse its stored head"),
            (text.clone(), "", "cannot parse its stored head"),
            (
                text.clone(),
                &other,
                &format!("it was truncated or rewritten: it does not contain its stored head {other}"),
            ),
            (
                format!("{first}\n"),
                &head,
                &format!("it was truncated or rewritten: it does not contain its stored head {head}"),
            ),
        ];
        for (text, head, how) in cases {
            std::fs::write(&trail.path, text).expect("text");
            std::fs::write(&trail.head, head).expect("head");
            let wanted = format!("audit/a-1.jsonl: {how}");
            assert_eq!(shown(home.path(), trail.read().expect_err(how)), wanted);
            assert_eq!(shown(home.path(), trail.append("someone", &entry(9)).expect_err(how)), wanted);
        }
    }

    #[test]
    fn names_the_file_that_cannot_be_used() {
        let (home, trail) = trail();
        let path = |path: &str| home.path().join(path);
        // The log has several lines. Its head is first missing, and then replaced by a directory.
        std::fs::rename(&trail.head, path("kept")).expect("moved");
        let error = shown(home.path(), trail.read().expect_err("no head"));
        assert_eq!(error, "audit/heads/a-1: No such file or directory (os error 2)");
        std::fs::create_dir(&trail.head).expect("directory");
        let error = shown(home.path(), trail.append("someone", &entry(9)).expect_err("a directory"));
        assert_eq!(error, "audit/heads/a-1: Is a directory (os error 21)");
        std::fs::remove_dir(&trail.head).expect("removed");
        std::fs::rename(path("kept"), &trail.head).expect("moved");
        // The log is replaced by a symbolic link.
        std::fs::rename(&trail.path, path("log")).expect("moved");
        std::os::unix::fs::symlink(path("log"), &trail.path).expect("link");
        let link = "audit/a-1.jsonl: Too many levels of symbolic links (os error 40)";
        assert_eq!(shown(home.path(), trail.read().expect_err("a link")), link);
        assert_eq!(shown(home.path(), trail.append("someone", &entry(9)).expect_err("a link")), link);
        // The log is replaced by data that is not text.
        std::fs::remove_file(&trail.path).expect("removed");
        std::fs::write(&trail.path, b"\xff\n").expect("written");
        let binary = "audit/a-1.jsonl: stream did not contain valid UTF-8";
        assert_eq!(shown(home.path(), trail.read().expect_err("no text")), binary);
        assert_eq!(shown(home.path(), trail.append("someone", &entry(9)).expect_err("no text")), binary);
    }

    #[test]
    fn reads_nothing_before_the_first_entry() {
        let home = tempfile::tempdir().expect("home");
        let trail = Trail::of(home.path(), &"a-1".parse().expect("slug"));
        assert_eq!(trail.read().expect("empty"), (Vec::new(), Head::default()));
        assert_eq!(trail.stored_head(), None);
        assert_eq!(slugs(home.path()).expect("no directory"), []);
        assert!(!home.path().join("audit").exists(), "reading creates nothing");
        trail.append("someone", &entry(0)).expect("appended");
        assert_eq!(trail.stored_head(), Some(trail.read().expect("read").1.to_string()));
        // The head is missing, as if a keeper had been killed before it wrote the first head.
        std::fs::remove_file(&trail.head).expect("removed");
        assert_eq!(trail.read().expect("one line").1.seq, 1);
        for name in ["b-2.jsonl", "Not A Slug.jsonl", "c-3.txt"] {
            std::fs::write(home.path().join("audit").join(name), "").expect("written");
        }
        assert_eq!(
            slugs(home.path()).expect("slugs"),
            ["a-1", "b-2"].map(|slug| slug.parse().expect("slug"))
        );
    }

    /// Logs of earlier versions stay readable, and a line that a reader would refuse is not written.
    #[test]
    fn reads_entries_without_routes_and_writes_no_longer_line_than_it_reads() {
        let home = tempfile::tempdir().expect("home");
        let trail = Trail::of(home.path(), &"a-1".parse().expect("slug"));
        let id = "01010101-0101-4101-8101-010101010101";
        for earlier in [
            serde_json::json!({
                "what": "intent", "proposal": id, "tool": "egress-allow", "status": "approved", "scope": "run",
                "revision": 2, "gains": ["a.example: every request"], "diff": "+- host: a.example\n",
            }),
            serde_json::json!({
                "what": "change", "change": id, "host": "a.example", "revision": 2, "gains": [],
                "losses": ["a.example: every request"], "diff": "-- host: a.example\n",
            }),
        ] {
            let entry: Entry = serde_json::from_value(earlier.clone()).expect("an entry");
            let (Entry::Intent { effective, .. } | Entry::Change { effective, .. }) = &entry else {
                panic!("{entry:?}");
            };
            assert_eq!(*effective, None);
            assert_eq!(serde_json::to_value(&entry).expect("JSON"), earlier);
            trail.append("someone", &entry).expect("appended");
        }
        let why = "x".repeat(audit::MAX_LINE);
        let failed = |why| Entry::Failed { proposal: id.parse().expect("id"), revision: 3, why };
        let error = trail.append("keeper", &failed(why)).expect_err("too large");
        assert_eq!(shown(home.path(), error), "audit/a-1.jsonl: the entry is larger than 2 MiB");
        trail.append("keeper", &failed("because".to_owned())).expect("appended");
        assert_eq!(trail.read().expect("read").1.seq, 3);
    }

    #[test]
    fn refuses_a_home_that_is_not_a_directory() {
        let home = tempfile::tempdir().expect("home");
        std::fs::write(home.path().join("audit"), "").expect("written");
        let trail = Trail::of(home.path(), &"a-1".parse().expect("slug"));
        assert_eq!(slugs(home.path()).expect_err("a file").kind(), io::ErrorKind::NotADirectory);
        assert!(matches!(trail.read(), Err(AuditError::Io { path, .. }) if path == trail.path));
        let error = trail.append("someone", &entry(0)).expect_err("a file");
        assert!(matches!(error, AuditError::Io { path, .. } if Some(&*path) == trail.head.parent()));
    }
}
