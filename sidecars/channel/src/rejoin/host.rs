//! The host's side: opens a connection on a stream that others have used before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bottle_contract::session::frame::{MAX_STREAMS, WINDOW};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::time::timeout;

use super::{Nonce, OPENING, RUN, Zeros, opening};
use crate::{ChannelError, Closed, HELLO_DEADLINE};

/// How long one opening may stay without an answer before the next is sent: what a killed keeper left in
/// the engine's buffers may have come in between its bytes.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Bytes passed over before the answer: all that a side may have under way.
const PASSED_OVER: usize = MAX_STREAMS * WINDOW as usize;

/// What is read at once.
const PIECE: usize = 32 * 1024;

/// Opens a connection on `io`, whose other end is a [`Rejoinable`](super::Rejoinable): what was before is
/// ended there, and what comes from it is passed over until it answers. Then the result is as good as a
/// new stream, for [`Channel::establish`](crate::Channel::establish).
///
/// The inside may still be starting. Nobody else may write to the stream from here on.
///
/// # Errors
/// [`ChannelError::Silent`] without an answer within [`HELLO_DEADLINE`], [`ChannelError::Closed`] when the
/// stream ends, and [`ChannelError::BadHello`] when too much comes before an answer.
pub async fn rejoin<IO>(io: IO) -> Result<Rejoined<IO>, ChannelError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(io);
    let answered = timeout(HELLO_DEADLINE, join(&mut reader, &mut writer)).await;
    let ahead = answered.map_err(|_| ChannelError::Silent(HELLO_DEADLINE))??;
    Ok(Rejoined { io: reader.unsplit(writer), ahead, zeros: Zeros::default(), ended: false, closed: 0 })
}

/// Asks until it is answered; what was read behind the answer.
async fn join<IO>(reader: &mut ReadHalf<IO>, writer: &mut WriteHalf<IO>) -> Result<Bytes, ChannelError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut passed = 0;
    loop {
        // A nonce of its own each time: an answer to an earlier one belongs to a connection that this
        // one ends.
        let nonce: Nonce = rand::random();
        let exchange = async {
            let asked = async { ask(writer, nonce).await.map_err(lost) };
            let ((), ahead) = tokio::try_join!(asked, answer(reader, nonce, &mut passed))?;
            Ok(ahead)
        };
        if let Ok(answered) = timeout(ANSWER_WITHIN, exchange).await {
            return answered;
        }
    }
}

async fn ask<W: AsyncWrite + Unpin>(writer: &mut W, nonce: Nonce) -> io::Result<()> {
    writer.write_all(&[0; RUN]).await?;
    writer.write_all(&opening(nonce)).await?;
    writer.flush().await
}

async fn answer<R>(reader: &mut R, nonce: Nonce, passed: &mut usize) -> Result<Bytes, ChannelError>
where
    R: AsyncRead + Unpin,
{
    let wanted = opening(nonce);
    let mut seen = BytesMut::with_capacity(PIECE);
    loop {
        let read = reader.read_buf(&mut seen).await.map_err(lost)?;
        if read == 0 {
            return Err(ChannelError::Closed(Closed::because("the stream ended before an answer")));
        }
        if let Some(at) = seen.windows(OPENING).position(|window| window == wanted) {
            seen.advance(at + OPENING);
            return Ok(seen.freeze());
        }
        *passed += read;
        if *passed > PASSED_OVER {
            return Err(ChannelError::BadHello(format!("no answer among {PASSED_OVER} bytes")));
        }
        // What may be the beginning of it stays.
        seen.advance(seen.len().saturating_sub(OPENING - 1));
        seen.reserve(PIECE);
    }
}

fn lost(error: io::Error) -> ChannelError {
    ChannelError::Closed(Closed::because(error.to_string()))
}

/// A connection on a stream of many. It ends where the inside closes it; shut down, it is closed for the
/// inside, and the stream itself stays open.
#[derive(Debug)]
pub struct Rejoined<IO> {
    io: IO,
    /// Read behind the answer.
    ahead: Bytes,
    zeros: Zeros,
    /// The inside closed it.
    ended: bool,
    /// Zeros written to close it.
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
        // Whatever comes behind a run is for nobody.
        if let Some(end) = self.zeros.count(&buf.filled()[before..]) {
            buf.set_filled(before + end);
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Rejoined<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.closed < RUN {
            let zeros = [0; PIECE];
            let some = PIECE.min(RUN - self.closed);
            match ready!(Pin::new(&mut self.io).poll_write(cx, &zeros[..some]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.closed += written,
            }
        }
        self.poll_flush(cx)
    }
}
