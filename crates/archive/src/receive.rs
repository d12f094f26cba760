//! Receives a tar stream from a bottle, and passes it from the channel to a blocking reader on a thread.

use std::io::{self, Read};

use bottle_channel::{Event, Stream};
use bottle_protocol::session::guest::{Failure, GuestEvent, STDOUT};
use bytes::Bytes;
use tokio::sync::mpsc;

/// The number of chunks that are buffered between the channel and the thread.
const CHUNKS: usize = 8;

/// Why a stream was not received completely.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The guest reported a failure.
    #[error("{}", .0.message)]
    Refused(Failure),
    /// The thread could not process the received archive.
    #[error(transparent)]
    Unpacked(io::Error),
    /// The stream ended before the guest reported that the archive was complete.
    #[error("the copy broke off")]
    BrokeOff,
    /// The thread ended without a result.
    #[error("the copy stopped")]
    Stopped(#[source] tokio::task::JoinError),
}

/// Runs `take` on a blocking thread. `take` gets a reader for the archive that arrives on `stream`.
///
/// # Errors
/// Returns [`ReceiveError`] if the stream is not received completely. The output of `take` may be incomplete
/// in this case.
pub async fn receive<T: Send + 'static>(
    mut stream: Stream,
    take: impl FnOnce(&mut dyn Read) -> io::Result<T> + Send + 'static,
) -> Result<T, ReceiveError> {
    let (chunks, ready) = mpsc::channel(CHUNKS);
    let taking = tokio::task::spawn_blocking(move || {
        let mut archive = Archive { ready, chunk: Bytes::new(), whole: false };
        let taken = take(&mut archive)?;
        // Reads the rest of the stream, which is the padding of the archive. Fails if the stream is truncated.
        io::copy(&mut archive, &mut io::sink())?;
        Ok(taken)
    });
    let mut answer = None;
    while let Some(event) = stream.next().await {
        match event {
            Event::Data { fd: STDOUT, bytes } => {
                // If the thread has stopped early, its result, which is awaited below, contains the reason.
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
    // Only the guest's `Done` marks the stream as complete, so that a broken connection does not result in a
    // truncated copy.
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

/// Reads an archive from received chunks. An empty chunk marks the end of the archive. If the channel closes before an
/// empty chunk arrives, the stream is truncated, and reading fails.
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
