//! The handshake: sends a hello, reads the peer's hello within a deadline, and compares the protocol versions before it
//! parses the other fields of the hello.

use std::time::Duration;

use bottle_protocol::session::Hello;
use bottle_protocol::session::frame::{HEADER, Header, Kind};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::ChannelError;

/// How long a peer may take to send its hello before the handshake fails. The deadline is longer than a process start
/// on a loaded machine, and short enough for a user to wait for the error.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(10);

/// The only field that the hellos of all protocol versions have.
#[derive(Deserialize)]
struct Version {
    protocol: u32,
}

/// Sends `ours`, reads the peer's hello and compares the versions.
pub(crate) async fn shake<R, W>(
    reader: &mut R,
    writer: &mut W,
    ours: &Hello,
    deadline: Duration,
) -> Result<Hello, ChannelError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    // Sending and receiving run concurrently, so that two peers on an unbuffered stream do not deadlock and each peer
    // can report both versions.
    let both = async { tokio::try_join!(send(writer, ours), receive(reader, ours.protocol)) };
    match tokio::time::timeout(deadline, both).await {
        Ok(done) => done.map(|((), theirs)| theirs),
        Err(_) => Err(ChannelError::Silent(deadline)),
    }
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, ours: &Hello) -> Result<(), ChannelError> {
    let text = serde_json::to_vec(ours).map_err(|e| ChannelError::Unwritable(e.to_string()))?;
    let header =
        Header::new(Kind::Hello, 0, text.len()).map_err(|e| ChannelError::Unwritable(e.to_string()))?;
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(&text);
    let sent = async {
        writer.write_all(&bytes).await?;
        writer.flush().await
    };
    // A failed write alone is no error. A peer that has disconnected may have sent its hello before, and `receive` can
    // still read this hello.
    if let Err(error) = sent.await {
        tracing::debug!(%error, "hello not sent");
    }
    Ok(())
}

async fn receive<R: AsyncRead + Unpin>(reader: &mut R, ours: u32) -> Result<Hello, ChannelError> {
    let mut header = [0; HEADER];
    reader.read_exact(&mut header).await.map_err(|e| ChannelError::BadHello(e.to_string()))?;
    let header = Header::decode(header).map_err(|e| ChannelError::BadHello(e.to_string()))?;
    if header.kind != Kind::Hello {
        return Err(ChannelError::BadHello(format!("a `{}` frame arrived first", header.kind)));
    }
    let mut text = vec![0; header.length];
    reader.read_exact(&mut text).await.map_err(|e| ChannelError::BadHello(e.to_string()))?;
    let Version { protocol: theirs } =
        serde_json::from_slice(&text).map_err(|e| ChannelError::BadHello(e.to_string()))?;
    if theirs != ours {
        return Err(ChannelError::Version { ours, theirs });
    }
    serde_json::from_slice(&text).map_err(|e| ChannelError::BadHello(e.to_string()))
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::Role;

    use super::*;

    #[tokio::test]
    async fn a_silent_peer_times_out() {
        let (near, _far) = tokio::io::duplex(4096);
        let (mut reader, mut writer) = tokio::io::split(near);
        let deadline = Duration::from_millis(20);
        let error = shake(&mut reader, &mut writer, &Hello::of(Role::Keeper), deadline).await;
        assert_eq!(error, Err(ChannelError::Silent(deadline)));
    }
}
