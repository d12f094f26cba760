//! The byte streams to pid 1 and to the bundle: unix sockets in the bottle's own runtime folder.

use std::path::Path;

use tokio::net::UnixStream;

use crate::backend::{BackendError, ByteStream};

/// Connects, and makes sure that the other end was made by this user.
///
/// # Errors
/// [`BackendError`] naming `what` when nothing listens.
pub(crate) async fn connect(socket: &Path, what: &str) -> Result<ByteStream, BackendError> {
    match UnixStream::connect(socket).await {
        Ok(stream) => checked(stream, what),
        Err(error) => Err(BackendError::failed(format!("{what} cannot be reached: {error}"))),
    }
}

fn checked(stream: UnixStream, what: &str) -> Result<ByteStream, BackendError> {
    let peer = stream.peer_cred().map_err(|error| BackendError::failed(format!("{what}: {error}")))?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid() != own {
        let message = format!("{what} answers on a socket of user {}, not of user {own}", peer.uid());
        return Err(BackendError::failed(message));
    }
    Ok(Box::new(stream))
}
