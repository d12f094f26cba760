//! Receives lines of the access log from the bundle, writes them to a log in the bottle's directory, and acknowledges
//! them.
//!
//! On some backends, the proxy writes its log to the bottle's directory itself. The bundle then sends no lines.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::SIDECAR_LOGS;
use bottle_channel::Channel;
use bottle_egress::report::LogFiles;
use bottle_host::files;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Written};
use tokio::task::spawn_blocking;

/// How long the keeper waits after a failed write before it tries again.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Writes the bundle's log lines to the bottle's `directory` until the bundle ends. All log files together have at most
/// `keep` bytes.
pub(super) async fn record(directory: PathBuf, keep: u64, bundle: Channel) {
    let directory = directory.join(SIDECAR_LOGS);
    let mut is_relayed = false;
    loop {
        let Ok(mut stream) = bundle.open(&BundleRequest::Log).await else { return };
        let mut files = None;
        while let Ok(BundleEvent::Logged { lines }) = stream.receive().await {
            is_relayed = true;
            match write(files.take(), directory.clone(), keep, lines).await {
                Ok(open) => files = Some(open),
                Err(error) => {
                    tracing::warn!("{}: {error}", directory.display());
                    break;
                }
            }
            if stream.message(&Written {}).await.is_err() {
                break;
            }
        }
        // Dropping the stream leaves the lines unacknowledged, so the bundle sends them again.
        drop(stream);
        if !is_relayed {
            // The bundle sent no lines, because the proxy writes its log itself.
            return;
        }
        tokio::select! {
            _ = bundle.closed() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

/// Appends lines to the log. Opens the log if `files` is `None`, for example after a failed write.
async fn write(
    files: Option<LogFiles>,
    directory: PathBuf,
    keep: u64,
    lines: Vec<String>,
) -> io::Result<LogFiles> {
    let append = move || {
        let mut files = match files {
            Some(files) => files,
            None => open(&directory, keep)?,
        };
        // A line that contains a line break is not a line of the proxy's log.
        for line in lines.iter().filter(|line| !line.contains('\n')) {
            files.append(line)?;
        }
        files.flush()?;
        Ok(files)
    };
    spawn_blocking(append).await.map_err(io::Error::other)?
}

fn open(directory: &Path, keep: u64) -> io::Result<LogFiles> {
    files::create_private_directory(directory)?;
    LogFiles::open(directory, keep)
}
