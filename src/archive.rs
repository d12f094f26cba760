//! A tar stream on its way into a bottle: a thread reads the files, the channel takes them as fast as the
//! guest does. What is in it, and what the guest answers, is the caller's.

use std::io::{self, Write};

use bottle_channel::{ChannelError, Stream};
use bottle_contract::session::guest::STDIN;
use tokio::sync::mpsc;

/// Chunks under way between the thread and the channel.
const CHUNKS: usize = 8;

/// Bytes of one chunk.
const CHUNK: usize = 32 * 1024;

/// Why a stream did not get through whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(io::Error),
    /// The guest is gone.
    #[error("{0}")]
    Gone(ChannelError),
    /// The thread ended without a result.
    #[error("the copy stopped: {0}")]
    Stopped(tokio::task::JoinError),
}

/// Sends what `archive` writes, and ends our side of the stream. A guest that refuses says why in its answer:
/// to stop early because of that is no error here.
///
/// # Errors
/// [`SendError`]; our side is then not ended, so that the guest never takes a part for the whole.
pub(crate) async fn send(
    stream: &Stream,
    archive: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Result<(), SendError> {
    let (chunks, mut ready) = mpsc::channel(CHUNKS);
    let writer = tokio::task::spawn_blocking(move || {
        let mut out = io::BufWriter::with_capacity(CHUNK, Chunks(chunks));
        archive(&mut out)?;
        out.flush()
    });
    while let Some(chunk) = ready.recv().await {
        let chunk: Vec<u8> = chunk;
        // The thread ends with the channel.
        if stream.data(STDIN, &chunk).await.is_err() {
            break;
        }
    }
    drop(ready);
    match writer.await.map_err(SendError::Stopped)? {
        Ok(()) => stream.end().await.map_err(SendError::Gone),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(SendError::Unreadable(error)),
    }
}

struct Chunks(mpsc::Sender<Vec<u8>>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let cut = &bytes[..bytes.len().min(CHUNK)];
        self.0.blocking_send(cut.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(cut.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
