//! Applies a patch to all of its files, or to none.
//!
//! ```text
//!   unified diff, or a text and its replacement ─► changes, each checked against its file ─► write all
//!                                                                                          └► an error: restore all
//! ```
//! - `hunks`: unified diffs · `replace`: the replacement of a text · `change`: checks and writes the changes

mod change;
mod hunks;
mod replace;

use std::io::Read;

use bottle_protocol::session::files::{FileEvent, PATCH_MAX, Replace};

use self::change::Changes;
use super::bounds::Bounds;
use super::workspace::{Place, Workspace};
use crate::failure::{Outcome, other};

/// Applies a unified diff. If `check` is true, only checks the diff and changes no file.
pub(super) fn unified(
    workspace: &Workspace,
    input: impl Read,
    check: bool,
    bounds: &Bounds,
) -> Outcome<FileEvent> {
    let mut diff = Vec::new();
    let read = input.take(PATCH_MAX as u64 + 1).read_to_end(&mut diff);
    read.map_err(|error| other(format!("cannot read the diff: {error}")))?;
    if diff.len() > PATCH_MAX {
        return Err(other(format!("the diff is larger than {} MiB", PATCH_MAX >> 20)));
    }
    let mut changes = Changes::new(workspace);
    for file in hunks::parse(&diff)? {
        changes.add_diff(&file, bounds)?;
    }
    changes.carry_out(check)
}

/// Replaces a text in a file. If `request.check` is true, only checks the replacement and changes no file.
pub(super) fn replace(workspace: &Workspace, request: &Replace, bounds: &Bounds) -> Outcome<FileEvent> {
    let mut changes = Changes::new(workspace);
    changes.add_replacement(Place::new(&request.path)?, request)?;
    bounds.check()?;
    changes.carry_out(request.check)
}
