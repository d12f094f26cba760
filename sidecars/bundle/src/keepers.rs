//! Where keepers speak from: a socket of their own user's, or the bundle's standard streams.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use bottle_channel::Stdio;
use nix::unistd::{Uid, getuid};
use tokio::net::UnixListener;

use crate::Control;
use crate::control::Bundle;

/// Out of descriptors; a keeper tries again.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What was opened while it could be.
pub(crate) enum Keepers {
    Socket { listener: StdUnixListener, path: PathBuf, user: Uid },
    Stdio(Stdio),
}

impl Keepers {
    /// Opens it for the user that this process is now.
    ///
    /// # Errors
    /// When the socket cannot be bound, or a standard stream is closed.
    pub(crate) fn open(control: &Control) -> anyhow::Result<Self> {
        match control {
            Control::Socket { path } => {
                let listener = bind(path).with_context(|| format!("control socket {}", path.display()))?;
                Ok(Self::Socket { listener, path: path.clone(), user: getuid() })
            }
            Control::Stdio => Stdio::take().map(Self::Stdio).context("standard streams"),
        }
    }

    /// Serves keepers: for ever on a socket, to the end of the standard streams.
    ///
    /// # Errors
    /// When the streams cannot be used.
    pub(crate) async fn serve(self, bundle: &Arc<Bundle>) -> io::Result<()> {
        match self {
            Self::Socket { listener, path, user } => {
                let _remove = Remove(path);
                accept(bundle, UnixListener::from_std(listener)?, user).await
            }
            Self::Stdio(streams) => {
                let mut streams = streams.on_runtime()?;
                while let Some(stream) = streams.accept().await? {
                    tokio::spawn(Arc::clone(bundle).keeper(stream));
                }
                Ok(())
            }
        }
    }
}

async fn accept(bundle: &Arc<Bundle>, listener: UnixListener, user: Uid) -> io::Result<()> {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_REST).await;
            continue;
        };
        if socket.peer_cred().is_ok_and(|peer| peer.uid() == user.as_raw()) {
            tokio::spawn(Arc::clone(bundle).keeper(socket));
        }
    }
}

fn bind(path: &Path) -> io::Result<StdUnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdUnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes the socket in the end.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        // Best effort: after a change of user the folder may be another's, and the backend removes it.
        let _ = fs::remove_file(&self.0);
    }
}
