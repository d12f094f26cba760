//! One connection from the bottle, as bytes.
//!
//! Bytes can be looked at before it is known what they are and given
//! back, and a reader that stops reading is given up. The permit of the connection lives in here, so
//! that it counts for exactly as long as its socket is open, whoever holds it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bottle_daemon::Socket;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use crate::bounds;

/// A connection from the bottle.
pub(crate) struct ClientIo {
    socket: Socket,
    /// Bytes read before, which come first.
    replay: Bytes,
    /// While set, everything read is kept here, up to [`bounds::HELLO_BYTES`].
    record: Option<BytesMut>,
    /// Set while a write waits for a reader that does not read.
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl ClientIo {
    /// Takes over an accepted socket.
    pub(crate) fn new(socket: Socket, permit: OwnedSemaphorePermit) -> Self {
        Self { socket, replay: Bytes::new(), record: None, stalled: None, _permit: permit }
    }

    /// Puts `bytes` before what comes from the socket.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        if self.replay.is_empty() {
            self.replay = bytes;
        } else {
            let mut joined = BytesMut::from(&bytes[..]);
            joined.extend_from_slice(&self.replay);
            self.replay = joined.freeze();
        }
    }

    /// The first byte, left in place; `None` at the end of the stream.
    pub(crate) async fn peek(&mut self) -> io::Result<Option<u8>> {
        if let Some(first) = self.replay.first() {
            return Ok(Some(*first));
        }
        let mut some = BytesMut::with_capacity(2048);
        self.read_buf(&mut some).await?;
        self.replay = some.freeze();
        Ok(self.replay.first().copied())
    }

    /// From here on everything read is kept as well, until [`Self::recorded`].
    pub(crate) fn record(&mut self) {
        self.record = Some(BytesMut::new());
    }

    /// Stops keeping and returns what was read meanwhile.
    pub(crate) fn recorded(&mut self) -> Bytes {
        self.record.take().map(BytesMut::freeze).unwrap_or_default()
    }

    fn poll_source(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.replay.is_empty() {
            let n = self.replay.len().min(buf.remaining());
            buf.put_slice(&self.replay[..n]);
            self.replay.advance(n);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }

    /// Passes a write's outcome on; one that waits for longer than [`bounds::WRITE_STALL`] fails.
    fn unless_stalled<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + bounds::WRITE_STALL)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the bottle stopped reading")))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(self.poll_source(cx, buf))?;
        if let Some(record) = &mut self.record {
            record.extend_from_slice(&buf.filled()[before..]);
            if record.len() > bounds::HELLO_BYTES {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the TLS hello is over its bound",
                )));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.unless_stalled(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.unless_stalled(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
