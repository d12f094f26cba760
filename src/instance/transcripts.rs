//! Where the agents' conversations stay: `$BOTTLE_HOME/transcripts/<slug>/<first launch>/`.
//!
//! Below that their paths are as they are inside, so that a bottle that is built anew can be given them back.
//! They stay when the bottle goes; of one name, those of the last few lives.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;
use tempfile::TempDir;

use super::record::Record;
use crate::host::disk;

/// Lives of bottles of one name whose conversations are kept.
const LIVES: usize = 10;

/// Begins the name of what is not whole.
const UNFINISHED: &str = ".new-";

/// The conversations of one bottle.
#[derive(Debug, Clone)]
pub struct Transcripts {
    own: PathBuf,
    folder: PathBuf,
}

impl Transcripts {
    /// Those of this bottle, whether there are any or not.
    #[must_use]
    pub fn of(home: &Path, record: &Record) -> Self {
        let own = home.join("transcripts").join(record.slug.as_str());
        let folder = own.join(record.started_at.strftime("%Y%m%d-%H%M%S").to_string());
        Self { own, folder }
    }

    /// The folder that holds them, seen from the bottle's root.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An empty folder to copy them into.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn begin(&self) -> io::Result<TempDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.own)?;
        tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(&self.own).map_err(disk::plain)
    }

    /// Puts what was copied in the place of what was there.
    ///
    /// # Errors
    /// When it cannot be moved, or an old life cannot be forgotten.
    pub fn finish(&self, copied: TempDir) -> io::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(copied.keep(), &self.folder)?;
        let mut lives: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.own)? {
            lives.push(entry?.path());
        }
        lives.retain(|life| !is_unfinished(life));
        // Their names are times.
        lives.sort();
        let old = lives.len().saturating_sub(LIVES);
        lives[..old].iter().try_for_each(fs::remove_dir_all)
    }

    /// There was nothing to copy. What an earlier life left stays.
    pub fn abandon(&self, copied: TempDir) {
        drop(copied);
        let _ = fs::remove_dir(&self.own);
    }
}

/// What killed keepers did not finish, with the name of its bottle, which may live by now.
#[must_use]
pub fn unfinished(home: &Path) -> Vec<(Slug, PathBuf)> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
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
