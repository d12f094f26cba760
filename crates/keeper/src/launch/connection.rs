//! Connects to a bottle's bundle and guest, and exchanges requests with the guest.

use std::io::{self, Write};
use std::time::Duration;

use bottle_archive::SendError;
use bottle_backend::{Backend, BackendErrorKind};
use bottle_channel::{Channel, ChannelError, Side, Stream};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use bottle_protocol::session::{Hello, Role};

use super::error::{LaunchError, Peer};

/// How long pid 1 may take to answer before the launch fails. Pid 1 may have to write a few files or start a program
/// before it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// The capacity in bytes of a connection within this process. The two ends exchange only hellos.
const HANDSHAKE_CAPACITY: usize = 4096;

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

/// Opens the keeper's channel to the bundle of a running bottle. If the bundle has ended, returns a channel that is
/// already closed. The bottle then continues without network traffic, in the same way as a bottle that loses its bundle
/// while its keeper runs.
///
/// # Errors
/// The errors of [`connect`], except when the bundle ended.
pub async fn connect_bundle(backend: &dyn Backend, slug: &Slug) -> Result<Channel, LaunchError> {
    match connect(backend, slug, Peer::Bundle).await {
        Err(LaunchError::Backend(error)) if error.kind == BackendErrorKind::NotRunning => {
            tracing::warn!("{}; all traffic of {slug} is blocked", error.one_line());
            closed_channel().await.map_err(|source| LaunchError::Handshake(Peer::Bundle, source))
        }
        connected => connected,
    }
}

/// Creates a channel to a peer that disconnected after the handshake.
async fn closed_channel() -> Result<Channel, ChannelError> {
    let (ours, theirs) = tokio::io::duplex(HANDSHAKE_CAPACITY);
    let (ours, theirs) = tokio::join!(
        Channel::establish(ours, Side::Dialed, Hello::of(Role::Keeper)),
        Channel::establish(theirs, Side::Accepted, Hello::of(Role::Bundle))
    );
    drop(theirs?);
    let (channel, ..) = ours?;
    channel.closed().await;
    Ok(channel)
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

/// Sends the archive that `files` writes, and waits until the guest has extracted the archive.
pub(super) async fn send(
    stream: &mut Stream,
    files: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Result<(), LaunchError> {
    bottle_archive::send(stream, files).await.map_err(|error| match error {
        SendError::ChannelClosed(error) => Peer::Guest.lost(error),
        SendError::Unreadable(source) => LaunchError::Host("copy the working directory", source),
        SendError::Stopped(error) => LaunchError::host("copy the working directory")(error),
    })?;
    done(stream).await
}
