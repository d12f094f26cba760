//! What waits in the folders of all bottles.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bottle_contract::names::Slug;
use bottle_contract::queue::Id;
use jiff::{SignedDuration, Timestamp};

use crate::folder::{Folder, Pending};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Oldest first.
    pub pending: Vec<Pending>,
    /// What was passed over.
    pub damaged: Vec<Damaged>,
}

/// Something in a queue's folder that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// Where.
    pub path: PathBuf,
    /// Why: a lower-case fragment.
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

/// Everything that waits, of every bottle of this home, also of those that have ended.
///
/// # Errors
/// When the queue is there and cannot be read.
pub fn list(home: &Path, now: Timestamp) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for name in names(home)? {
        listing.add(of_one(home, &name, now));
    }
    listing.sort();
    Ok(listing)
}

/// The folder that has a proposal of this name.
///
/// # Errors
/// When the queue is there and cannot be read.
pub fn find(home: &Path, id: &Id) -> io::Result<Option<Folder>> {
    let mut folders = names(home)?.into_iter().filter_map(|name| open(home, &name).ok());
    Ok(folders.find(|folder| folder.stands(id)))
}

/// Looks at the queue again and again, for whoever shows it: a folder in which nothing came or went is not read
/// again each time.
#[derive(Debug)]
pub struct Looks {
    home: PathBuf,
    folders: BTreeMap<OsString, Seen>,
    /// When all of it was read last.
    whole: Option<Instant>,
    last: Option<Listing>,
}

/// A folder as it was read.
#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    /// Whether something may have come in the same moment as it was read, which the stamp does not tell.
    fresh: bool,
    listing: Listing,
}

/// What differs when an entry came or went: the folder itself, and when it was changed.
type Stamp = (u64, i64, i64);

/// How often everything is read: that somebody stopped waiting changes no folder.
const ALL_EVERY: Duration = Duration::from_secs(3);

/// The clock of a disk may tick as slowly as this.
const TICK: SignedDuration = SignedDuration::from_millis(100);

impl Looks {
    /// Nothing is looked at yet.
    #[must_use]
    pub fn at(home: PathBuf) -> Self {
        Self { home, folders: BTreeMap::new(), whole: None, last: None }
    }

    /// What waits now, as [`list`] has it; none when that is what the look before found.
    ///
    /// # Errors
    /// When the queue is there and cannot be read.
    pub fn look(&mut self, now: Timestamp) -> io::Result<Option<Listing>> {
        let all = self.whole.is_none_or(|whole| whole.elapsed() >= ALL_EVERY);
        let names = names(&self.home)?;
        self.folders.retain(|name, _| names.contains(name));
        for name in names {
            let stamp = stamp(&self.home.join("queue").join(&name));
            let known = self.folders.get(&name).is_some_and(|seen| !seen.fresh && seen.stamp == stamp);
            if known && !all {
                continue;
            }
            // One that cannot be looked at is read, and reported, each time.
            let fresh = stamp.is_none_or(is_fresh);
            let listing = of_one(&self.home, &name, now);
            self.folders.insert(name, Seen { stamp, fresh, listing });
        }
        if all {
            self.whole = Some(Instant::now());
        }
        let mut listing = Listing::default();
        self.folders.values().for_each(|seen| listing.add(seen.listing.clone()));
        listing.sort();
        if self.last.as_ref() == Some(&listing) {
            return Ok(None);
        }
        self.last = Some(listing.clone());
        Ok(Some(listing))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec()))
}

/// Whether it is of this moment.
fn is_fresh((_, seconds, nanoseconds): Stamp) -> bool {
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
    let changed = Timestamp::new(seconds, nanoseconds).unwrap_or(Timestamp::MAX);
    Timestamp::now().duration_since(changed) < TICK
}

/// What is in the queue's folder, in order.
fn names(home: &Path) -> io::Result<BTreeSet<OsString>> {
    let entries = match std::fs::read_dir(home.join("queue")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

fn open(home: &Path, name: &OsStr) -> Result<Folder, String> {
    let slug = name.to_str().and_then(|name| name.parse::<Slug>().ok());
    let slug = slug.ok_or("it is no folder of a bottle")?;
    Folder::open(home, &slug).map_err(|error| error.to_string())
}

/// What waits in one folder; all that is wrong with it is in there too.
fn of_one(home: &Path, name: &OsStr, now: Timestamp) -> Listing {
    let read = open(home, name).and_then(|folder| folder.pending(now).map_err(|error| error.to_string()));
    read.unwrap_or_else(|why| {
        let damaged = Damaged { path: home.join("queue").join(name), why };
        Listing { pending: Vec::new(), damaged: vec![damaged] }
    })
}
