//! Packs a folder into a tar stream, and unpacks one, like copies ([`crate::copy`]) but within the workspace.

use std::io::{Read, Write};

use bottle_contract::session::files::{FileEvent, FilePath};

use super::workspace::{MadeFolders, Place, Workspace, cannot};
use crate::copy::{into, out};
use crate::failure::Outcome;

/// Writes the contents of a folder to `output`. Only regular files, folders and symlinks are packed.
pub(super) fn export(workspace: &Workspace, path: &FilePath, output: impl Write) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let packed = workspace.folder(&place).and_then(|folder| out::archive_contents(&folder, output));
    packed.map(|()| FileEvent::Exported).map_err(|error| cannot("export", place.as_path(), &error))
}

/// Unpacks an archive into a folder.
pub(super) fn import(workspace: &Workspace, path: &FilePath, input: impl Read) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let mut made = MadeFolders::default();
    let unpacked =
        workspace.make_folder(&place, &mut made).and_then(|folder| into::unpack_into(&folder, input));
    let entries = unpacked.map_err(|error| cannot("import into", place.as_path(), &error))?;
    made.keep();
    Ok(FileEvent::Imported { entries })
}
