//! Serves the bundle's requests one after another, until the bundle stops the daemon or the bundle exits.

use std::sync::Arc;

use bottle_channel::{Channel, Request, Side, Stream};
use bottle_harden::MissingProtection;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Daemon};
use bottle_protocol::session::{Hello, Role};
use bottle_queue::Questions;
use tokio::net::UnixStream;

use crate::listener::ListenerConfig;
use crate::lockout::Lockout;
use crate::memory::Memory;
use crate::role::Confined;

/// Serves the requests of the bundle that are specific to one kind of daemon. Each kind of daemon implements this
/// trait.
pub trait Serve {
    /// The daemon's name in health reports.
    const NAME: &'static str;
    /// The daemon's role in the handshake.
    const ROLE: Role;
    /// The daemon's listener ports.
    const PORTS: &'static [u16];

    /// Handles a request that only this kind of daemon supports. Requests arrive one at a time.
    ///
    /// # Errors
    /// Fails if the request is rejected. The bundle receives the error with all its causes.
    fn answer(&self, request: BundleRequest) -> impl Future<Output = anyhow::Result<BundleEvent>>;

    /// Sends events until the subscriber disconnects. By default, the daemon has no events.
    fn events(&self, mut subscriber: Stream) -> impl Future<Output = ()> + Send + 'static {
        async move { while subscriber.next().await.is_some() {} }
    }

    /// Returns the daemon's questions to the user.
    fn questions(&self) -> &Questions;

    /// Returns the daemon's lock.
    fn lockout(&self) -> &Arc<Lockout>;

    /// Sends token usage to the keeper until the keeper disconnects. By default, the daemon rejects the request,
    /// because only the egress daemon counts token usage.
    fn usage(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        async move { keeper.reset("this daemon counts no usage").await }
    }

    /// Requests leases on budgets from the keeper until the keeper disconnects. By default, the daemon rejects the
    /// request, because only the egress daemon sends requests to models.
    fn leases(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        async move { keeper.reset("this daemon needs no leases").await }
    }

    /// Sends the lines of the access log to the keeper until the keeper disconnects. By default, the daemon rejects the
    /// request, because only the egress daemon has an access log.
    fn log(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        async move { keeper.reset("this daemon sends no log").await }
    }

    /// Sends one tool call of the agent to a keeper, and receives the keeper's answer. By default, the daemon rejects
    /// the request, because only the supervise daemon serves tools.
    fn tool_call(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        async move { keeper.reset("this daemon serves no tools").await }
    }

    /// Finishes pending work before the process exits. An implementation must return within a short time.
    fn drain(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Returns whether the daemon's listeners are open.
    fn up(&self) -> bool;

    /// Returns the revision of the daemon's routes. Returns `None` if the daemon has no routes.
    fn revision(&self) -> Option<u64> {
        None
    }

    /// Returns the number of requests to models that are in progress. A request is in progress until its response ends.
    /// Returns `None` if the daemon sends no requests to models.
    fn model_requests(&self) -> Option<u64> {
        None
    }
}

/// Serves the parent process's requests until the parent sends `Stop` or disconnects. Then removes the listener
/// sockets.
///
/// # Errors
/// Fails if the handshake with the parent process fails, or if the parent process is not a bundle.
pub async fn serve<S: Serve>(confined: Confined, proxy: &ListenerConfig, daemon: S) -> anyhow::Result<()> {
    let Confined { parent, memory, weaker } = confined;
    parent.set_nonblocking(true)?;
    let io = UnixStream::from_std(parent)?;
    let (channel, mut incoming, hello) = Channel::establish(io, Side::Accepted, Hello::of(S::ROLE)).await?;
    anyhow::ensure!(hello.role == Role::Bundle, "the parent is not a bundle");
    while let Some(request) = incoming.next().await {
        match request.parse::<BundleRequest>() {
            Ok(BundleRequest::Stop) => {
                daemon.drain().await;
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
            Ok(BundleRequest::Leases) => {
                tokio::spawn(daemon.leases(request.accept()));
            }
            Ok(BundleRequest::Log) => {
                tokio::spawn(daemon.log(request.accept()));
            }
            Ok(BundleRequest::ToolCall) => {
                tokio::spawn(daemon.tool_call(request.accept()));
            }
            Ok(BundleRequest::Hits) => {
                tokio::spawn(Arc::clone(daemon.lockout()).report(request.accept()));
            }
            Ok(BundleRequest::Lock(why)) => {
                daemon.lockout().lock(why);
                answer(request, BundleEvent::Locked).await;
            }
            Ok(BundleRequest::Health) => answer(request, health(&daemon, &memory, &weaker)).await,
            Ok(specific) => {
                let rejected = |error| BundleEvent::Rejected { message: format!("{error:#}") };
                let event = daemon.answer(specific).await.unwrap_or_else(rejected);
                answer(request, event).await;
            }
            Err(error) => request.refuse(&error.to_string()).await,
        }
    }
    if let Err(error) = proxy.close(S::PORTS) {
        tracing::warn!(%error, "cannot remove the listener sockets");
    }
    Ok(())
}

async fn answer(request: Request, event: BundleEvent) {
    let stream = request.accept();
    if stream.message(&event).await.is_ok() {
        // The response is one message, so the stream ends here. An error is ignored. If the parent has exited, the loop
        // in `serve` ends.
        let _ = stream.end().await;
    }
}

fn health<S: Serve>(daemon: &S, memory: &Memory, weaker: &[MissingProtection]) -> BundleEvent {
    let daemon = Daemon {
        name: S::NAME.to_owned(),
        up: daemon.up(),
        revision: daemon.revision(),
        resident: memory.resident(),
        model_requests: daemon.model_requests(),
        weaker: weaker.iter().map(|weaker| weaker.0.clone()).collect(),
    };
    BundleEvent::Health { daemons: vec![daemon] }
}
