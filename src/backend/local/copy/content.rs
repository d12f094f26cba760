//! A file's bytes, shared where the file system can and copied inside the kernel where it cannot.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, copy_file_range, fdatasync, fstat, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;

use super::stamps::Stamp;

/// Tries with a file that changes while it is copied; then it is taken as it is.
const TRIES: usize = 3;

/// Bytes the kernel copies in one call.
const CHUNK: u64 = 64 << 20;

/// Bytes copied at once where the kernel does not do it.
const BUFFER: usize = 1 << 20;

/// What the file systems can do for us, learnt by trying.
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

/// What came of one file.
pub(super) struct Content {
    /// The source as it was when its bytes were taken.
    pub(super) stamp: Stamp,
    /// Whether it held still.
    pub(super) settled: bool,
    /// Bytes that had to be written.
    pub(super) written: u64,
}

impl CopySupport {
    /// Fills the empty `to` with what `from` holds. With `live` the source may change meanwhile: it is tried
    /// again then. A sparse file stays sparse, and one that grows is cut where it ended when it was begun.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub(super) fn copy(&mut self, from: &File, to: &File, live: bool) -> io::Result<Content> {
        let mut written = 0;
        for tries in 1.. {
            if live {
                // Pages mapped writable are clean after this, so that a later write moves the change time. A
                // file that cannot be synced has no such pages.
                let _ = fdatasync(from);
            }
            let before = Stamp::of(&fstat(from)?);
            written += self.bytes(from, to)?;
            let settled = !live || Stamp::of(&fstat(from)?) == before;
            if settled || tries == TRIES {
                return Ok(Content { stamp: before, settled, written });
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
                Err(error) if is_unable(error) => self.clones = false,
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
                // It became shorter; whoever asked notices by the times.
                Ok(0) => return Ok(read_at - start),
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(error) if is_unable(error) => self.ranges = false,
                Err(error) => return Err(error.into()),
            }
        }
        let rest = if read_at < end { by_hand(from, to, read_at, end)? } else { 0 };
        Ok(read_at - start + rest)
    }
}

fn by_hand(mut from: &File, mut to: &File, start: u64, end: u64) -> io::Result<u64> {
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

/// The next stretch of a file that is no hole, up to `size`.
fn data_after(file: impl AsFd, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(&file, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        // Beyond it is nothing but a hole.
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // A file system that knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    let end = match seek(&file, SeekFrom::Hole(start)) {
        Ok(end) => end.min(size),
        Err(Errno::NXIO) => size,
        Err(error) => return Err(error.into()),
    };
    // A file cut off between the two calls ends before it begins.
    Ok((end > start).then_some((start, end)))
}

/// The answers of file systems that do not do this (`ioctl_ficlone(2)`, `copy_file_range(2)`).
fn is_unable(error: Errno) -> bool {
    matches!(error, Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS | Errno::BADF)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn bytes_and_holes_come_through_every_way() {
        for ways in [
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
            let content = { ways }.copy(&from, &to, true).expect("copied");
            assert!(content.settled);
            let copied = to.metadata().expect("there");
            assert_eq!(copied.len(), (1 << 30) + 100, "{ways:?}");
            assert!(copied.blocks() * 512 < 1 << 20, "{ways:?}: {} blocks", copied.blocks());
            let mut read = [0; 5];
            to.rewind().expect("begin");
            to.read_exact(&mut read).expect("read");
            assert_eq!(&read, b"begin");
            to.seek(io::SeekFrom::Start((1 << 30) - 2)).expect("end");
            to.read_exact(&mut read).expect("read");
            assert_eq!(&read, b"\0\0end", "{ways:?}");
        }
    }
}
