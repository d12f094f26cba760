//! Accepts connections from keepers on a control socket, or serves a keeper on the bundle's standard streams.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use bottle_channel::Stdio;
use bottle_daemon::remove_if_present;
use nix::unistd::{Uid, getuid};
use tokio::net::UnixListener;

use crate::Control;
use crate::control::Bundle;

/// The pause after a failed `accept`. For example, `accept` fails if no file descriptor is free. In the meantime,
/// keepers retry.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listener for keepers. The listener is opened before the bundle drops privileges.
pub(crate) enum Keepers {
    Socket { listener: StdUnixListener, path: PathBuf, user: Uid },
    Stdio(Stdio),
}

impl Keepers {
    /// Opens the listener for the current user of this process.
    ///
    /// # Errors
    /// Fails if the socket cannot be bound, or if a standard stream is closed.
    pub(crate) fn open(control: &Control) -> anyhow::Result<Self> {
        match control {
            Control::Socket { path } => {
                let listener = bind(path).with_context(|| format!("control socket {}", path.display()))?;
                Ok(Self::Socket { listener, path: path.clone(), user: getuid() })
            }
            Control::Stdio => Stdio::take().map(Self::Stdio).context("standard streams"),
        }
    }

    /// Serves keepers. If keepers use a control socket, this function never returns. If keepers use the standard
    /// streams, this function returns when the streams end.
    ///
    /// # Errors
    /// Fails if reading or writing the standard streams fails.
    pub(crate) async fn serve(self, bundle: &Arc<Bundle>) -> io::Result<()> {
        match self {
            Self::Socket { listener, path, user } => {
                let _remove = RemoveOnDrop(path);
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
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if socket.peer_cred().is_ok_and(|peer| peer.uid() == user.as_raw()) {
            tokio::spawn(Arc::clone(bundle).keeper(socket));
        }
    }
}

fn bind(path: &Path) -> io::Result<StdUnixListener> {
    remove_if_present(path)?;
    let listener = StdUnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes the control socket's file when this value is dropped.
struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // An error is ignored. After switching users, the bundle may not have the permission to remove the file. In
        // that case, the backend removes the file.
        let _ = fs::remove_file(&self.0);
    }
}
