//! Lists the pending proposals of all bottles, and watches for changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bottle_policy::names::Slug;
use bottle_protocol::queue::Id;
use jiff::{SignedDuration, Timestamp};

use crate::queue_directory::{Directory, Pending};
use crate::safe_file::Unreadable;

/// A list of proposals and damaged entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The proposals, oldest first.
    pub pending: Vec<Pending>,
    /// The entries that could not be read.
    pub damaged: Vec<Damaged>,
}

/// An invalid entry in a queue directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// The path of the entry.
    pub path: PathBuf,
    /// The reason why the entry is invalid. This text is part of a sentence and begins with a lower-case letter.
    pub why: String,
}

impl Listing {
    fn add(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.damaged.extend(other.damaged);
    }

    pub(crate) fn sort(&mut self) {
        self.pending.sort_by(|one, other| {
            let key = |pending: &Pending| (pending.proposal.arrival_timestamp, pending.proposal.id.clone());
            key(one).cmp(&key(other))
        });
        self.damaged.sort_by(|one, other| one.path.cmp(&other.path));
    }
}

/// Lists the proposals of all bottles in `home`, including bottles that are stopped.
///
/// # Errors
/// Fails if the directory `queue` in `home` exists but cannot be read.
pub fn list(home: &Path, now: Timestamp) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for name in names(home)? {
        listing.add(list_directory(home, &name, now));
    }
    listing.sort();
    Ok(listing)
}

/// Finds the queue directory that contains the proposal with the id `id`. Returns `None` if no bottle has this
/// proposal.
///
/// # Errors
/// Fails if the directory `queue` in `home` exists but cannot be read.
pub fn find(home: &Path, id: &Id) -> io::Result<Option<Directory>> {
    let mut directories = names(home)?.into_iter().filter_map(|name| open(home, &name).ok());
    Ok(directories.find(|directory| directory.contains(id)))
}

/// Polls the queue for changes. The watcher reads a directory without changes only every three seconds.
#[derive(Debug)]
pub struct QueueWatcher {
    home: PathBuf,
    directories: BTreeMap<OsString, CachedDirectory>,
    /// The time at which all directories were last read.
    full_read: Option<Instant>,
    last: Option<Listing>,
}

/// The most recent listing of one bottle's queue directory.
#[derive(Debug)]
struct CachedDirectory {
    stamp: Option<Stamp>,
    /// Whether the directory had changed within the last [`TICK`] when it was read. A further change within this time
    /// might not alter the directory's stamp.
    fresh: bool,
    listing: Listing,
}

/// The inode number and the modification time of a directory. The modification time changes when an entry is added or
/// removed.
type Stamp = (u64, i64, i64);

/// The interval at which all directories are read, even without changes. When a proposal becomes stale or expires, its
/// directory does not change.
const FULL_READ_INTERVAL: Duration = Duration::from_secs(3);

/// The assumed resolution of modification times. If a directory changed within this time, the next poll reads the
/// directory again, because a further change might not alter the stamp.
const TICK: SignedDuration = SignedDuration::from_millis(100);

impl QueueWatcher {
    /// Creates a watcher that has not read the queue yet.
    #[must_use]
    pub fn new(home: PathBuf) -> Self {
        Self { home, directories: BTreeMap::new(), full_read: None, last: None }
    }

    /// Returns the current listing, which has the same contents as the result of [`list`]. Returns `None` if the
    /// listing has not changed since the last call.
    ///
    /// # Errors
    /// Fails if the directory `queue` in the watcher's `home` exists but cannot be read.
    pub fn poll(&mut self, now: Timestamp) -> io::Result<Option<Listing>> {
        let all = self.full_read.is_none_or(|last| last.elapsed() >= FULL_READ_INTERVAL);
        let names = names(&self.home)?;
        self.directories.retain(|name, _| names.contains(name));
        for name in names {
            let stamp = stamp(&self.home.join("queue").join(&name));
            let unchanged =
                self.directories.get(&name).is_some_and(|cached| !cached.fresh && cached.stamp == stamp);
            if unchanged && !all {
                continue;
            }
            // A directory without a stamp is read in each poll.
            let fresh = stamp.is_none_or(is_fresh);
            let listing = list_directory(&self.home, &name, now);
            self.directories.insert(name, CachedDirectory { stamp, fresh, listing });
        }
        if all {
            self.full_read = Some(Instant::now());
        }
        let mut listing = Listing::default();
        self.directories.values().for_each(|cached| listing.add(cached.listing.clone()));
        listing.sort();
        if self.last.as_ref() == Some(&listing) {
            return Ok(None);
        }
        self.last = Some(listing.clone());
        Ok(Some(listing))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Returns whether the directory with this stamp changed within the last [`TICK`].
fn is_fresh((_, seconds, nanoseconds): Stamp) -> bool {
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
    let changed = Timestamp::new(seconds, nanoseconds).unwrap_or(Timestamp::MAX);
    Timestamp::now().duration_since(changed) < TICK
}

/// Returns the sorted names of the entries in the directory `queue`.
fn names(home: &Path) -> io::Result<BTreeSet<OsString>> {
    let entries = match std::fs::read_dir(home.join("queue")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

fn open(home: &Path, name: &OsStr) -> Result<Directory, Unreadable> {
    let slug = name.to_str().and_then(|name| name.parse::<Slug>().ok());
    let slug = slug.ok_or_else(|| Unreadable::Damaged("it is not a directory of a bottle".to_owned()))?;
    Ok(Directory::open(home, &slug)?)
}

/// Lists the proposals in one directory. If the directory cannot be read, the listing reports it as a damaged
/// entry.
fn list_directory(home: &Path, name: &OsStr, now: Timestamp) -> Listing {
    let read = open(home, name).and_then(|directory| Ok(directory.pending(now)?));
    read.unwrap_or_else(|error| {
        let damaged = Damaged { path: home.join("queue").join(name), why: error.to_string() };
        Listing { pending: Vec::new(), damaged: vec![damaged] }
    })
}
