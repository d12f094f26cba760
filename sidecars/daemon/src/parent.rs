//! The bundle's requests, one after the other, until it stops the daemon or is gone.

use std::sync::Arc;

use bottle_channel::{Channel, Request, Side, Stream};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Daemon};
use bottle_contract::session::{Hello, Role};
use bottle_harden::MissingProtection;
use bottle_queue::Questions;
use tokio::net::UnixStream;

use crate::listener::ListenerConfig;
use crate::lockout::Lockout;
use crate::memory::Memory;
use crate::role::Confined;

/// A daemon's own part of what its parent asks.
pub trait Serve {
    /// Its name in health answers.
    const NAME: &'static str;
    /// As whom it greets.
    const ROLE: Role;
    /// Its part of the proxy.
    const PORTS: &'static [u16];

    /// Does what it is asked: requests that are not every daemon's. They come one after the other.
    ///
    /// # Errors
    /// The sentence that refuses it.
    fn answer(&self, asked: BundleRequest) -> impl Future<Output = Result<BundleEvent, String>>;

    /// Tells what happens here, until nobody listens.
    fn events(&self, listener: Stream) -> impl Future<Output = ()> + Send + 'static;

    /// What a user is asked.
    fn questions(&self) -> &Questions;

    /// What locks it.
    fn lockout(&self) -> &Arc<Lockout>;

    /// Hands over what it counted, until nobody listens. Not every daemon counts.
    fn usage(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        async move { keeper.reset("nothing is counted here").await }
    }

    /// Brings to its end what is under way, before the process ends. It has a moment for it.
    fn settle(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Whether its part of the proxy is open.
    fn up(&self) -> bool;

    /// The routes that it goes by, where it has any.
    fn revision(&self) -> Option<u64> {
        None
    }
}

/// Answers the parent until it says stop or goes away; then nobody can connect any more.
///
/// # Errors
/// Whoever is at the other end is no bundle, or does not speak this protocol.
pub async fn serve<S: Serve>(confined: Confined, proxy: &ListenerConfig, daemon: S) -> anyhow::Result<()> {
    let Confined { parent, memory, weaker } = confined;
    parent.set_nonblocking(true)?;
    let io = UnixStream::from_std(parent)?;
    let (channel, mut incoming, hello) = Channel::establish(io, Side::Accepted, Hello::of(S::ROLE)).await?;
    anyhow::ensure!(hello.role == Role::Bundle, "the parent is no bundle");
    while let Some(request) = incoming.next().await {
        match request.parse::<BundleRequest>() {
            Ok(BundleRequest::Stop) => {
                daemon.settle().await;
                let _ = request.accept().message(&BundleEvent::Stopped).await;
                channel.flush().await;
                break;
            }
            Ok(BundleRequest::Events) => {
                tokio::spawn(daemon.events(request.accept()));
            }
            Ok(BundleRequest::Question) => {
                let questions = daemon.questions().clone();
                tokio::spawn(async move { questions.serve(request.accept()).await });
            }
            Ok(BundleRequest::Usage) => {
                tokio::spawn(daemon.usage(request.accept()));
            }
            Ok(BundleRequest::LockOut) => {
                tokio::spawn(report_lock(Arc::clone(daemon.lockout()), request.accept()));
            }
            Ok(BundleRequest::Lock(why)) => {
                daemon.lockout().lock(why);
                answer(request, BundleEvent::Locked).await;
            }
            Ok(BundleRequest::Health) => answer(request, health(&daemon, &memory, &weaker)).await,
            Ok(asked) => {
                let event = daemon.answer(asked).await;
                answer(request, event.unwrap_or_else(|message| BundleEvent::Rejected { message })).await;
            }
            Err(error) => request.refuse(&error.to_string()).await,
        }
    }
    if let Err(error) = proxy.close(S::PORTS) {
        tracing::warn!(%error, "the proxy's sockets could not be removed");
    }
    Ok(())
}

/// Reports the lock when it is there, unless nobody waits for it any more.
async fn report_lock(lockout: Arc<Lockout>, mut parent: Stream) {
    let why = tokio::select! {
        why = lockout.locked() => why,
        _ = parent.next() => return,
    };
    if parent.message(&BundleEvent::LockedOut(why)).await.is_ok() {
        // A parent that is gone has taken the bottle's proxy with it.
        let _ = parent.end().await;
    }
}

async fn answer(request: Request, event: BundleEvent) {
    let stream = request.accept();
    if stream.message(&event).await.is_ok() {
        // The answer is whole with its only message; a parent that is gone ends the loop above.
        let _ = stream.end().await;
    }
}

fn health<S: Serve>(daemon: &S, memory: &Memory, weaker: &[MissingProtection]) -> BundleEvent {
    let daemon = Daemon {
        name: S::NAME.to_owned(),
        up: daemon.up(),
        revision: daemon.revision(),
        resident: memory.resident(),
        weaker: weaker.iter().map(|weaker| weaker.0.clone()).collect(),
    };
    BundleEvent::Health { daemons: vec![daemon] }
}
