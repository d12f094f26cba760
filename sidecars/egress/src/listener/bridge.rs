//! Copies bytes in both directions between two streams, until both end or both are idle.

use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::time::{Instant, sleep_until};
use tokio_util::io::InspectReader;

use crate::bounds;

/// Copies until both streams end. Returns the number of bytes from `a` to `b` and from `b` to `a`.
///
/// # Errors
/// I/O errors of either stream, and [`io::ErrorKind::TimedOut`] if no byte arrives for [`bounds::TUNNEL_IDLE`].
pub(crate) async fn bridge<A, B>(a: A, b: B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let last_read = Mutex::new(Instant::now());
    let note = |_: &[u8]| *last_read.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let (mut a, mut b) = (InspectReader::new(a, note), InspectReader::new(b, note));
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
