//! Bounds the disk space of the logs and records that bottles leave, so that the user need not run `bottle prune`.
//!
//! The keeper of each bottle enforces the bounds when its bottle has ended. The logs of ended bottles, the bottles with
//! only a kept conversation, and the records of bottles that do not exist any more ([`prune`]) together take at most
//! `keep_size`; the oldest are removed first. A kept conversation is also removed after `keep_days`. Bottles that run,
//! or whose files or snapshots are kept, are not touched.

use std::fs;
use std::path::Path;

use bottle_host::Host;
use bottle_policy::names::Slug;
use jiff::Timestamp;

use super::prune::{self, Kind, OldRecord};
use super::{State, Store};

/// The maximum number of files of answered proposals of one slug. If there are more, the oldest files are removed.
const PROPOSALS: usize = 2000;

/// An item that can be removed.
#[derive(Debug)]
enum Old {
    /// The directory of a bottle that ended and left only logs.
    Logs(Slug),
    Record(OldRecord),
}

#[derive(Debug)]
struct Candidate {
    changed: Timestamp,
    bytes: u64,
    old: Old,
}

impl Candidate {
    /// Whether this candidate must be removed together with the candidate before it. A slug's audit log and the hash of
    /// the log's last line are removed together.
    fn belongs_to(&self, before: Option<&Self>) -> bool {
        let audit_log = |candidate: &Self| match &candidate.old {
            Old::Record(OldRecord { kind: Kind::AuditLog, slug, .. }) => slug.clone(),
            _ => None,
        };
        before.is_some_and(|before| audit_log(before).is_some() && audit_log(before) == audit_log(self))
    }
}

fn failure(record: &OldRecord, error: &std::io::Error) -> String {
    format!("cannot remove {}: {error}", record.path.display())
}

/// Removes the bottles that ended before `cutoff` and have only a kept conversation. Then removes the oldest records and
/// logs until the remaining records and logs take at most `keep` bytes. Returns the failures.
pub fn enforce(host: &Host, cutoff: Option<Timestamp>, keep: u64) -> Vec<String> {
    let store = Store::of(host);
    let found = prune::find(host, Timestamp::MAX);
    let mut failures = found.errors;
    let is_expired = |record: &OldRecord| {
        record.kind == Kind::Bottle && cutoff.is_some_and(|cutoff| record.changed < cutoff)
    };
    let (expired, records): (Vec<_>, Vec<_>) = found.records.into_iter().partition(is_expired);
    failures.extend(
        expired.iter().filter_map(|record| Some(failure(record, &prune::remove(host, record).err()?))),
    );
    let mut candidates = logs(&store);
    candidates.extend(records.into_iter().map(|record| Candidate {
        changed: record.changed,
        bytes: record.bytes,
        old: Old::Record(record),
    }));
    // The sort is stable. An audit log and its hash have the same time, so they stay adjacent.
    candidates.sort_by_key(|candidate| candidate.changed);
    let mut total = candidates.iter().fold(0, |sum: u64, candidate| sum.saturating_add(candidate.bytes));
    let mut removed: Option<Candidate> = None;
    for candidate in candidates {
        if total <= keep && !candidate.belongs_to(removed.as_ref()) {
            break;
        }
        match &candidate.old {
            Old::Logs(slug) => {
                store.remove_ended(slug);
            }
            Old::Record(record) => {
                if let Err(error) = prune::remove(host, record) {
                    failures.push(failure(record, &error));
                }
            }
        }
        total = total.saturating_sub(candidate.bytes);
        removed = Some(candidate);
    }
    failures
}

/// Returns the bottles that ended and left only logs.
fn logs(store: &Store) -> Vec<Candidate> {
    let listed = store.list_ended().unwrap_or_default().into_iter();
    let ended = listed.filter(
        |listed| matches!(&listed.state, State::Dead(record) if record.has_only_logs() && !record.learn),
    );
    ended
        .filter_map(|listed| {
            let directory = store.directory(&listed.slug);
            let (changed, bytes) = prune::measure(&directory)?;
            Some(Candidate { changed, bytes, old: Old::Logs(listed.slug) })
        })
        .collect()
}

/// If a slug has more than [`PROPOSALS`] files of answered proposals, removes the oldest files.
pub fn bound_proposals(home: &Path, slug: &Slug) {
    let directory = home.join("queue").join(slug.as_str()).join("processed");
    let entries = fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok);
    let files = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((metadata.modified().ok()?, entry.path()))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    let over = files.len().saturating_sub(PROPOSALS);
    for (_, path) in files.into_iter().take(over) {
        // Another keeper may remove the file at the same time.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn the_newest_answered_proposals_stay() {
        let home = tempfile::tempdir().expect("a directory");
        let directory = home.path().join("queue/one/processed");
        fs::create_dir_all(&directory).expect("a directory");
        for number in 0..PROPOSALS + 3 {
            let file = fs::File::create(directory.join(number.to_string())).expect("a file");
            let age =
                Duration::from_secs(u64::try_from(PROPOSALS - number.min(PROPOSALS)).expect("a number"));
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 20) - age).expect("aged");
        }
        bound_proposals(home.path(), &"one".parse().expect("a slug"));
        bound_proposals(home.path(), &"none".parse().expect("a slug"));
        assert_eq!(fs::read_dir(&directory).expect("read").count(), PROPOSALS);
        for (number, stays) in [(0, false), (2, false), (3, true), (PROPOSALS + 2, true)] {
            assert_eq!(directory.join(number.to_string()).exists(), stays, "{number}");
        }
    }
}
