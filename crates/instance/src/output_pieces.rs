//! A part of a process's output, with the stream of each piece.

use bottle_protocol::session::guest::STDOUT;

/// The pieces of a part of a process's output, in the order in which the guest read them. Two neighbouring pieces are of
/// different streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputPieces(Vec<OutputPiece>);

/// Bytes of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPiece {
    /// `STDOUT` or `STDERR`. The output of a terminal is `STDOUT`.
    pub fd: u8,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl OutputPieces {
    /// Adds bytes of a stream at the end.
    pub fn push(&mut self, fd: u8, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.fd == fd => last.bytes.extend_from_slice(bytes),
            _ => self.0.push(OutputPiece { fd, bytes: bytes.to_vec() }),
        }
    }

    /// The pieces.
    pub fn iter(&self) -> impl Iterator<Item = &OutputPiece> {
        self.0.iter()
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.bytes.len()).sum()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stream of the last byte. The beginning of an output is of the stream `STDOUT`.
    #[must_use]
    pub fn last_fd(&self) -> u8 {
        self.0.last().map_or(STDOUT, |piece| piece.fd)
    }

    /// The bytes of all streams.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|piece| piece.bytes.iter().copied()).collect()
    }

    /// Only the pieces of this stream.
    #[must_use]
    pub fn only(&self, fd: u8) -> Self {
        let mut pieces = Self::default();
        self.0.iter().filter(|piece| piece.fd == fd).for_each(|piece| pieces.push(fd, &piece.bytes));
        pieces
    }

    /// Removes the first `length` bytes, and returns them.
    #[must_use]
    pub fn split_to(&mut self, length: usize) -> Self {
        let mut first = Self::default();
        let mut left = length;
        let mut rest = Self::default();
        for piece in std::mem::take(&mut self.0) {
            let (head, tail) = piece.bytes.split_at(left.min(piece.bytes.len()));
            left -= head.len();
            first.push(piece.fd, head);
            rest.push(piece.fd, tail);
        }
        *self = rest;
        first
    }
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::guest::STDERR;

    use super::*;

    #[test]
    fn pieces_are_joined_split_and_selected() {
        let mut pieces = OutputPieces::default();
        assert!(pieces.is_empty() && pieces.last_fd() == STDOUT);
        for (fd, bytes) in [(STDOUT, "one"), (STDOUT, ""), (STDERR, "err"), (STDERR, "or"), (STDOUT, "two")] {
            pieces.push(fd, bytes.as_bytes());
        }
        assert_eq!((pieces.iter().count(), pieces.len(), pieces.last_fd()), (3, 11, STDOUT));
        assert_eq!(pieces.bytes(), b"oneerrortwo");
        assert_eq!(
            (pieces.only(STDOUT).bytes(), pieces.only(STDERR).bytes()),
            (b"onetwo".to_vec(), b"error".to_vec())
        );
        for length in 0..=11 {
            let mut rest = pieces.clone();
            let first = rest.split_to(length);
            assert_eq!((first.len(), [first.bytes(), rest.bytes()].concat()), (length, pieces.bytes()));
        }
    }
}
