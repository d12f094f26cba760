//! What the bundle counted goes to disk, and the bundle is told when it is there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_contract::names::Slug;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Written};
use bottle_contract::usage::Usage;
use tokio::task::spawn_blocking;

use super::clients::Shared;
use super::protocol::Notice;
use crate::instance::usage::{self, UsageFile};

/// Between two tries to write.
const REST: Duration = Duration::from_secs(2);

/// Writes down what the bundle counts, for as long as it lives.
pub(super) async fn carry(home: PathBuf, slug: Slug, agent: String, bundle: Channel, shared: Arc<Shared>) {
    let path = usage::path(&home, &slug);
    let mut told = false;
    loop {
        let Ok(mut stream) = bundle.open(&BundleRequest::Usage).await else { return };
        let mut file = None;
        while let Ok(BundleEvent::Used { records }) = stream.receive().await {
            let target = (home.clone(), slug.clone(), agent.clone());
            match written(file.take(), target, records).await {
                Ok(open) => file = Some(open),
                Err(error) => {
                    tracing::warn!("{}: {error}", path.display());
                    if !std::mem::replace(&mut told, true) {
                        let words = format!("cannot write {}: {error}; it is tried again", path.display());
                        shared.notices.tell(Notice::Warning(words));
                    }
                    break;
                }
            }
            told = false;
            if acknowledged(&stream).await.is_none() {
                break;
            }
        }
        // What was not acknowledged comes again.
        drop(stream);
        tokio::select! {
            _ = bundle.closed() => return,
            () = tokio::time::sleep(REST) => {}
        }
    }
}

async fn acknowledged(stream: &Stream) -> Option<()> {
    stream.message(&Written {}).await.ok()
}

/// Appends, to a file that is opened anew after a failure.
async fn written(
    file: Option<UsageFile>,
    (home, slug, agent): (PathBuf, Slug, String),
    records: Vec<Usage>,
) -> std::io::Result<UsageFile> {
    let write = move || {
        let mut file = match file {
            Some(file) => file,
            None => UsageFile::open(&home, &slug, &agent)?,
        };
        file.append(&records)?;
        Ok(file)
    };
    spawn_blocking(write).await.map_err(std::io::Error::other)?
}
