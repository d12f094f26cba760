//! Streams a tar archive into a bottle or a container engine. The caller passes a closure that writes the archive. The
//! closure runs on a thread, which waits while the receiver is slower. The caller reads the receiver's answer.

use std::io::{self, Write};

use bottle_channel::{ChannelError, Stream};
use bottle_protocol::session::guest::STDIN;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The number of chunks that are buffered between the thread and the channel.
const CHUNKS: usize = 8;

/// The size of a chunk in bytes.
const CHUNK: usize = 32 * 1024;

/// Why a stream was not sent completely.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A file cannot be read.
    #[error(transparent)]
    Unreadable(io::Error),
    /// The channel to the guest closed.
    #[error(transparent)]
    ChannelClosed(ChannelError),
    /// The thread ended without a result.
    #[error("the copy stopped")]
    Stopped(#[source] tokio::task::JoinError),
}

/// Sends the archive that the closure `archive` writes, and then closes this side of the stream. A guest that refuses
/// the archive stops the stream early. `send` then returns `Ok`, because the guest reports the cause in its answer.
///
/// # Errors
/// Returns [`SendError`] if the archive is not sent completely. `send` then leaves this side of the stream open, so
/// that the guest does not accept a truncated archive.
pub async fn send(
    stream: &Stream,
    archive: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Result<(), SendError> {
    let (mut ready, writer) = chunks(archive);
    while let Some(chunk) = ready.recv().await {
        // Dropping `ready`, the receiver of the chunks, ends the thread.
        if stream.data(STDIN, &chunk).await.is_err() {
            break;
        }
    }
    drop(ready);
    match writer.await.map_err(SendError::Stopped)? {
        Ok(()) => stream.end().await.map_err(SendError::ChannelClosed),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(SendError::Unreadable(error)),
    }
}

/// Runs `archive` on a thread, and returns a receiver for its output in chunks. The thread ends when the receiver is
/// dropped. The thread's result is `Ok` if all chunks were sent.
fn chunks(
    archive: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> (mpsc::Receiver<Vec<u8>>, JoinHandle<io::Result<()>>) {
    let (chunks, ready) = mpsc::channel(CHUNKS);
    let writer = tokio::task::spawn_blocking(move || {
        let mut out = io::BufWriter::with_capacity(CHUNK, Chunks(chunks));
        archive(&mut out)?;
        out.flush()
    });
    (ready, writer)
}

/// Returns the archive as a stream. If the files cannot be read, the stream ends with an error, so that the
/// receiver does not accept a truncated archive.
pub fn stream(
    archive: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (ready, writer) = chunks(archive);
    futures_util::stream::unfold(Some((ready, writer)), |state| async move {
        let (mut ready, writer) = state?;
        if let Some(chunk) = ready.recv().await {
            return Some((Ok(Bytes::from(chunk)), Some((ready, writer))));
        }
        let error = writer.await.map_err(io::Error::other).and_then(|result| result).err()?;
        Some((Err(error), None))
    })
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
