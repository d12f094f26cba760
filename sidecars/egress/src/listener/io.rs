//! One connection from the bottle, as a byte stream.
//!
//! A [`ClientIo`] can put back bytes that were read to detect the protocol, and it fails when the client stops reading.
//! A [`ClientIo`] owns the connection's permit, so the connection counts toward the limit exactly as long as its socket
//! is open.

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
    /// Bytes that were put back. They are read before the bytes of the socket.
    unread: Bytes,
    /// If set, collects a copy of all bytes that are read, up to [`bounds::HELLO_BYTES`].
    record: Option<BytesMut>,
    /// The write deadline. Set while a write waits for a client that does not read.
    stalled: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl ClientIo {
    /// Takes ownership of an accepted socket.
    pub(crate) fn new(socket: Socket, permit: OwnedSemaphorePermit) -> Self {
        Self { socket, unread: Bytes::new(), record: None, stalled: None, _permit: permit }
    }

    /// Puts `bytes` back in front of the unread bytes.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        if self.unread.is_empty() {
            self.unread = bytes;
        } else {
            let mut joined = BytesMut::from(&bytes[..]);
            joined.extend_from_slice(&self.unread);
            self.unread = joined.freeze();
        }
    }

    /// Returns the first byte without consuming it, or `None` at the end of the stream.
    pub(crate) async fn peek(&mut self) -> io::Result<Option<u8>> {
        if let Some(first) = self.unread.first() {
            return Ok(Some(*first));
        }
        let mut some = BytesMut::with_capacity(2048);
        self.read_buf(&mut some).await?;
        self.unread = some.freeze();
        Ok(self.unread.first().copied())
    }

    /// Starts to copy all bytes that are read, until [`Self::recorded`] is called.
    pub(crate) fn record(&mut self) {
        self.record = Some(BytesMut::new());
    }

    /// Stops copying and returns the copied bytes.
    pub(crate) fn recorded(&mut self) -> Bytes {
        self.record.take().map(BytesMut::freeze).unwrap_or_default()
    }

    fn poll_source(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let n = self.unread.len().min(buf.remaining());
            buf.put_slice(&self.unread[..n]);
            self.unread.advance(n);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }

    /// Returns the outcome of a write, or an error if the write has been pending for longer than
    /// [`bounds::WRITE_STALL`].
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
                    "the TLS ClientHello exceeds its bound",
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
