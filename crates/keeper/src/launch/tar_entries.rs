//! Adds entries to the archive of a workspace.

use std::io::{self, Write};
use std::path::Path;

use bottle_repository::Entry;

/// Adds a directory with the mode 0755.
pub(super) fn append_directory(archive: &mut tar::Builder<&mut dyn Write>, inside: &Path) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o755);
    header.set_size(0);
    archive.append_data(&mut header, inside, io::empty())
}

/// Adds one entry. Skips sockets, devices and pipes. Also skips a file that was removed after it was listed.
pub(super) fn append(
    archive: &mut tar::Builder<&mut dyn Write>,
    entry: &Entry,
    inside: &Path,
) -> io::Result<()> {
    match bottle_archive::append(archive, entry, inside) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let path = entry.whole_path();
            Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        }
        done => done,
    }
}
