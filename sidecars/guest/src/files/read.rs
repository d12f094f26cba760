//! Reads a part of a file.

use std::fs::File;
use std::io::{self, Read as _, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use bottle_protocol::session::files::{FileEvent, READ_MAX, Read};
use bottle_scan::OutputRedactor;

use super::workspace::{Place, Workspace, cannot, number};
use crate::failure::Outcome;

/// The number of bytes that are redacted at once.
const REDACTED_AT_ONCE: u64 = 256 << 10;

/// Writes a part of a file to `output`. If the request asks for it, `redactor` replaces secret values.
pub(super) fn read(
    workspace: &Workspace,
    request: &Read,
    mut output: impl Write,
    redactor: Option<&OutputRedactor>,
) -> Outcome<FileEvent> {
    let place = Place::new(&request.path)?;
    let (mut file, stat) = workspace.file(&place)?;
    let failed = |error: io::Error| cannot("read", place.as_path(), &error);
    let max = request.max.min(READ_MAX);
    let sent = match redactor.filter(|redactor| request.redact && !redactor.is_empty()) {
        Some(redactor) => redacted(&file, request.offset, max, redactor, &mut output),
        None => file
            .seek(SeekFrom::Start(request.offset))
            .and_then(|_| io::copy(&mut file.take(max), &mut output)),
    };
    let sent = sent.and_then(|sent| output.flush().map(|()| sent)).map_err(failed)?;
    let next = request.offset.saturating_add(sent);
    Ok(FileEvent::Read { next, size: number::<_, u64>(stat.st_size).max(if sent > 0 { next } else { 0 }) })
}

/// Writes a part of a file, of which each piece is searched together with the bytes around it. Returns the number of
/// bytes of the file in this part.
fn redacted(
    file: &File,
    offset: u64,
    max: u64,
    redactor: &OutputRedactor,
    output: &mut impl Write,
) -> io::Result<u64> {
    let reach = redactor.reach() as u64;
    let mut done = 0;
    while done < max {
        let start = offset.saturating_add(done);
        let before = reach.min(start);
        let wanted = REDACTED_AT_ONCE.min(max - done);
        let window = window(file, start - before, before + wanted + reach)?;
        let end = (window.len() as u64).min(before + wanted);
        if end <= before {
            break;
        }
        let index = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
        output.write_all(&redactor.redact_part(&window, index(before)..index(end)))?;
        done += end - before;
    }
    Ok(done)
}

/// Reads at most `length` bytes from the position `from`.
fn window(file: &File, from: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut window = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while filled < window.len() {
        let position = from.saturating_add(filled as u64);
        match file.read_at(window.get_mut(filled..).unwrap_or_default(), position) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    window.truncate(filled);
    Ok(window)
}
