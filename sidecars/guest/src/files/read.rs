//! Reads a part of a file.

use std::io::{self, Read as _, Seek, SeekFrom, Write};

use bottle_protocol::session::files::{FileEvent, READ_MAX, Read};

use super::workspace::{Place, Workspace, cannot, number};
use crate::failure::Outcome;

/// Writes a part of a file to `output`.
pub(super) fn read(workspace: &Workspace, request: &Read, mut output: impl Write) -> Outcome<FileEvent> {
    let place = Place::new(&request.path)?;
    let (mut file, stat) = workspace.file(&place)?;
    let failed = |error: io::Error| cannot("read", place.as_path(), &error);
    file.seek(SeekFrom::Start(request.offset)).map_err(failed)?;
    let mut part = file.take(request.max.min(READ_MAX));
    let sent = io::copy(&mut part, &mut output).and_then(|sent| output.flush().map(|()| sent));
    let sent = sent.map_err(failed)?;
    let next = request.offset.saturating_add(sent);
    Ok(FileEvent::Read { next, size: number::<_, u64>(stat.st_size).max(if sent > 0 { next } else { 0 }) })
}
