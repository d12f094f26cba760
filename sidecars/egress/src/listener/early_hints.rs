//! Sends 103 Early Hints (RFC 8297) to HTTP/1.1 clients. The hints are written directly to the connection, because
//! hyper's server sends no interim responses.
//!
//! ```text
//! upstream ──103──► EarlyHints::send ──queue──► EarlyHintsIo ─┐
//!                                        hyper ──response──►──┴─► client
//! ```
//! A hint may be sent only between two responses. [`EarlyHints`] accepts hints only after a request has arrived and
//! before its response begins. [`EarlyHintsIo`] writes the queued hints when hyper has flushed all its data. Hints that
//! would be inside another response are dropped. Clients also work without hints.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use http::{HeaderMap, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bounds;

/// The hints for the client of one connection.
#[derive(Clone, Default)]
pub(crate) struct EarlyHints(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// Whether a request is being answered, and its response has not begun.
    open: bool,
    /// Whether all data that hyper wrote was flushed.
    flushed: bool,
    /// The queued interim responses.
    bytes: Vec<u8>,
    /// The number of bytes of `bytes` that were written.
    written: usize,
    /// Wakes the task that drives the connection.
    connection: Option<Waker>,
}

impl EarlyHints {
    /// Accepts hints from now on, for a request that the client sent.
    pub(super) fn open(&self) {
        self.queue().open = true;
    }

    /// Accepts no more hints, because the response begins.
    pub(super) fn close(&self) {
        self.queue().open = false;
    }

    /// Queues the `Link` headers of an interim response for the client. The other headers are not sent, because RFC
    /// 8297 defines a meaning only for headers that the final response has too.
    pub(crate) fn send(&self, headers: &HeaderMap) {
        let mut queue = self.queue();
        let links = headers.get_all(header::LINK);
        if !queue.open || links.iter().next().is_none() {
            return;
        }
        let mut hint = b"HTTP/1.1 103 Early Hints\r\n".to_vec();
        for link in links {
            for part in [&b"Link: "[..], link.as_bytes(), b"\r\n"] {
                hint.extend_from_slice(part);
            }
        }
        hint.extend_from_slice(b"\r\n");
        if queue.bytes.len() + hint.len() > bounds::HEADER_BYTES {
            return;
        }
        queue.bytes.extend_from_slice(&hint);
        if let Some(connection) = queue.connection.take() {
            connection.wake();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client's connection. hyper writes responses to this stream. The hints from [`EarlyHints`] are written before the
/// responses.
pub(super) struct EarlyHintsIo<IO> {
    io: IO,
    hints: EarlyHints,
}

impl<IO: AsyncWrite + Unpin> EarlyHintsIo<IO> {
    /// Wraps a connection before its first request.
    pub(super) fn new(io: IO) -> (Self, EarlyHints) {
        let hints = EarlyHints::default();
        hints.queue().flushed = true;
        (Self { io, hints: hints.clone() }, hints)
    }

    /// Returns the connection. Unwritten hints are dropped.
    pub(super) fn into_inner(self) -> IO {
        self.io
    }

    /// Writes the queued hints. Drops the hints if hyper is in the middle of a message.
    fn poll_hints(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut queue = self.hints.queue();
        if !queue.flushed {
            queue.bytes.clear();
        }
        while queue.written < queue.bytes.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &queue.bytes[queue.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            queue.written += written;
        }
        queue.bytes.clear();
        queue.written = 0;
        if queue.open && !queue.connection.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            queue.connection = Some(cx.waker().clone());
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the queued hints before hyper writes a part of a message. Then marks the connection as not flushed,
    /// because hyper has bytes to write even if the client does not read at the moment.
    fn poll_before_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_hints(cx))?;
        self.hints.queue().flushed = false;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for EarlyHintsIo<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for EarlyHintsIo<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_message(cx))?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_message(cx))?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// hyper flushes only after it has written all of its buffered data.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_hints(cx))?;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.hints.queue().flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use bytes::Bytes;
    use http::{HeaderValue, Request, Response};
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";

    fn link() -> HeaderMap {
        HeaderMap::from_iter([(header::LINK, HeaderValue::from_static("</a.css>"))])
    }

    /// Serves a connection with a buffer of `capacity` bytes. Each response waits until the test sends its body to
    /// `go`.
    fn serve(capacity: usize) -> (DuplexStream, EarlyHints, mpsc::Sender<Bytes>) {
        let (client, server) = duplex(capacity);
        let (io, hints) = EarlyHintsIo::new(server);
        let (go, body) = mpsc::channel(1);
        let (body, open) = (Arc::new(tokio::sync::Mutex::new(body)), hints.clone());
        let answer = service_fn(move |_: Request<Incoming>| {
            open.open();
            let (body, hints) = (Arc::clone(&body), open.clone());
            async move {
                let body = body.lock().await.recv().await.unwrap_or_default();
                hints.close();
                Ok::<_, Infallible>(Response::new(Full::new(body)))
            }
        });
        let connection =
            http1::Builder::new().auto_date_header(false).serve_connection(TokioIo::new(io), answer);
        tokio::spawn(connection);
        (client, hints, go)
    }

    async fn read(client: &mut DuplexStream, bytes: usize) -> String {
        let mut read = vec![0; bytes];
        let whole = timeout(Duration::from_secs(10), client.read_exact(&mut read)).await;
        whole.expect("no answer in time").expect("the connection ended");
        String::from_utf8(read).expect("text")
    }

    #[tokio::test]
    async fn a_hint_arrives_before_its_response() {
        let (mut client, hints, go) = serve(1 << 16);
        let response = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        for _ in 0..2 {
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("write");
            while !hints.queue().open {
                tokio::task::yield_now().await;
            }
            hints.send(&link());
            assert_eq!(read(&mut client, HINT.len()).await, HINT);
            // The second hint and the response are ready at the same time.
            hints.send(&link());
            go.send(Bytes::from_static(b"ok")).await.expect("send");
            let rest = read(&mut client, HINT.len() + response.len()).await;
            assert_eq!(rest, format!("{HINT}{response}"));
            hints.send(&link());
        }
    }

    /// The client has not read the first response when the second request gets its hint.
    #[tokio::test]
    async fn a_hint_never_falls_into_another_message() {
        let (mut client, hints, go) = serve(64);
        let body = Bytes::from(vec![b'x'; 1000]);
        client.write_all(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n").await.expect("write");
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{}", "x".repeat(1000));
        go.send(body.clone()).await.expect("send");
        let first = read(&mut client, 100).await;
        for _ in 0..100 {
            hints.send(&link());
            tokio::task::yield_now().await;
        }
        go.send(body).await.expect("send");
        let mut rest = String::new();
        while !rest.ends_with(&response) {
            rest += &read(&mut client, 1).await;
        }
        let without = format!("{first}{rest}").replace(HINT, "");
        assert_eq!(without, response.repeat(2));
        // A hint can only be between the two responses.
        assert!(format!("{first}{rest}").starts_with(&response));
    }

    #[tokio::test]
    async fn drops_hints_without_a_link_and_beyond_the_bound() {
        let hints = EarlyHints::default();
        hints.send(&link());
        assert!(hints.queue().bytes.is_empty());
        hints.open();
        hints.send(&HeaderMap::from_iter([(header::SET_COOKIE, HeaderValue::from_static("a=b"))]));
        assert!(hints.queue().bytes.is_empty());
        for _ in 0..10_000 {
            hints.send(&link());
        }
        assert!(hints.queue().bytes.len() <= bounds::HEADER_BYTES);
    }
}
