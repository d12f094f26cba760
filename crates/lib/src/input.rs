//! Sends the input of a request to the guest.

use bottle_channel::StreamSender;
use bottle_protocol::session::guest::STDIN;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::connect::keeper_lost;
use super::failure::Failure;

/// The maximum size in bytes of the pieces in which input is sent.
pub(crate) const PIECE: usize = 16 * 1024;

/// Sends the whole input, but does not signal its end.
///
/// # Errors
/// When the input cannot be read, or the stream is closed.
pub(crate) async fn send(sender: &StreamSender, mut input: impl AsyncRead + Unpin) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE];
    loop {
        match input.read(&mut piece).await.map_err(|error| Failure::cannot("read the input", error))? {
            0 => return Ok(()),
            read => sender.data(STDIN, &piece[..read]).await.map_err(keeper_lost)?,
        }
    }
}
