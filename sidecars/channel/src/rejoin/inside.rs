//! The inside's side: takes one connection after another from a stream.

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

/// What is read at once.
const PIECE: usize = 32 * 1024;

/// How long the stream may take no more bytes. An engine reads them or throws them away at once.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// A stream on which hosts open one connection after another with [`rejoin`](super::rejoin).
#[derive(Debug)]
pub struct Rejoinable<R, W> {
    shared: Arc<Shared<R, W>>,
}

#[derive(Debug)]
struct Shared<R, W> {
    wire: Mutex<Wire<R, W>>,
    /// The connection is over.
    freed: Notify,
}

#[derive(Debug)]
struct Wire<R, W> {
    reader: R,
    writer: W,
    piece: Box<[u8]>,
    /// What of the piece nobody has looked at.
    unread: Range<usize>,
    zeros: Zeros,
    /// How many connections there were.
    count: u64,
    /// Whether the last of them goes on.
    live: bool,
    /// Whether it was this side that ended it and the host does not know.
    untold: bool,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Rejoinable<R, W> {
    /// Takes over both directions of a stream.
    pub fn new(reader: R, writer: W) -> Self {
        let wire = Wire {
            reader,
            writer,
            piece: vec![0; PIECE].into(),
            unread: 0..0,
            zeros: Zeros::default(),
            count: 0,
            live: false,
            untold: false,
        };
        Self { shared: Arc::new(Shared { wire: Mutex::new(wire), freed: Notify::new() }) }
    }

    /// The next connection, once the one before is over: ended by the host, by the opening of the next, or
    /// dropped here (which the host is then told). `None` at the end of the stream, which can never be
    /// joined again.
    ///
    /// # Errors
    /// What reading the stream says.
    pub async fn accept(&mut self) -> io::Result<Option<Connection<R, W>>> {
        self.free().await;
        loop {
            let untold = std::mem::take(&mut self.shared.wire().untold);
            if untold {
                self.say(&[0; RUN]).await;
            }
            let Some(nonce) = self.find().await? else { return Ok(None) };
            // Unheard, it is asked for again.
            if self.say(&opening(nonce)).await {
                let mut wire = self.shared.wire();
                wire.live = true;
                wire.count += 1;
                return Ok(Some(Connection { number: wire.count, shared: Arc::clone(&self.shared) }));
            }
        }
    }

    /// Writes all of it, if anybody reads. That the stream has ended is for its other direction to say,
    /// which must not wait for this one.
    async fn say(&self, bytes: &[u8]) -> bool {
        matches!(tokio::time::timeout(HEARD_WITHIN, self.write_all(bytes)).await, Ok(Ok(())))
    }

    async fn free(&self) {
        while self.shared.wire().live {
            self.shared.freed.notified().await;
        }
    }

    async fn find(&self) -> io::Result<Option<Nonce>> {
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
            let (taken, found) = finder.look(zeros, &piece[unread.clone()]);
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
    /// The wire, for one short look; never held over an await.
    fn wire(&self) -> MutexGuard<'_, Wire<R, W>> {
        // Each look leaves it whole.
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: AsyncRead + Unpin, W> Wire<R, W> {
    /// Reads a piece when the last one was looked at; nothing unread then means the end of the stream.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unread.start == self.unread.end {
            let mut piece = ReadBuf::new(&mut self.piece);
            ready!(Pin::new(&mut self.reader).poll_read(cx, &mut piece))?;
            self.unread = 0..piece.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}

/// One connection of a [`Rejoinable`]. It reads its end where the host closes it or opens the next, and
/// cannot write any more from there on.
#[derive(Debug)]
pub struct Connection<R, W> {
    shared: Arc<Shared<R, W>>,
    number: u64,
}

impl<R, W> Connection<R, W> {
    /// The wire, while this connection is the one on it.
    fn wire(&self) -> Option<MutexGuard<'_, Wire<R, W>>> {
        Some(self.shared.wire()).filter(|wire| wire.live && wire.count == self.number)
    }
}

impl<R, W> Drop for Connection<R, W> {
    fn drop(&mut self) {
        if let Some(mut wire) = self.wire() {
            wire.live = false;
            wire.untold = true;
            drop(wire);
            self.shared.freed.notify_one();
        }
    }
}

impl<R: AsyncRead + Unpin, W> AsyncRead for Connection<R, W> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(mut wire) = self.wire() else { return Poll::Ready(Ok(())) };
        ready!(wire.fill(cx))?;
        let Wire { piece, unread, zeros, live, .. } = &mut *wire;
        let bytes = &piece[unread.clone()];
        let bytes = &bytes[..bytes.len().min(buf.remaining())];
        let run = zeros.count(bytes);
        let bytes = &bytes[..run.unwrap_or(bytes.len())];
        buf.put_slice(bytes);
        unread.start += bytes.len();
        if run.is_some() {
            *live = false;
            self.shared.freed.notify_one();
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

    /// Closes nothing but what is queued: the host is told when the connection is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
