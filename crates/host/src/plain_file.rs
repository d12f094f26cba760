//! Opens and reads regular files safely, even if another process replaces a file after the file was checked.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file for reading. Refuses a symbolic link in the last component of the path. Does not block if the path
/// names a pipe.
///
/// # Errors
/// Returns an error if the file cannot be opened. The kind of the error is `InvalidInput` if `path` is not a regular
/// file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Reads up to `most` bytes of a file. If the file is longer, reads one more byte, so that the caller can detect the
/// longer file. Like [`open`], refuses a symbolic link in the last component of the path.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
