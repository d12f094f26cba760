//! Receives records of token usage from the bundle, writes them to disk, and acknowledges them to the bundle.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_instance::usage::{self, Labels, UsageFile};
use bottle_policy::names::Slug;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Written};
use bottle_protocol::usage::Usage;
use tokio::task::spawn_blocking;

use super::protocol::Notice;
use super::shared::Shared;

/// How long the keeper waits after a failed write before it tries again.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Writes the bundle's usage records until the bundle ends.
pub(super) async fn record(home: PathBuf, slug: Slug, labels: Labels, bundle: Channel, shared: Arc<Shared>) {
    let path = usage::path(&home, &slug);
    let mut warned = false;
    loop {
        let Ok(mut stream) = bundle.open(&BundleRequest::Usage).await else { return };
        let mut file = None;
        while let Ok(BundleEvent::Used { records }) = stream.receive().await {
            let last = records.iter().map(|usage| usage.time).max();
            shared.answered.send_modify(|at| *at = (*at).max(last));
            let target = (home.clone(), slug.clone(), labels.clone());
            match write(file.take(), target, records).await {
                Ok(open) => file = Some(open),
                Err(error) => {
                    tracing::warn!("{}: {error}", path.display());
                    if !std::mem::replace(&mut warned, true) {
                        let message = format!("cannot write {}: {error}; retrying", path.display());
                        shared.notices.send(Notice::Warning(message));
                    }
                    break;
                }
            }
            warned = false;
            if stream.message(&Written {}).await.is_err() {
                break;
            }
        }
        // Dropping the stream leaves the records unacknowledged, so the bundle sends them again.
        drop(stream);
        tokio::select! {
            _ = bundle.closed() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

/// Appends records to the usage file. Opens the file if `file` is `None`, for example after a failed write.
async fn write(
    file: Option<UsageFile>,
    (home, slug, labels): (PathBuf, Slug, Labels),
    records: Vec<Usage>,
) -> std::io::Result<UsageFile> {
    let append = move || {
        let mut file = match file {
            Some(file) => file,
            None => UsageFile::open(&home, &slug, labels)?,
        };
        file.append(&records)?;
        Ok(file)
    };
    spawn_blocking(append).await.map_err(std::io::Error::other)?
}
