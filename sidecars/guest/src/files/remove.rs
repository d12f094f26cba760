//! Removes entries of the workspace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_protocol::session::files::{FileEvent, FileKind, FilePath};
use bottle_protocol::session::guest::Failure;
use rustix::fs::{AtFlags, FileType, unlinkat};
use rustix::io::Errno;

use super::bounds::Bounds;
use super::walk::{Step, walk};
use super::workspace::{Place, Workspace, cannot, subdirectory};
use crate::archive::MAX_DEPTH;
use crate::failure::{Outcome, other};

/// The number of entries that are removed from a directory before it is read again.
const BATCH: usize = 1024;

/// Removes an entry. If the entry is a symlink, removes the symlink itself.
pub(super) fn remove(
    workspace: &Workspace,
    path: &FilePath,
    recursive: bool,
    bounds: &Bounds,
) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let failed = |error: &io::Error| cannot("remove", place.as_path(), error);
    let parent = workspace.parent(&place).map_err(|error| failed(&error))?;
    let stat = parent.entry().map_err(|error| failed(&error))?;
    let stat = stat.ok_or_else(|| failed(&Errno::NOENT.into()))?;
    let mut entries = 0;
    let mut flags = AtFlags::empty();
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        if !recursive {
            let why = "it is a directory, which only `--recursive` removes";
            return Err(failed(&io::Error::other(why)));
        }
        let directory = parent.subdirectory().map_err(|error| failed(&error))?;
        empty(&directory, place.as_path(), 0, bounds, &mut entries)?;
        flags = AtFlags::REMOVEDIR;
    }
    unlinkat(&parent.directory, &parent.name, flags).map_err(|error| failed(&error.into()))?;
    Ok(FileEvent::Removed { entries: entries + 1 })
}

/// Removes files and symlinks. Also removes directories that become empty.
pub(super) fn remove_files(workspace: &Workspace, paths: &[FilePath], bounds: &Bounds) -> Outcome<FileEvent> {
    let mut entries = 0;
    for path in paths {
        let removed = bounds.check().and_then(|()| remove_file(workspace, &Place::new(path)?));
        entries += u64::from(removed.map_err(|failure| partly(entries, failure))?);
    }
    Ok(FileEvent::Removed { entries })
}

/// Removes a file or a symlink. Also removes its parent directories that become empty. Returns whether the entry
/// existed.
fn remove_file(workspace: &Workspace, place: &Place) -> Outcome<bool> {
    let removed = || {
        let parent = match workspace.parent(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            parent => parent?,
        };
        match unlinkat(&parent.directory, &parent.name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    };
    let removed = removed().map_err(|error: io::Error| cannot("remove", place.as_path(), &error))?;
    for directory in place.above() {
        // A directory that is not empty stays, and therefore its parent directories stay too.
        let emptied = workspace
            .parent(&directory)
            .and_then(|parent| Ok(unlinkat(&parent.directory, &parent.name, AtFlags::REMOVEDIR)?));
        if emptied.is_err() {
            break;
        }
    }
    Ok(removed)
}

/// Returns the failure of a request that has already removed some entries.
fn partly(entries: u64, failure: Failure) -> Failure {
    other(format!("{}; {entries} entries were removed", failure.message))
}

/// Removes the contents of a directory. Entries that were removed before an error stay removed.
pub(super) fn empty(
    directory: &OwnedFd,
    path: &Path,
    depth: usize,
    bounds: &Bounds,
    entries: &mut u64,
) -> Outcome<()> {
    if depth == MAX_DEPTH {
        let deep = io::Error::other(format!("it is more than {MAX_DEPTH} directories deep"));
        return Err(partly(*entries, cannot("remove", path, &deep)));
    }
    loop {
        // The names are collected first, because removing entries while a directory is being read can make the read
        // skip other entries.
        let mut names = Vec::new();
        walk(directory, path, None, bounds, &mut |visit| {
            if names.len() == BATCH {
                return Ok(Step::Stop);
            }
            names.push((visit.name.to_owned(), visit.info.kind));
            Ok(Step::Over)
        })?;
        for (name, kind) in &names {
            let below = path.join(name);
            bounds.check().map_err(|failure| partly(*entries, failure))?;
            let mut flags = AtFlags::empty();
            if *kind == FileKind::Directory {
                let opened =
                    subdirectory(directory, name).map_err(|error| cannot("remove", &below, &error))?;
                empty(&opened, &below, depth + 1, bounds, entries)?;
                flags = AtFlags::REMOVEDIR;
            }
            match unlinkat(directory, name, flags) {
                Ok(()) => *entries += 1,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(partly(*entries, cannot("remove", &below, &error.into()))),
            }
        }
        if names.len() < BATCH {
            return Ok(());
        }
    }
}
