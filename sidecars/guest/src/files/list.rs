//! Lists directories. Also lists the entries with paths that match a pattern.

use std::path::Path;

use bottle_protocol::session::files::{ENTRIES_MAX, Entries, FileInfo, FilePath, Glob, List};
use bottle_protocol::session::guest::Failure;
use rustix::io::Errno;

use super::answer_size::AnswerSize;
use super::bounds::Bounds;
use super::patterns::{Patterns, Scoped};
use super::walk::{Step, Visit, Walked, walk};
use super::workspace::{Place, Workspace, cannot};
use crate::failure::Outcome;

/// Lists the entries of a directory. If the path is not a directory, lists only the entry itself.
pub(super) fn list(workspace: &Workspace, request: &List, bounds: &Bounds) -> Outcome<Entries> {
    let place = Place::new(&request.path)?;
    let directory = match workspace.directory(&place) {
        Ok(directory) => directory,
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTDIR) => {
            return Ok(Entries { entries: vec![workspace.describe(&place)?], ..Entries::default() });
        }
        Err(error) => return Err(cannot("list", place.as_path(), &error)),
    };
    let after = position(request.after.as_ref())?;
    let mut page = Page::new(request.limit);
    let below = if request.recursive { Step::Into } else { Step::Over };
    let walked =
        walk(&directory, place.as_path(), after.as_ref().map(Place::as_path), bounds, &mut |visit| {
            Ok(if visit.before || page.add(visit.info) { below } else { Step::Stop })
        })?;
    Ok(page.finish(walked))
}

/// Lists the entries in the scope of a request with paths that match its pattern.
pub(super) fn glob(workspace: &Workspace, request: &Glob, bounds: &Bounds) -> Outcome<Entries> {
    let scoped = Scoped::new(&request.scope)?;
    let wanted = Patterns::new(std::slice::from_ref(&request.pattern))?;
    let place = &scoped.place;
    let directory = workspace.directory(place).map_err(|error| cannot("search", place.as_path(), &error))?;
    let after = position(request.after.as_ref())?;
    let mut page = Page::new(request.limit);
    let mut visit = |visit: Visit<'_>| {
        let path = scoped.relative(visit.info.path.as_path());
        if scoped.excludes(path, visit.name) {
            return Ok(Step::Over);
        }
        let listed = visit.before || !wanted.matches(path) || page.add(visit.info);
        Ok(if listed { Step::Into } else { Step::Stop })
    };
    let walked = walk(&directory, place.as_path(), after.as_ref().map(Place::as_path), bounds, &mut visit)?;
    Ok(page.finish(walked))
}

fn position(after: Option<&FilePath>) -> Result<Option<Place>, Failure> {
    after.map(Place::new).transpose()
}

/// One part of a list that is sent in several parts.
struct Page {
    limit: usize,
    size: AnswerSize,
    entries: Vec<FileInfo>,
}

impl Page {
    fn new(limit: u32) -> Self {
        let limit = limit.clamp(1, ENTRIES_MAX) as usize;
        Self { limit, size: AnswerSize::default(), entries: Vec::new() }
    }

    /// Adds an entry. Returns false if the part is full.
    fn add(&mut self, info: FileInfo) -> bool {
        let fits = self.entries.len() < self.limit && self.size.add_info(&info);
        if fits {
            self.entries.push(info);
        }
        fits
    }

    fn finish(self, walked: Walked) -> Entries {
        let next = walked.stopped_after.as_deref().map(|path: &Path| FilePath::from(path));
        Entries { entries: self.entries, next, unreadable: walked.unreadable }
    }
}
