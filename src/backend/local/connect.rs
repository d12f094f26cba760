//! The byte streams to pid 1 and to the bundle: unix sockets in the bottle's own runtime folder.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::Instant;

use crate::backend::{BackendError, ByteStream};

/// How long a process that was just started may take to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// Connects, and makes sure that the other end was made by this user.
///
/// While `may_come` says that the listener is on its way, a socket that is not there yet is waited for.
///
/// # Errors
/// [`BackendError`] naming `what` when nothing listens.
pub(crate) async fn connect(
    socket: &Path,
    what: &str,
    may_come: impl Fn() -> bool,
) -> Result<ByteStream, BackendError> {
    let deadline = Instant::now() + LISTENS_WITHIN;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return checked(stream, what),
            Err(error) if is_absent(&error) && may_come() && Instant::now() < deadline => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(BackendError::failed(format!("{what} cannot be reached: {error}"))),
        }
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

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
