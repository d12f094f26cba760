//! Queries the health of the sidecars.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Daemon};

/// How long the bundle may take to report the health of its sidecars. After this time, the health of the sidecars is
/// unknown.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the health of each sidecar. Returns an empty list if the bundle does not answer. The bundle's event stream
/// reports this failure separately.
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
