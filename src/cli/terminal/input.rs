//! Standard input as a stream of chunks.
//!
//! A thread of its own reads, because a terminal, a pipe and a file can only be waited for alike that way.
//! It is never joined: it may wait for a key that is never pressed, and ends with the process.

use std::io::{self, Read};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;

/// Chunks under way: what is typed or piped beyond waits in the kernel.
const WAITING: usize = 4;

/// Starts reading. The receiver ends at the end of the input, or when it cannot be read any more.
pub(crate) fn chunks() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        let mut input = io::stdin().lock();
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if sender.blocking_send(Bytes::copy_from_slice(&buffer[..length])).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}
