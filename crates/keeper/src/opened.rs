//! The keeper that opens the files of a kept bottle for commands.
//!
//! `diff`, `pull`, `cp` and `exec` talk to a guest through a keeper. If the bottle has ended and its files are
//! kept, the command starts a keeper for itself:
//!
//! ```text
//!   lock ─► leftovers removed ─► pid 1 on the kept files ─► requests ─► last client gone ─► pid 1 ended ─► lock free
//! ```
//! The opened bottle has no agent, no sidecars, no network and no secrets. The keeper reads no manifest and asks the
//! user nothing, because the bottle's record contains everything that the sandbox needs. The sandbox has the
//! restrictions and limits of a running bottle. For a command that only reads, the files are read-only. Commands with
//! compatible access share the guest. A command with incompatible access waits until the guest has ended. The bottle
//! stays kept all the time, so a crash at any point leaves a kept bottle. The next command or `bottle cleanup` removes
//! the processes that a killed keeper left behind.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bottle_backend::{Access, Backend, LAYERS, Sandbox};
use bottle_channel::{Channel, Request, Stream};
use bottle_host::Host;
use bottle_host::process::ProcessId;
use bottle_instance::live_directory::identify_again;
use bottle_instance::record::{Record, Status};
use bottle_instance::{Claim, engines};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{GuestRequest, Stop};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

use super::clients;
use super::first::First;
use super::listener::{self, Handler};
use super::permission::Keeper;
use super::protocol::{KeeperEvent, KeeperRequest, LaunchFailure, LaunchFailureKind};
use super::shared::{Fact, send_last};
use super::{adoption, find, log};
use crate::launch;

/// How long pid 1 may take to end its processes. After this time, the backend kills pid 1.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that all client connections share.
struct Opened {
    guest: Channel,
    claim: Claim,
    access: Access,
    connected: watch::Sender<usize>,
}

/// Opens the files and serves clients until the last client has disconnected.
pub(super) async fn run(
    host: &Host,
    backends: &[Box<dyn Backend>],
    slug: &Slug,
    access: Access,
    first: First,
    request: Request,
) -> anyhow::Result<()> {
    let report = request.accept();
    let Some(claim) = adoption::claim(host, slug, &first, &report).await else { return Ok(()) };
    let record = claim.record();
    if record.status != Status::Kept || !record.kept {
        // The bottle was resumed or discarded in the meantime. The client tries again and finds the bottle's new state.
        let why = format!("{slug} has no kept files any more");
        first.answer_only(&report, KeeperEvent::Refused(why)).await;
        return Ok(());
    }
    log::open(&claim);
    let backend = find(backends, &record.backend)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let opened = tokio::select! {
        opened = open(host, backend, &claim, &record, access) => opened,
        _ = first.channel.closed() => Err(failure(slug, "its client is gone", None)),
        _ = terminate.recv() => Err(failure(slug, "it was interrupted", None)),
    };
    let guest = match opened {
        Ok(guest) => guest,
        Err(mut failure) => {
            failure.left.extend(close(backend, &claim).await);
            first.refuse(&report, failure).await;
            return Ok(());
        }
    };
    let socket = host.keeper_socket(slug);
    let opened = Arc::new(Opened { guest, claim, access, connected: watch::Sender::default() });
    let served = serve(&report, first, &opened, &socket, &mut terminate).await;
    let _ = std::fs::remove_file(&socket);
    let stopped = async {
        let stop = GuestRequest::Stop(Stop { grace_ms: 0, work: None });
        let mut stream = opened.guest.open(&stop).await.ok()?;
        stream.next().await
    };
    let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
    for left in close(backend, &opened.claim).await {
        tracing::warn!("not removed: {left}");
    }
    Ok(served?)
}

/// Starts pid 1 with the kept files. Before that, removes resources that a killed keeper left behind.
async fn open(
    host: &Host,
    backend: &dyn Backend,
    claim: &Claim,
    record: &Record,
    access: Access,
) -> Result<Channel, LaunchFailure> {
    let slug = &record.slug;
    let Some(sandbox) = &record.sandbox else {
        let hint = format!("`bottle resume {slug} --detach` starts it; then run this command again");
        return Err(failure(slug, "an earlier version of bottle kept them", Some(hint)));
    };
    engines::require(backend, claim.directory(), record)
        .await
        .map_err(|error| LaunchFailure::from(&error))?;
    let left = launch::remove_launch(backend, claim).await;
    if !left.is_empty() {
        let hint = "`bottle cleanup` ends it; then run this command again".to_owned();
        return Err(LaunchFailure { left, ..failure(slug, "another guest still uses them", Some(hint)) });
    }
    let own = ProcessId::own().ok().map(|id| id.to_string());
    let recorded = claim.update(|record| {
        record.keeper = own;
        record.runtime = Some(host.runtime.clone());
    });
    recorded.map_err(|error| failure(slug, &error.to_string(), None))?;
    // The live directory is identified again, because its device number may have changed when this machine was
    // restarted. If the directory must not be mounted any more, only the bottle's own repository can be read.
    let live = sandbox.live.as_ref().map(identify_again).transpose();
    let live = live.unwrap_or_else(|changed| {
        tracing::warn!("the directory is not mounted: {changed}");
        None
    });
    let sandbox = &Sandbox { live, ..sandbox.clone() };
    let opened = launch::open_kept(host, backend, claim, sandbox, access).await;
    opened.map_err(|error| (&error).into())
}

fn failure(slug: &Slug, why: &str, hint: Option<String>) -> LaunchFailure {
    let message = format!("cannot open the files of {slug}: {why}");
    LaunchFailure {
        kind: LaunchFailureKind::Other,
        message,
        causes: Vec::new(),
        hint,
        left: Vec::new(),
        is_busy: false,
    }
}

/// Serves clients until the last client has disconnected, the guest ends, or a signal arrives.
async fn serve(
    report: &Stream,
    first: First,
    opened: &Arc<Opened>,
    socket: &Path,
    terminate: &mut tokio::signal::unix::Signal,
) -> io::Result<()> {
    let mut listener = listener::listen(socket)?;
    send_last(report, &KeeperEvent::Opened).await;
    let mut first = Some(first);
    let clients = async {
        loop {
            let (close, closed) = oneshot::channel::<()>();
            let closed = async { drop(closed.await) };
            let accepting =
                tokio::spawn(listener::accept(listener, opened.clone(), closed).in_current_span());
            if let Some(First { channel, incoming }) = first.take() {
                listener::serve(channel, incoming, opened.clone()).await;
            }
            let _ = opened.connected.subscribe().wait_for(|connected| *connected == 0).await;
            // From this point on, a new client finds no socket, and starts its own keeper after this keeper has exited.
            // A client that has already connected is still served.
            let _ = std::fs::remove_file(socket);
            drop(close);
            accepting.await??;
            if *opened.connected.borrow() == 0 {
                return Ok(());
            }
            listener = listener::listen(socket)?;
        }
    };
    tokio::select! {
        served = clients => served,
        _ = opened.guest.closed() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// Removes all resources of the bottle except the kept files. Returns messages about failures.
async fn close(backend: &dyn Backend, claim: &Claim) -> Vec<String> {
    let mut left = launch::remove_launch(backend, claim).await;
    let cleared = left.is_empty();
    let recorded = claim.update(|record| {
        record.keeper = None;
        if cleared {
            record.resources.retain(|resource| resource.kind == LAYERS);
        }
    });
    left.extend(recorded.err().map(|error| error.to_string()));
    left
}

impl Handler for Opened {
    fn connected(&self) -> &watch::Sender<usize> {
        &self.connected
    }

    fn keeper(&self) -> Keeper {
        Keeper::Opened(self.access)
    }

    async fn answer(self: Arc<Self>, request: Request, parsed: KeeperRequest) {
        match parsed {
            KeeperRequest::Open { access, .. } => {
                let event = if access <= self.access {
                    KeeperEvent::Opened
                } else {
                    let slug = self.claim.record().slug;
                    KeeperEvent::Refused(format!("another command uses the files of {slug}"))
                };
                send_last(&request.accept(), &event).await;
            }
            KeeperRequest::Guest(inner) => clients::connect(request, &inner, &self.guest).await,
            KeeperRequest::Pulled { at } => {
                let pulled = self.claim.update(|record| Fact::Pulled(at).write(record));
                send_last(&request.accept(), &clients::answer_to(Some(pulled), KeeperEvent::Done)).await;
            }
            // [`Keeper::refusal`] has already refused these requests.
            _ => {}
        }
    }
}
