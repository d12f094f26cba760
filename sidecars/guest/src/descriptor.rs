//! Makes non-blocking pipes and terminals usable on the async runtime.
#![allow(unsafe_code)] // `AsyncFd::register` is unsafe because its caller must keep the descriptor valid.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// One end of a pipe, or the master side of a terminal. Reads and writes can run concurrently.
#[derive(Debug)]
pub(crate) struct Descriptor(AsyncFd<OwnedFd>);

impl Descriptor {
    /// Takes ownership of `fd` and makes it non-blocking. The other end, which the child process uses, is not affected.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` is valid and returns the same number until it is dropped. The `AsyncFd` owns the
        // `OwnedFd` and never releases it.
        Ok(Self(unsafe { AsyncFd::register(fd)? }))
    }

    /// Reads the available bytes. Returns 0 at the end of the stream. A terminal returns EIO when its last process has
    /// exited. This error counts as the end of the stream.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut guard = self.0.readable().await?;
            match guard.try_io(|fd| Ok(rustix::io::read(fd.as_fd(), &mut *buffer)?)) {
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(0),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return read,
                Err(_would_block) => {}
            }
        }
    }

    /// Writes all bytes, and waits while the reader is slow.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut guard = self.0.writable().await?;
            match guard.try_io(|fd| Ok(rustix::io::write(fd.as_fd(), bytes)?)) {
                Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
