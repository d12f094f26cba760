//! Adopts a running bottle whose keeper died.

use bottle_backend::{Backend, PausedBy};
use bottle_channel::{Request, Stream};
use bottle_host::process::ProcessId;
use bottle_host::{Host, causes};
use bottle_instance::{Claim, ClaimError, Store, engines};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Attach, GuestRequest};

use super::first::First;
use super::owner::{Owned, Serving};
use super::protocol::{Inherited, KeeperEvent};
use super::tool_calls::Handler;
use super::{find, log};
use crate::launch::{self, LaunchError, Peer, Running};

/// The maximum number of attempts to connect to a running bottle when the handshake fails. After the last attempt, the
/// adoption fails.
const RECONNECT_ATTEMPTS: usize = 3;

/// Adopts the bottle and serves it until it ends.
pub(super) async fn keep(
    host: &Host,
    backends: &[Box<dyn Backend>],
    handler: Handler,
    slug: &Slug,
    (inherited, unpauses): (Inherited, bool),
    first: First,
    request: Request,
) -> anyhow::Result<()> {
    let report = request.accept();
    let Some(claim) = claim(host, slug, &first, &report).await else { return Ok(()) };
    log::open(&claim);
    let backend = find(backends, &claim.record().backend)?;
    let connected = async {
        end_pause(backend, slug, unpauses).await?;
        let running = connect_both(backend, slug).await?;
        let own = ProcessId::own().ok().map(|id| id.to_string());
        let engine = backend.identity().await.ok().flatten();
        let recorded = claim.update(|record| {
            record.keeper = own;
            record.runtime = Some(host.runtime.clone());
            record.engine = engine.or_else(|| record.engine.take());
        });
        recorded.map_err(LaunchError::host("write the bottle's record"))?;
        let serving = Serving::begin(host, &claim, &running.bundle).await?;
        Ok::<_, LaunchError>((running, serving))
    };
    match connected.await {
        Ok((running, serving)) => {
            let owned = Owned {
                host,
                backend,
                handler,
                claim,
                running,
                serving,
                first,
                inherited,
                adopted: true,
                interrupted: false,
            };
            owned.run(&report).await
        }
        Err(error) => {
            let failure = match engines::require(backend, claim.directory(), &claim.record()).await {
                Ok(()) => (&error).into(),
                // If this command uses another engine than the bottle, the bottle is missing only on this engine and
                // may still run.
                Err(error) => (&error).into(),
            };
            first.refuse(&report, failure).await;
            Ok(())
        }
    }
}

/// Takes the lock of an existing bottle. If the lock cannot be taken, sends the reason to the client and returns
/// `None`. If another process holds the lock, the client tries again: the other process either is a keeper, which will
/// serve the client, or will soon release the lock.
pub(super) async fn claim(host: &Host, slug: &Slug, first: &First, report: &Stream) -> Option<Claim> {
    match Store::of(host).adopt(slug) {
        Ok(claim) => return Some(claim),
        Err(error @ ClaimError::Taken { .. }) => {
            first.answer_only(report, KeeperEvent::Refused(error.to_string())).await;
        }
        Err(error) => first.refuse(report, (&error).into()).await,
    }
    None
}

/// Opens the channels to the guest and the bundle of a running bottle, and attaches to its agent. If the bundle has
/// ended, its channel is already closed. On some backends, consecutive keepers use the same byte stream. Frames for the
/// previous keeper may then arrive after this keeper's hello, which makes the handshake fail. After a failed handshake,
/// the connection is opened again.
pub(super) async fn connect_both(backend: &dyn Backend, slug: &Slug) -> Result<Running, LaunchError> {
    for _ in 0..RECONNECT_ATTEMPTS {
        match connect_once(backend, slug).await {
            Err(error @ LaunchError::Handshake(..)) => {
                tracing::debug!("{}; connecting again", causes::one_line(&error));
            }
            connected => return connected,
        }
    }
    connect_once(backend, slug).await
}

/// Ends a pause that would prevent the connection to the bottle. Always ends the pause of an interrupted snapshot. If
/// `unpauses` is set, also ends a pause by the user.
async fn end_pause(backend: &dyn Backend, slug: &Slug, unpauses: bool) -> Result<(), LaunchError> {
    backend.recover(slug, PausedBy::Snapshot).await?;
    if unpauses {
        backend.recover(slug, PausedBy::Other).await?;
    }
    Ok(())
}

async fn connect_once(backend: &dyn Backend, slug: &Slug) -> Result<Running, LaunchError> {
    let guest = launch::connect(backend, slug, Peer::Guest).await?;
    let bundle = launch::connect_bundle(backend, slug).await?;
    // The stream on which the previous keeper started the agent is closed. A read-only attach stream reports the
    // agent's exit too.
    let watch = GuestRequest::Attach(Attach { read_only: true, process: None, size: None });
    let refused = |source| LaunchError::Handshake(Peer::Guest, source);
    let agent = guest.open(&watch).await.map_err(refused)?;
    Ok(Running { bundle, guest, agent })
}
