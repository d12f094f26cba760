//! The container's side: accepts consecutive connections on one stream.

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::{Finder, Nonce, RUN, Zeros, opening};

/// Size of the read buffer, in bytes.
const BUFFER_SIZE: usize = 32 * 1024;

/// How long a write to the host may block before the container gives up and waits for the host's next opening. An
/// attached container engine reads or drops the written bytes immediately.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// A stream on which hosts open consecutive connections with [`rejoin`](super::rejoin).
#[derive(Debug)]
pub struct Rejoinable<R, W> {
    shared: Arc<Shared<R, W>>,
}

#[derive(Debug)]
struct Shared<R, W> {
    wire: Mutex<Wire<R, W>>,
    /// Notified when the open connection ends.
    ended: Notify,
}

#[derive(Debug)]
struct Wire<R, W> {
    reader: R,
    writer: W,
    piece: Box<[u8]>,
    /// The unread part of `piece`.
    unread: Range<usize>,
    zeros: Zeros,
    /// The number of connections so far.
    count: u64,
    /// Whether the latest connection is still open.
    live: bool,
    /// Whether the latest connection ended and the host has not been notified.
    close_pending: bool,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Rejoinable<R, W> {
    /// Takes ownership of both directions of a stream.
    pub fn new(reader: R, writer: W) -> Self {
        let wire = Wire {
            reader,
            writer,
            piece: vec![0; BUFFER_SIZE].into(),
            unread: 0..0,
            zeros: Zeros::default(),
            count: 0,
            live: false,
            close_pending: false,
        };
        Self { shared: Arc::new(Shared { wire: Mutex::new(wire), ended: Notify::new() }) }
    }

    /// Returns the next connection. Waits until the previous connection ends: the host closes it, the host opens the
    /// next connection, or the previous [`Connection`] is dropped. Then notifies the host that the previous connection
    /// ended. Returns `None` when the stream ends, because no host can connect again.
    ///
    /// # Errors
    /// Errors when reading the stream.
    pub async fn accept(&mut self) -> io::Result<Option<Connection<R, W>>> {
        self.wait_until_free().await;
        loop {
            let close_pending = std::mem::take(&mut self.shared.wire().close_pending);
            if close_pending {
                self.try_write(&[0; RUN]).await;
            }
            let Some(nonce) = self.find_opening().await? else { return Ok(None) };
            // A host that does not read this answer sends another opening.
            if self.try_write(&opening(nonce)).await {
                let mut wire = self.shared.wire();
                wire.live = true;
                wire.count += 1;
                return Ok(Some(Connection { number: wire.count, shared: Arc::clone(&self.shared) }));
            }
        }
    }

    /// Writes all bytes and returns whether the write completed within [`WRITE_TIMEOUT`]. A longer wait is not allowed,
    /// because the same task must also read the stream to detect the stream's end.
    async fn try_write(&self, bytes: &[u8]) -> bool {
        matches!(tokio::time::timeout(WRITE_TIMEOUT, self.write_all(bytes)).await, Ok(Ok(())))
    }

    async fn wait_until_free(&self) {
        while self.shared.wire().live {
            self.shared.ended.notified().await;
        }
    }

    async fn find_opening(&self) -> io::Result<Option<Nonce>> {
        let mut finder = Finder::default();
        loop {
            let mut wire = poll_fn(|cx| {
                let mut wire = self.shared.wire();
                ready!(wire.fill(cx))?;
                Poll::Ready(io::Result::Ok(wire))
            })
            .await?;
            let Wire { piece, unread, zeros, .. } = &mut *wire;
            if unread.start == unread.end {
                return Ok(None);
            }
            let (taken, found) = finder.search(zeros, &piece[unread.clone()]);
            unread.start += taken;
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written =
                poll_fn(|cx| Pin::new(&mut self.shared.wire().writer).poll_write(cx, bytes)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(written..).unwrap_or_default();
        }
        poll_fn(|cx| Pin::new(&mut self.shared.wire().writer).poll_flush(cx)).await
    }
}

impl<R, W> Shared<R, W> {
    /// Locks the wire for a short access. The lock must not be held over an await.
    fn wire(&self) -> MutexGuard<'_, Wire<R, W>> {
        // Every access leaves the wire consistent, so a poisoned lock can be used.
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: AsyncRead + Unpin, W> Wire<R, W> {
    /// Reads the next piece if the previous piece is consumed. If `unread` is empty after this call, the stream has
    /// ended.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unread.start == self.unread.end {
            let mut piece = ReadBuf::new(&mut self.piece);
            ready!(Pin::new(&mut self.reader).poll_read(cx, &mut piece))?;
            self.unread = 0..piece.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}

/// One connection of a [`Rejoinable`]. When the host closes this connection or opens the next one, reads return the end
/// of the stream and writes fail.
#[derive(Debug)]
pub struct Connection<R, W> {
    shared: Arc<Shared<R, W>>,
    number: u64,
}

impl<R, W> Connection<R, W> {
    /// Returns the wire if this connection is still open and no newer connection has replaced it.
    fn wire(&self) -> Option<MutexGuard<'_, Wire<R, W>>> {
        Some(self.shared.wire()).filter(|wire| wire.live && wire.count == self.number)
    }
}

impl<R, W> Drop for Connection<R, W> {
    fn drop(&mut self) {
        if let Some(mut wire) = self.wire() {
            wire.live = false;
            wire.close_pending = true;
            drop(wire);
            self.shared.ended.notify_one();
        }
    }
}

impl<R: AsyncRead + Unpin, W> AsyncRead for Connection<R, W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(mut wire) = self.wire() else { return Poll::Ready(Ok(())) };
        ready!(wire.fill(cx))?;
        let Wire { piece, unread, zeros, live, close_pending, .. } = &mut *wire;
        let bytes = &piece[unread.clone()];
        let bytes = &bytes[..bytes.len().min(buf.remaining())];
        let run = zeros.count(bytes);
        let bytes = &bytes[..run.unwrap_or(bytes.len())];
        buf.put_slice(bytes);
        unread.start += bytes.len();
        if run.is_some() {
            *live = false;
            *close_pending = true;
            self.shared.ended.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl<R, W: AsyncWrite + Unpin> AsyncWrite for Connection<R, W> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.wire() {
            Some(mut wire) => Pin::new(&mut wire.writer).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.wire() {
            Some(mut wire) => Pin::new(&mut wire.writer).poll_flush(cx),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Flushes the stream and does not close it. The host is notified when the connection is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
