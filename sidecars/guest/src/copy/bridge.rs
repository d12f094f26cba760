//! Connects a blocking thread and an async stream with bounded queues. The thread uses the queues through `Read` and
//! `Write`.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::mpsc;

/// The size of a chunk in bytes. A chunk fits into one data frame.
const PIECE: usize = 31 * 1024;

/// The maximum number of queued chunks in each direction. If a queue is full, its sender waits.
const QUEUE: usize = 4;

/// Data that the client sent.
pub(crate) enum Piece {
    Bytes(Bytes),
    /// The client has sent all of its data.
    End,
}

/// Creates a queue from a thread to a stream.
pub(crate) fn outward() -> (Writer, mpsc::Receiver<Bytes>) {
    let (queue, receiver) = mpsc::channel(QUEUE);
    (Writer { queue, buffer: BytesMut::new() }, receiver)
}

/// Creates a queue from a stream to a thread.
pub(crate) fn inward() -> (mpsc::Sender<Piece>, Reader) {
    let (sender, queue) = mpsc::channel(QUEUE);
    (sender, Reader { queue, current: Bytes::new(), ended: false })
}

/// The side of a queue to which the thread writes. Writing fails if the stream is closed.
pub(crate) struct Writer {
    queue: mpsc::Sender<Bytes>,
    buffer: BytesMut,
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE - self.buffer.len());
        self.buffer.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        if self.buffer.len() == PIECE {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = self.buffer.split().freeze();
        if piece.is_empty() {
            return Ok(());
        }
        self.queue.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The side of a queue from which the thread reads. If the stream is aborted, reading fails instead of reporting the
/// end of the file.
pub(crate) struct Reader {
    queue: mpsc::Receiver<Piece>,
    current: Bytes,
    ended: bool,
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.queue.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.current = bytes,
                Some(Piece::End) => self.ended = true,
                None => {
                    let why = "the client did not send all of its data";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
            }
        }
        let taken = buffer.len().min(self.current.len());
        self.current.copy_to_slice(buffer.get_mut(..taken).unwrap_or_default());
        Ok(taken)
    }
}
