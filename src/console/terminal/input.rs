//! Reads standard input as a stream of chunks.
//!
//! A separate thread reads standard input, because only blocking reads work in the same way for a terminal, a pipe and
//! a file. The thread stops when the stream is dropped, so that it does not take keys meant for the next reader.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::mpsc;

/// The maximum number of bytes of one read.
const CHUNK: usize = 16 * 1024;

/// The number of buffered chunks. Further input stays in the kernel's buffer.
const WAITING: usize = 4;

/// The bytes that the user types, in chunks. Dropping the value stops the thread that reads standard input.
pub(crate) struct Chunks {
    receiver: mpsc::Receiver<Bytes>,
    /// Closing this descriptor stops the thread.
    _wanted: Option<PipeWriter>,
}

impl Chunks {
    /// Returns the next chunk. Returns `None` at the end of the input or after a read error.
    pub(crate) async fn recv(&mut self) -> Option<Bytes> {
        self.receiver.recv().await
    }
}

/// Starts the thread that reads standard input.
pub(crate) fn chunks() -> Chunks {
    let (sender, receiver) = mpsc::channel(WAITING);
    let Ok((unwanted, wanted)) = pipe() else {
        return Chunks { receiver, _wanted: None };
    };
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        while is_ready(&unwanted) {
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if sender.blocking_send(Bytes::copy_from_slice(&buffer[..length])).is_err() {
                        return;
                    }
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    });
    Chunks { receiver, _wanted: Some(wanted) }
}

/// Waits for input. Returns false if the stream was dropped.
fn is_ready(unwanted: &PipeReader) -> bool {
    loop {
        let stdin = rustix::stdio::stdin();
        let mut both =
            [PollFd::new(unwanted, PollFlags::IN), PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        match poll(&mut both, None) {
            Ok(_) if !both[0].revents().is_empty() => return false,
            Ok(_) if !both[1].revents().is_empty() => return true,
            Ok(_) | Err(Errno::INTR) => {}
            // Input that does not support polling is read without waiting.
            Err(_) => return true,
        }
    }
}
