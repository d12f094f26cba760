//! Copies the content of a file: as a reflink if the file system supports it, otherwise with `copy_file_range`,
//! otherwise through a buffer.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, copy_file_range, fstat, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

use super::stamps::Stamp;
use super::write_back::write_back;

/// The maximum number of attempts to copy a file that changes during the copy. The result of the last attempt is
/// accepted even if the file changed.
const TRIES: usize = 3;

/// The number of bytes copied by one `copy_file_range` call.
const CHUNK: u64 = 64 << 20;

/// The size in bytes of the buffer for copies between file systems for which `copy_file_range` fails.
const BUFFER: usize = 1 << 20;

/// The copy operations that the file systems support. An operation is assumed to be supported until it fails.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopySupport {
    clones: bool,
    ranges: bool,
}

impl Default for CopySupport {
    fn default() -> Self {
        Self { clones: true, ranges: true }
    }
}

/// The result of copying one file.
pub(super) struct Content {
    /// The stamp of the source before the copy.
    pub(super) stamp: Stamp,
    /// Whether the source stayed unchanged during the copy.
    pub(super) unchanged: bool,
    /// The number of bytes written.
    pub(super) written: u64,
}

impl CopySupport {
    /// Copies the content of `from` to the empty file `to`. With `live`, the source may change during the copy, and a
    /// changed file is copied again. Holes of a sparse file stay holes. If a file grows during the copy, only its
    /// initial size is copied.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(super) fn copy(&mut self, from: &File, to: &File, live: bool) -> io::Result<Content> {
        let mut written = 0;
        for tries in 1.. {
            if live {
                // Writes dirty pages of memory mappings back, so that a later write through a mapping updates the
                // change time.
                write_back(from);
            }
            let before = Stamp::from_stat(&fstat(from)?);
            written += self.bytes(from, to)?;
            let unchanged = !live || Stamp::from_stat(&fstat(from)?) == before;
            if unchanged || tries == TRIES {
                return Ok(Content { stamp: before, unchanged, written });
            }
            ftruncate(to, 0)?;
        }
        unreachable!("the loop above returns")
    }

    fn bytes(&mut self, from: &File, to: &File) -> io::Result<u64> {
        let size = u64::try_from(fstat(from)?.st_size).unwrap_or(0);
        if size == 0 {
            return Ok(0);
        }
        if self.clones {
            match ioctl_ficlone(to, from) {
                Ok(()) => return Ok(0),
                Err(error) if is_unsupported(error) => self.clones = false,
                Err(error) => return Err(error.into()),
            }
        }
        let mut written = 0;
        let mut at = 0;
        while let Some((start, end)) = data_after(from, at, size)? {
            written += self.range(from, to, start, end)?;
            at = end;
        }
        ftruncate(to, size)?;
        Ok(written)
    }

    fn range(&mut self, from: &File, to: &File, start: u64, end: u64) -> io::Result<u64> {
        let (mut read_at, mut write_at) = (start, start);
        while self.ranges && read_at < end {
            let length = usize::try_from((end - read_at).min(CHUNK)).unwrap_or(BUFFER);
            match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
                // The file became shorter. The caller detects the change by the file's times.
                Ok(0) => return Ok(read_at - start),
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(error) if is_unsupported(error) => self.ranges = false,
                Err(error) => return Err(error.into()),
            }
        }
        let rest = if read_at < end { copy_buffered(from, to, read_at, end)? } else { 0 };
        Ok(read_at - start + rest)
    }
}

fn copy_buffered(mut from: &File, mut to: &File, start: u64, end: u64) -> io::Result<u64> {
    from.seek(io::SeekFrom::Start(start))?;
    to.seek(io::SeekFrom::Start(start))?;
    let mut buffer = vec![0; BUFFER];
    let mut left = end - start;
    while left > 0 {
        let wanted = usize::try_from(left).map_or(BUFFER, |left| left.min(BUFFER));
        let read = from.read(&mut buffer[..wanted])?;
        if read == 0 {
            break;
        }
        to.write_all(&buffer[..read])?;
        left -= read as u64;
    }
    Ok(end - start - left)
}

/// Returns the next range of a file that contains data, between the offsets `at` and `size`.
fn data_after(file: impl AsFd, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(&file, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        // The file contains only a hole after `at`.
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // The file system does not support holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    let end = match seek(&file, SeekFrom::Hole(start)) {
        Ok(end) => end.min(size),
        Err(Errno::NXIO) => size,
        Err(error) => return Err(error.into()),
    };
    // If the file was truncated between the two calls, `end` can be at most `start`. No data follows then.
    Ok((end > start).then_some((start, end)))
}

/// Whether the error means that the file system lacks the operation (`ioctl_ficlone(2)`, `copy_file_range(2)`).
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS | Errno::BADF)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn every_copy_method_keeps_data_and_holes() {
        for support in [
            CopySupport::default(),
            CopySupport { clones: false, ranges: true },
            CopySupport { clones: false, ranges: false },
        ] {
            let mut from = tempfile::tempfile().expect("file");
            from.write_all(b"begin").expect("written");
            from.seek(io::SeekFrom::Start(1 << 30)).expect("a hole");
            from.write_all(b"end").expect("written");
            from.set_len((1 << 30) + 100).expect("a hole at the end");
            let mut to = tempfile::tempfile().expect("file");
            let content = { support }.copy(&from, &to, true).expect("copied");
            assert!(content.unchanged);
            let copied = to.metadata().expect("there");
            assert_eq!(copied.len(), (1 << 30) + 100, "{support:?}");
            assert!(copied.blocks() * 512 < 1 << 20, "{support:?}: {} blocks", copied.blocks());
            let mut read = [0; 5];
            to.rewind().expect("begin");
            to.read_exact(&mut read).expect("read");
            assert_eq!(&read, b"begin");
            to.seek(io::SeekFrom::Start((1 << 30) - 2)).expect("end");
            to.read_exact(&mut read).expect("read");
            assert_eq!(&read, b"\0\0end", "{support:?}");
        }
    }
}
