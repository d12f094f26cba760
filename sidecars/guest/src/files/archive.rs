//! Packs a directory or a file into a tar stream, and unpacks a tar stream into a directory. Works like a copy
//! ([`crate::copy`]), but only within the workspace. An archive is unpacked beside its target first ([`StagedTree`]).

use std::io::{self, Read, Write};
use std::path::Path;

use bottle_protocol::session::files::{FileEvent, FilePath};
use flate2::read::MultiGzDecoder;

use super::staged_tree::StagedTree;
use super::workspace::{MadeDirectories, Place, Workspace, cannot};
use crate::copy::{into, out};
use crate::failure::Outcome;

/// The first bytes of data that is compressed with gzip (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Writes the contents of a directory, or one file, to `output`. Only regular files, directories and symlinks are packed.
pub(super) fn export(workspace: &Workspace, path: &FilePath, output: impl Write) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let packed = match workspace.directory(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            let (file, stat) = workspace.file(&place)?;
            let name = place.as_path().file_name().map(Path::new).unwrap_or(place.as_path());
            out::archive_file(file, &stat, name, output)
        }
        directory => directory.and_then(|directory| out::archive_contents(&directory, output)),
    };
    packed.map(|()| FileEvent::Exported).map_err(|error| cannot("export", place.as_path(), &error))
}

/// Unpacks an archive into a directory. Changes nothing if the archive is damaged or truncated, or if one of its entries
/// cannot replace the existing entry.
pub(super) fn import(workspace: &Workspace, path: &FilePath, input: impl Read) -> Outcome<FileEvent> {
    let place = Place::new(path)?;
    let mut made = MadeDirectories::default();
    let imported = workspace.make_directory(&place, &mut made).and_then(|directory| {
        let staged = StagedTree::create(directory)?;
        let unpacked = into::unpack_into(staged.tree(), uncompressed(input)?)?;
        staged.put_in_place(&unpacked.directories)?;
        Ok(unpacked.entries)
    });
    let entries = imported.map_err(|error| cannot("import into", place.as_path(), &error))?;
    made.keep();
    Ok(FileEvent::Imported { entries })
}

/// Returns a reader of the archive, whether it is compressed or not. The bounds of an archive apply to the uncompressed
/// data.
fn uncompressed<'r>(mut input: impl Read + 'r) -> io::Result<Box<dyn Read + 'r>> {
    let mut beginning = Vec::new();
    input.by_ref().take(GZIP.len() as u64).read_to_end(&mut beginning)?;
    let is_compressed = beginning == GZIP;
    let input = io::Cursor::new(beginning).chain(input);
    Ok(if is_compressed { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) })
}
