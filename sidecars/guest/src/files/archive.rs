//! Packs a directory into a tar stream, and unpacks a tar stream into a directory. Works like a copy ([`crate::copy`]),
//! but only within the workspace.

use std::io::{Read, Write};

use bottle_protocol::session::files::{FileEvent, FilePath};

use super::workspace::{MadeDirectories, Place, Workspace, cannot};
use crate::copy::{into, out};
use crate::failure::Outcome;

/// Writes the contents of a directory to `output`. Only regular files, directories and symlinks are packed.
pub(super) fn export(workspace: &Workspace, path: &FilePath, output: impl Write) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let packed = workspace.directory(&place).and_then(|directory| out::archive_contents(&directory, output));
    packed.map(|()| FileEvent::Exported).map_err(|error| cannot("export", place.as_path(), &error))
}

/// Unpacks an archive into a directory.
pub(super) fn import(workspace: &Workspace, path: &FilePath, input: impl Read) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let mut made = MadeDirectories::default();
    let unpacked = workspace
        .make_directory(&place, &mut made)
        .and_then(|directory| into::unpack_into(&directory, input));
    let entries = unpacked.map_err(|error| cannot("import into", place.as_path(), &error))?;
    made.keep();
    Ok(FileEvent::Imported { entries })
}
