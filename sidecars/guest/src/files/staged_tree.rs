//! A directory tree that is built beside its target, and then moved to its target.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, Stat, fchmod, mkdirat, renameat, unlinkat};
use rustix::io::Errno;

use super::bounds::{Bounds, TIME};
use super::remove::empty;
use super::workspace::{entry, subdirectory};
use super::write::temporary_name;
use crate::archive::{MAX_DEPTH, about};

/// A temporary directory in the target directory. Dropping this value removes the temporary directory with its contents.
///
/// The agent can change the temporary directory meanwhile. Every entry is therefore accessed through an open directory,
/// and no symlink is followed.
pub(super) struct StagedTree {
    target: OwnedFd,
    name: OsString,
    tree: OwnedFd,
}

/// A directory of the tree and the directory of the target that gets its entries.
type Pair<'a> = (&'a OwnedFd, &'a OwnedFd);

impl StagedTree {
    /// Creates an empty tree in the target directory.
    pub(super) fn create(target: OwnedFd) -> io::Result<Self> {
        let name = temporary_name()?;
        mkdirat(&target, &name, Mode::from_raw_mode(0o700))?;
        let tree = subdirectory(&target, &name)?;
        Ok(Self { target, name, tree })
    }

    /// Returns the directory that contains the tree.
    pub(super) fn tree(&self) -> &OwnedFd {
        &self.tree
    }

    /// Moves the entries of the tree to the target directory. Replaces files and symlinks, and merges directories. A
    /// directory that exists gets the permission bits in `modes`, if it is there. Checks first that every entry can be
    /// moved.
    pub(super) fn put_in_place(&self, modes: &HashMap<PathBuf, u32>) -> io::Result<()> {
        let pair = (&self.tree, &self.target);
        check(pair, Path::new(""))?;
        merge(pair, Path::new(""), modes)
    }
}

impl Drop for StagedTree {
    fn drop(&mut self) {
        let (bounds, _client) = Bounds::new(TIME);
        // An error leaves the temporary directory behind. The result of the request is decided already.
        let _ = empty(&self.tree, Path::new(&self.name), 0, &bounds, &mut 0);
        let _ = unlinkat(&self.target, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Fails if an entry of the tree cannot replace the existing entry.
fn check(pair: Pair<'_>, path: &Path) -> io::Result<()> {
    for_each(pair, path, &mut |(tree, target), name, below| {
        let Some(existing) = entry(target, name)? else { return Ok(()) };
        let new = entry(tree, name)?.ok_or(Errno::NOENT)?;
        match (is_directory(&new), is_directory(&existing)) {
            (true, true) if new.st_dev != existing.st_dev => {
                Err(about(below, "another disk is mounted there; import into this directory instead"))
            }
            (true, true) => check((&subdirectory(tree, name)?, &subdirectory(target, name)?), below),
            (true, false) => Err(about(below, "a file or link is in the place of a directory")),
            (false, true) => Err(about(below, "a directory is in its place")),
            (false, false) => Ok(()),
        }
    })
}

/// Moves the entries of a directory.
fn merge(pair: Pair<'_>, path: &Path, modes: &HashMap<PathBuf, u32>) -> io::Result<()> {
    for_each(pair, path, &mut |(tree, target), name, below| {
        let both = [entry(tree, name)?, entry(target, name)?];
        if !both.iter().all(|entry| entry.as_ref().is_some_and(is_directory)) {
            return renameat(tree, name, target, name).map_err(|error| about(below, io::Error::from(error)));
        }
        let existing = subdirectory(target, name)?;
        merge((&subdirectory(tree, name)?, &existing), below, modes)?;
        match modes.get(below) {
            Some(mode) => Ok(fchmod(&existing, Mode::from_raw_mode(*mode))?),
            None => Ok(()),
        }
    })
}

/// Calls `each` with every entry of a directory of the tree, and with the path of the entry.
fn for_each(
    pair: Pair<'_>,
    path: &Path,
    each: &mut dyn FnMut(Pair<'_>, &OsStr, &Path) -> io::Result<()>,
) -> io::Result<()> {
    // The agent can add directories to the tree.
    if path.components().count() > MAX_DEPTH {
        return Err(about(path, format!("more than {MAX_DEPTH} directories deep")));
    }
    // The names are collected first, because moving entries can make the reading of a directory skip other entries.
    let names: Vec<_> = Dir::read_from(pair.0)?
        .map(|entry| Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned()))
        .collect::<io::Result<_>>()?;
    let mut entries = names.iter().filter(|name| *name != "." && *name != "..");
    entries.try_for_each(|name| each(pair, name, &path.join(name)))
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}
