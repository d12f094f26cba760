//! Visits the entries below a directory in the order of their paths, and can begin after any path.
//!
//! A directory is visited directly before its contents. At most [`WINDOW`] names of a directory are in memory at a
//! time. A larger directory is read once for each window of names.

use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_protocol::session::files::{FileInfo, FileKind};
use rustix::fs::Dir;

use super::bounds::Bounds;
use super::workspace::{entry, info, link_target, subdirectory};
use crate::archive::MAX_DEPTH;
use crate::failure::{Outcome, other};

/// The maximum number of names of one directory in memory.
const WINDOW: usize = 1024;

/// The number of names between two checks of the bounds.
const CHECK_EVERY: usize = 256;

/// The decision of the visitor after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Continue. If the entry is a directory, visit its contents.
    Into,
    /// Skip the contents of the entry, and continue with the next entry.
    Over,
    /// Stop before this entry.
    Stop,
}

/// The entry that is visited.
pub(super) struct Visit<'a> {
    /// The directory that contains the entry.
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a OsStr,
    pub(super) info: FileInfo,
    /// Whether the entry is the position after which the walk begins, or a directory that contains this position. Such
    /// an entry belongs to the previous part of the walk.
    pub(super) before: bool,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// The path of the last entry that was visited, if the walk stopped early.
    pub(super) stopped_after: Option<PathBuf>,
    /// The number of directories that could not be read.
    pub(super) unreadable: u64,
    /// Whether the bounds of the request stopped the walk.
    pub(super) out_of_time: bool,
}

/// The state of a walk.
pub(super) struct Walk<'a> {
    bounds: &'a Bounds,
    /// The path after which the walk begins.
    after: Option<&'a Path>,
    last: Option<PathBuf>,
    unreadable: u64,
}

/// Visits the entries below `directory` that follow the path `after` in the order of paths. `base` is the path of
/// `directory`.
///
/// # Errors
/// Fails if the directory cannot be read, if the visitor fails, or if the bounds stop the walk before the first entry.
pub(super) fn walk(
    directory: &OwnedFd,
    base: &Path,
    after: Option<&Path>,
    bounds: &Bounds,
    visit: &mut dyn FnMut(Visit<'_>) -> Outcome<Step>,
) -> Outcome<Walked> {
    let mut walk = Walk { bounds, after, last: after.map(Path::to_owned), unreadable: 0 };
    let ended = walk.directory(directory, base, 0, visit)?;
    let Walk { last, unreadable, .. } = walk;
    let out_of_time = ended == Ended::OutOfTime;
    if out_of_time && last.is_none() {
        bounds.check()?;
    }
    Ok(Walked { stopped_after: last.filter(|_| ended != Ended::Complete), unreadable, out_of_time })
}

#[derive(PartialEq, Eq)]
enum Ended {
    Complete,
    Stopped,
    OutOfTime,
}

impl Walk<'_> {
    fn directory(
        &mut self,
        directory: &OwnedFd,
        base: &Path,
        depth: usize,
        visit: &mut dyn FnMut(Visit<'_>) -> Outcome<Step>,
    ) -> Outcome<Ended> {
        // The start path relative to this directory, if the start path is below this directory. In this case, the walk
        // begins at the entry that contains the start path.
        let rest = self.after.and_then(|after| after.strip_prefix(base).ok());
        let first = rest.and_then(|rest| rest.iter().next()).map(OsStr::to_owned);
        let mut begin = first.clone();
        let mut inclusive = true;
        loop {
            let names = match next_names(directory, begin.as_deref(), inclusive, self.bounds) {
                Ok(Some(names)) => names,
                Ok(None) => return Ok(Ended::OutOfTime),
                Err(error) if depth == 0 => return Err(other(format!("cannot read {base:?}: {error}"))),
                Err(_) => {
                    self.unreadable += 1;
                    return Ok(Ended::Complete);
                }
            };
            for name in &names {
                let before = first.as_ref() == Some(name);
                match self.entry(directory, base, name, (depth, before), visit)? {
                    Ended::Complete => {}
                    ended => return Ok(ended),
                }
            }
            if names.len() < WINDOW {
                return Ok(Ended::Complete);
            }
            (begin, inclusive) = (names.into_iter().next_back(), false);
        }
    }

    fn entry(
        &mut self,
        directory: &OwnedFd,
        base: &Path,
        name: &OsStr,
        (depth, before): (usize, bool),
        visit: &mut dyn FnMut(Visit<'_>) -> Outcome<Step>,
    ) -> Outcome<Ended> {
        if self.bounds.passed() {
            return Ok(Ended::OutOfTime);
        }
        // An entry that was removed in the meantime is skipped.
        let Ok(Some(stat)) = entry(directory, name) else { return Ok(Ended::Complete) };
        let path = base.join(name);
        let info = info(&path, &stat, || link_target(directory, name));
        let is_directory = info.kind == FileKind::Directory;
        let step = visit(Visit { directory, name, info, before })?;
        if step == Step::Stop {
            return Ok(Ended::Stopped);
        }
        if !before {
            self.last = Some(path.clone());
        }
        if step == Step::Over || !is_directory {
            return Ok(Ended::Complete);
        }
        match subdirectory(directory, name) {
            Ok(below) if depth < MAX_DEPTH => self.directory(&below, &path, depth + 1, visit),
            Ok(_) | Err(_) => {
                self.unreadable += 1;
                Ok(Ended::Complete)
            }
        }
    }
}

/// Returns the next [`WINDOW`] names of a directory in sorted order, beginning with `begin` if `inclusive` is true, or
/// after it. Returns `None` if the bounds of the request are exceeded.
fn next_names(
    directory: &OwnedFd,
    begin: Option<&OsStr>,
    inclusive: bool,
    bounds: &Bounds,
) -> io::Result<Option<Vec<OsString>>> {
    let mut first = BinaryHeap::new();
    for (number, found) in Dir::read_from(directory)?.enumerate() {
        if number % CHECK_EVERY == 0 && bounds.passed() {
            return Ok(None);
        }
        let found = found?;
        let name = OsStr::from_bytes(found.file_name().to_bytes());
        let is_before = begin.is_some_and(|begin| name < begin || (name == begin && !inclusive));
        if is_before || name == "." || name == ".." {
            continue;
        }
        if first.len() < WINDOW {
            first.push(name.to_owned());
        } else if first.peek().is_some_and(|largest: &OsString| name < largest.as_os_str()) {
            first.pop();
            first.push(name.to_owned());
        }
    }
    Ok(Some(first.into_sorted_vec()))
}
