//! A tar stream from inside: the channel's frames become a reader on a thread that may block.

use std::io::{self, Read};

use bottle_channel::{Event, Stream};
use bottle_contract::session::guest::{Failure, GuestEvent, STDOUT};
use bytes::Bytes;
use tokio::sync::mpsc;

/// Chunks under way between the channel and the thread.
const CHUNKS: usize = 8;

/// Why a stream did not arrive whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The guest could not send it.
    #[error("{}", .0.message)]
    Refused(Failure),
    /// What came could not be taken.
    #[error("{0}")]
    Unpacked(io::Error),
    /// It ended without the guest's word that this was all.
    #[error("the copy broke off")]
    BrokeOff,
    /// The thread ended without a result.
    #[error("the copy stopped: {0}")]
    Stopped(tokio::task::JoinError),
}

/// Hands the archive on `stream` to `take`, which has it to itself on a thread of its own.
///
/// # Errors
/// [`ReceiveError`]; whatever `take` made of the first part is then not whole.
pub(crate) async fn receive<T: Send + 'static>(
    mut stream: Stream,
    take: impl FnOnce(&mut dyn Read) -> io::Result<T> + Send + 'static,
) -> Result<T, ReceiveError> {
    let (chunks, ready) = mpsc::channel(CHUNKS);
    let taking = tokio::task::spawn_blocking(move || {
        let mut archive = Archive { ready, chunk: Bytes::new(), whole: false };
        let taken = take(&mut archive)?;
        // An archive's padding; without the guest's word at the end this was only a part.
        io::copy(&mut archive, &mut io::sink())?;
        Ok(taken)
    });
    let mut answer = None;
    while let Some(event) = stream.next().await {
        match event {
            Event::Data { fd: STDOUT, bytes } => {
                // A thread that stopped early has its reason ready below.
                if chunks.send(bytes).await.is_err() {
                    break;
                }
            }
            Event::Data { .. } => {}
            Event::Message(json) => {
                answer = serde_json::from_slice(&json).ok();
                break;
            }
            Event::End | Event::Reset(_) => break,
        }
    }
    // Whole only with the guest's word for it: a broken stream, or a user who leaves, must not become a
    // shorter copy.
    if matches!(answer, Some(GuestEvent::Done)) {
        let _ = chunks.send(Bytes::new()).await;
    }
    drop(chunks);
    let taken = taking.await.map_err(ReceiveError::Stopped)?;
    match (answer, taken) {
        (Some(GuestEvent::Failed(failure)), _) => Err(ReceiveError::Refused(failure)),
        (Some(GuestEvent::Done), Ok(taken)) => Ok(taken),
        (_, Err(error)) => Err(ReceiveError::Unpacked(error)),
        (_, Ok(_)) => Err(ReceiveError::BrokeOff),
    }
}

/// The reading end of an archive under way. An empty chunk means that this was all of it; without one it broke off.
struct Archive {
    ready: mpsc::Receiver<Bytes>,
    chunk: Bytes,
    whole: bool,
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() && !self.whole {
            match self.ready.blocking_recv() {
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the copy broke off")),
                Some(chunk) => {
                    self.whole = chunk.is_empty();
                    self.chunk = chunk;
                }
            }
        }
        let length = buffer.len().min(self.chunk.len());
        buffer[..length].copy_from_slice(&self.chunk.split_to(length));
        Ok(length)
    }
}
