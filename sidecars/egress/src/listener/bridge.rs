//! Copies bytes in both directions between two streams, until both end or neither sends.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};

use crate::bounds;

/// Copies until both sides end; returns the bytes from `a` to `b` and from `b` to `a`.
///
/// # Errors
/// I/O errors of either side, and [`io::ErrorKind::TimedOut`] after [`bounds::TUNNEL_IDLE`] without a byte.
pub(crate) async fn bridge<A, B>(a: A, b: B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let last_read = Arc::new(Mutex::new(Instant::now()));
    let mut a = IdleTracked { io: a, last_read: Arc::clone(&last_read) };
    let mut b = IdleTracked { io: b, last_read: Arc::clone(&last_read) };
    tokio::select! {
        copied = copy_bidirectional(&mut a, &mut b) => copied,
        () = idle(&last_read) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn idle(last_read: &Mutex<Instant>) {
    loop {
        let until = *last_read.lock().unwrap_or_else(PoisonError::into_inner) + bounds::TUNNEL_IDLE;
        if until <= Instant::now() {
            return;
        }
        sleep_until(until).await;
    }
}

/// Records when bytes were last read.
struct IdleTracked<IO> {
    io: IO,
    last_read: Arc<Mutex<Instant>>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for IdleTracked<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        *self.last_read.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for IdleTracked<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn closes_a_tunnel_only_when_it_is_idle() {
        let (mut client, inner) = duplex(64);
        let (outer, mut server) = duplex(64);
        let bridged = tokio::spawn(bridge(inner, outer));
        for _ in 0..3 {
            tokio::time::sleep(bounds::TUNNEL_IDLE / 2).await;
            client.write_all(b"x").await.expect("write");
            server.read_u8().await.expect("read");
        }
        let started = Instant::now();
        let ended = bridged.await.expect("task").expect_err("idle");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= bounds::TUNNEL_IDLE / 2);
    }
}
