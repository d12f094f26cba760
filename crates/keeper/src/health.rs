//! Queries the health of the sidecars.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Daemon};

/// Time limit for the bundle to report the health of its sidecars. After it, their health is unknown.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// The health of each sidecar. Empty if the bundle does not answer; the bundle's event stream reports that failure.
pub(super) async fn health(bundle: &Channel) -> Vec<Daemon> {
    let query = async {
        let mut stream = bundle.open(&BundleRequest::Health).await.ok()?;
        match stream.receive::<BundleEvent>().await.ok()? {
            BundleEvent::Health { daemons } => Some(daemons),
            _ => None,
        }
    };
    tokio::time::timeout(HEALTH_TIMEOUT, query).await.ok().flatten().unwrap_or_default()
}
