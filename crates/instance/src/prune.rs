//! Finds and removes old records of bottles that do not exist any more.
//!
//! Records outlive their bottles: conversations, answered proposals, audit logs and crash logs. Pruning removes the
//! records that are older than a given time. If a bottle has a directory in `state`, all its records stay, because
//! `resume`, `audit show` and `supervise` need them. There is one exception: if only the conversation of an old bottle
//! is kept, the whole bottle is treated as a record and is removed too.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_policy::names::Slug;
use jiff::Timestamp;

use super::record::Record;
use super::transcripts::Transcripts;
use super::{State, Store};

/// The maximum depth of directories whose size is counted. The directories of conversations are less deep.
const MAX_DEPTH: usize = 64;

/// The kind of an old record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A bottle with only a kept conversation: its directory in `state`.
    Bottle,
    /// The copied conversations of one launch: a directory in `transcripts/<slug>`.
    Conversations,
    /// An answered proposal, or its answer: a file in `queue/<slug>/processed`.
    Proposal,
    /// The audit log of a bottle, or the hash of its last line: a file in `audit` or `audit/heads`.
    AuditLog,
    /// A log of a crash of the screen: a file in `crashes`.
    CrashLog,
}

/// An old record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldRecord {
    /// The kind of the record.
    pub kind: Kind,
    /// The bottle that the record belongs to. `None` for a crash log.
    pub slug: Option<Slug>,
    /// The file or directory of the record. A bottle also has the directory of its conversation.
    pub path: PathBuf,
    /// The disk space that the removal of the record frees, in bytes.
    pub bytes: u64,
    /// When the record was last changed.
    pub changed: Timestamp,
}

/// The result of [`find`].
#[derive(Debug, Default)]
pub struct Prunable {
    /// The old records, by kind.
    pub records: Vec<OldRecord>,
    /// The bottles whose old records stay, because the bottles exist.
    pub existing: Vec<Slug>,
    /// The items that could not be inspected.
    pub errors: Vec<String>,
}

/// Finds the records that were last changed before `cutoff`. Changes nothing.
#[must_use]
pub fn find(host: &Host, cutoff: Timestamp) -> Prunable {
    let mut search = Search { store: Store::of(host), cutoff, found: Prunable::default() };
    search.bottles(&host.home);
    for slug in search.slugs(&host.home.join("transcripts")) {
        search.add_all(Kind::Conversations, &slug, &host.home.join("transcripts").join(slug.as_str()));
    }
    for slug in search.slugs(&host.home.join("queue")) {
        let directory = host.home.join("queue").join(slug.as_str()).join("processed");
        search.add_all(Kind::Proposal, &slug, &directory);
    }
    search.audit_logs(&host.home.join("audit"));
    for path in search.entries(&host.home.join("crashes")) {
        search.add(Kind::CrashLog, None, path);
    }
    let Prunable { records, existing, .. } = &mut search.found;
    existing.retain(|slug| {
        !records.iter().any(|record| record.kind == Kind::Bottle && record.slug.as_ref() == Some(slug))
    });
    search.found.records.sort_by(|one, other| (one.kind, &one.path).cmp(&(other.kind, &other.path)));
    search.found
}

/// Removes a record, unless its bottle exists again.
///
/// # Errors
/// Fails if the record cannot be removed.
pub fn remove(host: &Host, record: &OldRecord) -> io::Result<()> {
    if let (Kind::Bottle, Some(slug)) = (record.kind, &record.slug) {
        return remove_bottle(host, slug);
    }
    if record.slug.as_ref().is_some_and(|slug| Store::of(host).state(slug).is_some()) {
        return Ok(());
    }
    let removed = match record.kind {
        Kind::Conversations => fs::remove_dir_all(&record.path),
        _ => fs::remove_file(&record.path),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The directory of the slug stays if it contains newer records.
    if let Some(directory) = record.path.parent().filter(|_| record.kind == Kind::Conversations) {
        let _ = fs::remove_dir(directory);
    }
    Ok(())
}

/// Removes a bottle and its conversation, if only the conversation is kept.
fn remove_bottle(host: &Host, slug: &Slug) -> io::Result<()> {
    let Some(State::Kept(record)) = Store::of(host).state(slug) else { return Ok(()) };
    if !Store::of(host).remove_conversation(slug)? {
        return Ok(());
    }
    let transcripts = Transcripts::of(&host.home, &record);
    match fs::remove_dir_all(transcripts.directory()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The directory of the slug stays if it contains the conversations of other bottles.
    let _ = transcripts.directory().parent().map(fs::remove_dir);
    Ok(())
}

struct Search {
    store: Store,
    cutoff: Timestamp,
    found: Prunable,
}

impl Search {
    /// Returns the entries of a directory. A directory that does not exist has no entries. A symlink is not followed.
    fn entries(&mut self, directory: &Path) -> Vec<PathBuf> {
        let listed = match fs::symlink_metadata(directory) {
            Ok(found) if found.is_dir() => fs::read_dir(directory),
            Ok(_) => Err(io::Error::other("not a directory")),
            Err(error) => Err(error),
        };
        match listed {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.found.errors.push(format!("{}: {error}", directory.display()));
                Vec::new()
            }
        }
    }

    /// Adds the old bottles with only a kept conversation.
    fn bottles(&mut self, home: &Path) {
        let listed = match self.store.list_ended() {
            Ok(listed) => listed,
            Err(error) => return self.found.errors.push(error.to_string()),
        };
        for listed in listed {
            let State::Kept(record) = listed.state else { continue };
            let directory = self.store.directory(&listed.slug);
            let Some((changed, bytes)) = measure(&directory) else { continue };
            if !is_prunable(&self.store, &record) || changed >= self.cutoff {
                continue;
            }
            let conversation =
                measure(Transcripts::of(home, &record).directory()).map_or(0, |(_, bytes)| bytes);
            self.found.records.push(OldRecord {
                kind: Kind::Bottle,
                slug: Some(listed.slug),
                path: directory,
                bytes: bytes.saturating_add(conversation),
                changed,
            });
        }
    }

    /// Returns the slugs that have an entry in this directory and no bottle.
    fn slugs(&mut self, directory: &Path) -> Vec<Slug> {
        let slugs = self.entries(directory).into_iter().filter_map(|path| name(&path)?.parse().ok());
        slugs.collect::<Vec<Slug>>().into_iter().filter(|slug| !self.exists(slug)).collect()
    }

    /// Whether the bottle exists. Adds an existing bottle to the report.
    fn exists(&mut self, slug: &Slug) -> bool {
        let exists = self.store.directory(slug).is_dir();
        if exists && !self.found.existing.contains(slug) {
            self.found.existing.push(slug.clone());
        }
        exists
    }

    fn add_all(&mut self, kind: Kind, slug: &Slug, directory: &Path) {
        for path in self.entries(directory) {
            self.add(kind, Some(slug.clone()), path);
        }
    }

    fn audit_logs(&mut self, directory: &Path) {
        for path in self.entries(directory) {
            let slug =
                name(&path).and_then(|name| name.strip_suffix(".jsonl")).and_then(|slug| slug.parse().ok());
            let Some(slug) = slug.filter(|slug| !self.exists(slug)) else { continue };
            // The hash of the last line is removed together with the log, because `audit verify` reports a log without
            // its hash, and a hash without its log.
            if let Some(changed) = self.add(Kind::AuditLog, Some(slug.clone()), path) {
                let head = directory.join("heads").join(slug.as_str());
                if let Ok(found) = fs::symlink_metadata(&head) {
                    let bytes = size(&head, &found, 0);
                    self.found.records.push(OldRecord {
                        kind: Kind::AuditLog,
                        slug: Some(slug),
                        path: head,
                        bytes,
                        changed,
                    });
                }
            }
        }
    }

    /// Adds a record if it is old and has the file type of its kind. If the record was added, returns the time of its
    /// last change.
    fn add(&mut self, kind: Kind, slug: Option<Slug>, path: PathBuf) -> Option<Timestamp> {
        let found = fs::symlink_metadata(&path).ok()?;
        let changed = changed(&found)?;
        let suits = if kind == Kind::Conversations { found.is_dir() } else { found.is_file() };
        if changed >= self.cutoff || !suits {
            return None;
        }
        let bytes = size(&path, &found, 0);
        self.found.records.push(OldRecord { kind, slug, path, bytes, changed });
        Some(changed)
    }
}

/// Whether pruning may remove the bottle: only its conversation is kept, it has no snapshot, and all its deploy keys
/// are revoked. Until the keys are revoked, the record is needed.
pub(super) fn is_prunable(store: &Store, record: &Record) -> bool {
    record.has_only_conversation() && record.deploy_keys.is_empty() && !store.has_snapshot(&record.slug)
}

/// Returns when a directory was last changed, and the disk space that it takes. `None` if the directory does not exist.
pub(super) fn measure(directory: &Path) -> Option<(Timestamp, u64)> {
    let found = fs::symlink_metadata(directory).ok()?;
    Some((changed(&found)?, size(directory, &found, 0)))
}

fn changed(found: &Metadata) -> Option<Timestamp> {
    found.modified().ok()?.try_into().ok()
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Returns the disk space of a file or directory. Symlinks are not followed.
fn size(path: &Path, found: &Metadata, depth: usize) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let own = found.blocks().saturating_mul(512);
    if !found.is_dir() || depth == MAX_DEPTH {
        return own;
    }
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let sizes = entries.filter_map(|entry| Some(size(&entry.path(), &entry.metadata().ok()?, depth + 1)));
    sizes.fold(own, u64::saturating_add)
}
