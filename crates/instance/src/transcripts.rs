//! Stores the agents' conversations in `$BOTTLE_HOME/transcripts/<slug>/<first launch>/`.
//!
//! Below that directory, the paths are the same as in the bottle, so that the conversations can be copied into a new
//! bottle. The directories outlive the bottle. For each slug, only the conversations of the last few bottles are kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bottle_host::{files, temporary};
use bottle_policy::names::Slug;
use jiff::Timestamp;
use tempfile::TempDir;

use super::record::Record;

/// The maximum number of bottles of one slug whose conversations are kept. If there are more, the oldest conversations
/// are removed.
const MAX_KEPT: usize = 10;

/// The name prefix of an incomplete copy.
const UNFINISHED: &str = ".new-";

/// The stored conversations of one bottle.
#[derive(Debug, Clone)]
pub struct Transcripts {
    own: PathBuf,
    directory: PathBuf,
}

impl Transcripts {
    /// Returns the conversations of this bottle. Their directory may not exist yet.
    #[must_use]
    pub fn of(home: &Path, record: &Record) -> Self {
        let own = home.join("transcripts").join(record.slug.as_str());
        let directory = own.join(record.started_at.strftime("%Y%m%d-%H%M%S").to_string());
        Self { own, directory }
    }

    /// Returns the directory whose content has the same paths as the bottle's root.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the time of the last copy. `None` if there is no copy.
    #[must_use]
    pub fn copied_at(&self) -> Option<Timestamp> {
        // A copy is created as a whole, so the directory's time is the time of the copy.
        self.directory.metadata().ok()?.modified().ok()?.try_into().ok()
    }

    /// Creates an empty directory into which the conversations are copied.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn begin(&self) -> io::Result<TempDir> {
        files::create_private_directory(&self.own)?;
        temporary::directory_in(&self.own, UNFINISHED)
    }

    /// Replaces the stored conversations with the copy, and removes the oldest conversations of the slug.
    ///
    /// # Errors
    /// Fails if the copy cannot be moved, or an old directory cannot be removed.
    pub fn finish(&self, copied: TempDir) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(copied.keep(), &self.directory)?;
        let mut directories: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.own)? {
            directories.push(entry?.path());
        }
        directories.retain(|directory| !is_unfinished(directory));
        // The directory names are times, so they sort by age.
        directories.sort();
        let old = directories.len().saturating_sub(MAX_KEPT);
        directories[..old].iter().try_for_each(fs::remove_dir_all)
    }

    /// Removes an empty copy. Conversations that were stored earlier stay.
    pub fn abandon(&self, copied: TempDir) {
        drop(copied);
        let _ = fs::remove_dir(&self.own);
    }
}

/// Lists incomplete copies of killed keepers, each with its bottle's slug. A bottle of that slug may be running.
#[must_use]
pub fn unfinished(home: &Path) -> Vec<(Slug, PathBuf)> {
    let entries = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let slugs = entries(home.join("transcripts")).filter_map(|own| {
        let slug: Slug = own.file_name().to_str()?.parse().ok()?;
        Some((slug, own.path()))
    });
    slugs
        .flat_map(|(slug, own)| entries(own).map(move |entry| (slug.clone(), entry.path())))
        .filter(|(_, path)| is_unfinished(path))
        .collect()
}

fn is_unfinished(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(UNFINISHED))
}
