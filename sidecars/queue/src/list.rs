//! What waits in the folders of all bottles.

use std::io;
use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;
use bottle_contract::queue::Id;
use jiff::Timestamp;

use crate::folder::{Folder, Pending};

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
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
    each(home, |folder| match folder {
        Ok(folder) => {
            let path = home.join("queue").join(folder.slug().as_str());
            match folder.pending(now) {
                Ok(of_one) => {
                    listing.pending.extend(of_one.pending);
                    listing.damaged.extend(of_one.damaged);
                }
                Err(error) => listing.damaged.push(Damaged { path, why: error.to_string() }),
            }
        }
        Err(damaged) => listing.damaged.push(damaged),
    })?;
    listing.sort();
    Ok(listing)
}

/// The folder that has a proposal of this name.
///
/// # Errors
/// When the queue is there and cannot be read.
pub fn find(home: &Path, id: &Id) -> io::Result<Option<Folder>> {
    let mut found = None;
    each(home, |folder| {
        if let Ok(folder) = folder
            && found.is_none()
            && folder.stands(id)
        {
            found = Some(folder);
        }
    })?;
    Ok(found)
}

fn each(home: &Path, mut found: impl FnMut(Result<Folder, Damaged>)) -> io::Result<()> {
    let path = home.join("queue");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let slug = entry.file_name().to_str().and_then(|name| name.parse::<Slug>().ok());
        let folder = match slug {
            Some(slug) => Folder::open(home, &slug).map_err(|error| error.to_string()),
            None => Err("it is no folder of a bottle".to_owned()),
        };
        found(folder.map_err(|why| Damaged { path: entry.path(), why }));
    }
    Ok(())
}
