//! The host's side: opens a new connection on a stream that carried earlier connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bottle_protocol::session::frame::{MAX_STREAMS, WINDOW};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::timeout;

use super::{Nonce, OPENING, RUN, Zeros, opening};
use crate::{ChannelError, Closed, HELLO_DEADLINE};

/// How long the host waits for the container's answer before it sends another opening. An opening can get lost: bytes
/// from a killed keeper in the container engine's buffers may have mixed with it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of bytes that the host skips before the container's answer. One side of a connection can have
/// this many bytes in flight. If more bytes arrive, [`rejoin()`] fails.
const MAX_SKIPPED: usize = MAX_STREAMS * WINDOW as usize;

/// Size of the read buffer, in bytes.
const BUFFER_SIZE: usize = 32 * 1024;

/// Opens a connection on `io`. The container uses a [`Rejoinable`](super::Rejoinable) at the other end of `io`, and
/// ends the previous connection. The host skips all bytes before the container's answer. The returned value behaves
/// like a new byte stream and can be passed to [`Channel::establish`](crate::Channel::establish).
///
/// The container may still be starting. From this call on, no other process may write to the stream.
///
/// # Errors
/// [`ChannelError::Silent`] if there is no answer within [`HELLO_DEADLINE`], [`ChannelError::Closed`] if the
/// stream ends, and [`ChannelError::BadHello`] if too many bytes arrive before an answer.
pub async fn rejoin<IO>(io: IO) -> Result<Rejoined<IO>, ChannelError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(io);
    let answered = timeout(HELLO_DEADLINE, join(&mut reader, &mut writer)).await;
    let ahead = answered.map_err(|_| ChannelError::Silent(HELLO_DEADLINE))??;
    Ok(Rejoined { io: reader.unsplit(writer), ahead, zeros: Zeros::default(), ended: false, closed: 0 })
}

/// Sends openings until the container answers one of them. Returns the bytes that were read after the answer.
async fn join<IO>(reader: &mut ReadHalf<IO>, writer: &mut WriteHalf<IO>) -> Result<Bytes, ChannelError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut skipped = 0;
    loop {
        // Each attempt uses a new nonce. An answer to an earlier opening must be ignored, because the new opening ends
        // the connection of the earlier opening.
        let nonce: Nonce = rand::random();
        let exchange = async {
            let sent = async { send_opening(writer, nonce).await.map_err(lost) };
            let ((), ahead) = tokio::try_join!(sent, answer(reader, nonce, &mut skipped))?;
            Ok(ahead)
        };
        if let Ok(answered) = timeout(ANSWER_TIMEOUT, exchange).await {
            return answered;
        }
    }
}

async fn send_opening<W: AsyncWrite + Unpin>(writer: &mut W, nonce: Nonce) -> io::Result<()> {
    writer.write_all(&[0; RUN]).await?;
    writer.write_all(&opening(nonce)).await?;
    writer.flush().await
}

async fn answer<R>(reader: &mut R, nonce: Nonce, skipped: &mut usize) -> Result<Bytes, ChannelError>
where
    R: AsyncRead + Unpin,
{
    let wanted = opening(nonce);
    let mut seen = BytesMut::with_capacity(BUFFER_SIZE);
    loop {
        let read = reader.read_buf(&mut seen).await.map_err(lost)?;
        if read == 0 {
            return Err(ChannelError::Closed(Closed::because("the stream ended without an answer")));
        }
        if let Some(at) = seen.windows(OPENING).position(|window| window == wanted) {
            seen.advance(at + OPENING);
            return Ok(seen.freeze());
        }
        *skipped += read;
        if *skipped > MAX_SKIPPED {
            return Err(ChannelError::BadHello(format!("no answer among {MAX_SKIPPED} bytes")));
        }
        // Keeps the last bytes, because they may be the beginning of the answer.
        seen.advance(seen.len().saturating_sub(OPENING - 1));
        seen.reserve(BUFFER_SIZE);
    }
}

fn lost(error: io::Error) -> ChannelError {
    ChannelError::Closed(Closed::because(error.to_string()))
}

/// One of several consecutive connections on a byte stream. When the container closes the connection, reads return the
/// end of the stream. A shutdown closes this connection, waits until the container has read all written bytes, and
/// leaves the underlying byte stream open.
#[derive(Debug)]
pub struct Rejoined<IO> {
    io: IO,
    /// The bytes that `rejoin` read after the container's answer.
    ahead: Bytes,
    zeros: Zeros,
    /// Whether the container has closed the connection.
    ended: bool,
    /// The number of zeros that this side has written so far to close the connection.
    closed: usize,
}

impl<IO: AsyncRead + Unpin> AsyncRead for Rejoined<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if self.ahead.is_empty() {
            ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        } else {
            let some = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(some));
        }
        // A run of zeros ends this connection. The bytes after the run do not belong to it.
        if let Some(end) = self.zeros.count(&buf.filled()[before..]) {
            buf.set_filled(before + end);
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Rejoined<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // After the container has ended this connection, zeros would end the next connection, which may already exist.
        if self.ended {
            return self.poll_flush(cx);
        }
        while self.closed < RUN {
            let zeros = [0; BUFFER_SIZE];
            let some = BUFFER_SIZE.min(RUN - self.closed);
            match ready!(Pin::new(&mut self.io).poll_write(cx, &zeros[..some]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.closed += written,
            }
        }
        ready!(self.as_mut().poll_flush(cx))?;
        // Waits for the run of zeros with which the container confirms the end. After this run, no byte of this
        // connection is in transit. Without the wait, the container engine could deliver this side's zeros after the
        // opening of the next connection, and the zeros would end the next connection.
        let mut skipped = [0; BUFFER_SIZE];
        loop {
            let mut skipped = ReadBuf::new(&mut skipped);
            ready!(self.as_mut().poll_read(cx, &mut skipped))?;
            if skipped.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
