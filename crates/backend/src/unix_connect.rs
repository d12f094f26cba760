//! Connects to pid 1 and to the bundle through unix sockets in the bottle's runtime directory.

use std::io::ErrorKind;
use std::path::Path;

use tokio::net::UnixStream;

use crate::{BackendError, BackendErrorKind, ByteStream};

/// Connects to the socket and verifies that the peer runs as this user.
///
/// # Errors
/// [`BackendError`] that contains `what`, when no process listens ([`BackendErrorKind::NotRunning`]), or when the peer
/// is another user.
pub async fn connect(socket: &Path, what: &str) -> Result<ByteStream, BackendError> {
    match UnixStream::connect(socket).await {
        Ok(stream) => check_peer(stream, what),
        Err(error) => {
            let kind = match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::NotFound => BackendErrorKind::NotRunning,
                _ => BackendErrorKind::Failed,
            };
            Err(BackendError::new(kind, format!("cannot connect to {what}")).because(error))
        }
    }
}

fn check_peer(stream: UnixStream, what: &str) -> Result<ByteStream, BackendError> {
    let peer = stream.peer_cred().map_err(|error| BackendError::failed(what).because(error))?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid() != own {
        let message = format!("{what} answers on a socket of user {}, not of user {own}", peer.uid());
        return Err(BackendError::failed(message));
    }
    Ok(Box::new(stream))
}
