//! Receives a tar stream from a bottle: channel frames become a blocking reader on a thread.

use std::io::{self, Read};

use bottle_channel::{Event, Stream};
use bottle_contract::session::guest::{Failure, GuestEvent, STDOUT};
use bytes::Bytes;
use tokio::sync::mpsc;

/// Chunks buffered between the channel and the thread.
const CHUNKS: usize = 8;

/// Why a stream was not received completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// The guest reported a failure.
    #[error("{}", .0.message)]
    Refused(Failure),
    /// The received archive could not be processed.
    #[error(transparent)]
    Unpacked(io::Error),
    /// The stream ended before the guest reported its end.
    #[error("the copy broke off")]
    BrokeOff,
    /// The thread ended without a result.
    #[error("the copy stopped")]
    Stopped(#[source] tokio::task::JoinError),
}

/// Runs `take` on a blocking thread, with a reader for the archive on `stream`.
///
/// # Errors
/// [`ReceiveError`]; the output of `take` is then incomplete.
pub(crate) async fn receive<T: Send + 'static>(
    mut stream: Stream,
    take: impl FnOnce(&mut dyn Read) -> io::Result<T> + Send + 'static,
) -> Result<T, ReceiveError> {
    let (chunks, ready) = mpsc::channel(CHUNKS);
    let taking = tokio::task::spawn_blocking(move || {
        let mut archive = Archive { ready, chunk: Bytes::new(), whole: false };
        let taken = take(&mut archive)?;
        // Reads the archive's padding, and fails when the stream is truncated.
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
    // Only the guest's `Done` marks the stream as complete: a broken stream must not become a shorter copy.
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

/// Reads an archive from the received chunks. An empty chunk marks the end; without it the stream is truncated.
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
