//! Connects to a bottle's bundle and guest, and exchanges requests with the guest.

use std::io::{self, Write};
use std::time::Duration;

use bottle_channel::{Channel, Side, Stream};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use bottle_contract::session::{Hello, Role};

use super::error::{LaunchError, Peer};
use crate::archive::{self, SendError};
use crate::backend::Backend;

/// Time limit for an answer of pid 1, which may first write a few files or start a program. After it, the launch fails.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Opens the keeper's channel to the bundle or the guest of a running bottle.
///
/// # Errors
/// [`LaunchError`] when the peer cannot be reached or does not complete the handshake.
pub async fn connect(backend: &dyn Backend, slug: &Slug, peer: Peer) -> Result<Channel, LaunchError> {
    let stream = match peer {
        Peer::Bundle => backend.connect_bundle(slug).await?,
        Peer::Guest => backend.connect_guest(slug).await?,
    };
    let established = Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper)).await;
    established.map(|(channel, _, _)| channel).map_err(|source| LaunchError::Handshake(peer, source))
}

/// Opens a stream to the guest for `request`.
pub(super) async fn open(guest: &Channel, request: &GuestRequest) -> Result<Stream, LaunchError> {
    guest.open(request).await.map_err(|error| Peer::Guest.lost(error))
}

/// Reads the guest's answer.
pub(super) async fn answer(stream: &mut Stream) -> Result<GuestEvent, LaunchError> {
    tokio::time::timeout(ANSWER_WITHIN, stream.receive())
        .await
        .map_err(|_| LaunchError::Late(Peer::Guest, "answer"))?
        .map_err(|error| Peer::Guest.lost(error))
}

/// Reads the guest's answer and checks that it is `Done`.
pub(super) async fn done(stream: &mut Stream) -> Result<(), LaunchError> {
    match answer(stream).await? {
        GuestEvent::Done => Ok(()),
        GuestEvent::Failed(failure) => {
            Err(LaunchError::Refused(Peer::Guest, format!("failed: {}", failure.message)))
        }
        _ => Err(LaunchError::Unexpected(Peer::Guest)),
    }
}

/// Sends the archive that `files` writes and waits until the guest has extracted it.
pub(super) async fn send(
    stream: &mut Stream,
    files: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Result<(), LaunchError> {
    archive::send(stream, files).await.map_err(|error| match error {
        SendError::ChannelClosed(error) => Peer::Guest.lost(error),
        SendError::Unreadable(source) => LaunchError::Host("copy the working directory", source),
        SendError::Stopped(error) => LaunchError::host("copy the working directory")(error),
    })?;
    done(stream).await
}
