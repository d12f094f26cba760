//! Limits the interim responses (1xx) of HTTP/2, which hyper skips without counting them.
//!
//! A response has one head before its data, so every additional head belongs to an interim response. Frame headers (RFC
//! 9113, 4.1) suffice to count the heads.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bounds;

const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;

/// A connection to an HTTP/2 server. Reading fails when too many interim responses precede a response.
pub(super) struct InterimLimit<IO> {
    io: IO,
    /// The bytes of the next frame's header that were read so far.
    head: Vec<u8>,
    /// The number of bytes of the current frame that were not read yet.
    remaining: usize,
    /// The number of heads received on each stream whose response data has not begun.
    heads: HashMap<u32, usize>,
}

impl<IO> InterimLimit<IO> {
    /// Wraps a connection from which nothing has been read yet.
    pub(super) fn new(io: IO) -> Self {
        Self { io, head: Vec::with_capacity(FRAME_HEAD), remaining: 0, heads: HashMap::new() }
    }

    fn observe(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.remaining > 0 {
                let (_, rest) = bytes.split_at(self.remaining.min(bytes.len()));
                self.remaining -= bytes.len() - rest.len();
                bytes = rest;
                continue;
            }
            let (head, rest) = bytes.split_at((FRAME_HEAD - self.head.len()).min(bytes.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            if let [a, b, c, kind, flags, s, t, u, v] = self.head[..] {
                self.head.clear();
                self.remaining = u32::from_be_bytes([0, a, b, c]) as usize;
                self.frame(kind, flags, u32::from_be_bytes([s, t, u, v]))?;
            }
        }
        Ok(())
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32) -> io::Result<()> {
        match kind {
            HEADERS if flags & END_STREAM == 0 => {
                // The map could grow, because it may contain streams that the proxy has cancelled. Clearing the map is
                // harmless: the count of each stream starts again from 0.
                if self.heads.len() > bounds::INTERIM_STREAMS {
                    self.heads.clear();
                }
                let count = self.heads.entry(stream).or_default();
                *count += 1;
                if *count > bounds::INTERIM_RESPONSES + 1 {
                    return Err(io::Error::other("interim responses without an end"));
                }
            }
            HEADERS | DATA | RST_STREAM => drop(self.heads.remove(&stream)),
            _ => {}
        }
        Ok(())
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for InterimLimit<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        Poll::Ready(self.observe(&buf.filled()[before..]))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for InterimLimit<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
