//! Reads an archive, and counts its bytes, so that an error can say where the archive is damaged.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// How much of an archive was read.
#[derive(Debug, Default)]
pub(super) struct Position {
    bytes: Cell<u64>,
    ended: Cell<bool>,
}

impl Position {
    /// Returns the number of bytes that were read.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Whether a read found the end of the archive.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }
}

/// A reader that updates a [`Position`].
pub(super) struct Source<R> {
    archive: R,
    position: Rc<Position>,
}

impl<R: Read> Source<R> {
    /// Reads this archive from its start.
    pub(super) fn new(archive: R) -> Self {
        Self { archive, position: Rc::default() }
    }

    /// Returns the position, which later reads update.
    pub(super) fn position(&self) -> Rc<Position> {
        self.position.clone()
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.archive.read(buffer)?;
        let Position { bytes, ended } = &*self.position;
        bytes.set(bytes.get() + read as u64);
        ended.set(ended.get() || read == 0 && !buffer.is_empty());
        Ok(read)
    }
}
