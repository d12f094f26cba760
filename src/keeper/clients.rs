//! One client's connection, and each stream it opens.

use std::sync::{Arc, Mutex, PoisonError};

use bottle_channel::{Channel, Incoming, Request, Side, Stream, splice};
use bottle_contract::lock_out::LockOut;
use bottle_contract::session::guest::GuestRequest;
use bottle_contract::session::{Hello, Role};
use bottle_queue::Asker;
use jiff::Timestamp;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc, watch};

use super::notices::Notices;
use super::protocol::{Ended, KeeperEvent, KeeperRequest};

/// What connections share with the owner: they read it and send commands, nothing else.
pub(super) struct Shared {
    pub(super) guest: Channel,
    pub(super) notices: Arc<Notices>,
    /// Asks a user for the bottle, and takes their answers.
    pub(super) asker: Asker,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) attached: watch::Sender<Attached>,
    /// Connections open now.
    pub(super) connected: watch::Sender<usize>,
    pub(super) ended: watch::Sender<Option<Ended>>,
    /// The last client that offered to say what becomes of unsaved work.
    pub(super) offer: Mutex<Option<Stream>>,
}

/// What a connection asks of the owner.
#[derive(Debug)]
pub(super) enum Command {
    /// End the bottle.
    Stop {
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
    /// Let it live without its first client.
    Detach,
    /// Note that a service at the proxy ended, or without a name all of them.
    ServiceDown(Option<String>),
    /// Note that the bottle is locked.
    LockedOut(LockOut),
    /// Make a snapshot.
    Commit {
        /// Is told how it goes.
        told: mpsc::Sender<KeeperEvent>,
    },
    /// Remove the snapshot.
    RemoveSnapshot {
        /// Is told how it went.
        told: mpsc::Sender<KeeperEvent>,
    },
    /// Note that work was pulled.
    Pulled {
        /// Up to when.
        at: Timestamp,
        /// Is told how it went.
        told: mpsc::Sender<KeeperEvent>,
    },
    /// The first client's connection is gone.
    FirstGone,
}

/// Who watches the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attached {
    /// Streams open now.
    pub(super) now: usize,
    /// Whether there ever was one.
    pub(super) ever: bool,
}

/// Accepts clients until the listener is dropped with the keeper.
pub(super) async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let own = rustix::process::getuid().as_raw();
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Out of descriptors, most likely: pause instead of spinning.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        if socket.peer_cred().is_ok_and(|peer| peer.uid() == own) {
            tokio::spawn(greet(socket, shared.clone()));
        }
    }
}

async fn greet(socket: UnixStream, shared: Arc<Shared>) {
    match Channel::establish(socket, Side::Accepted, Hello::of(Role::Keeper)).await {
        Ok((channel, incoming, _)) => serve(channel, incoming, shared).await,
        Err(error) => tracing::warn!("a client did not greet: {error}"),
    }
}

/// Serves one connection until it is gone.
pub(super) async fn serve(channel: Channel, mut incoming: Incoming, shared: Arc<Shared>) {
    shared.connected.send_modify(|connected| *connected += 1);
    while let Some(request) = incoming.next().await {
        tokio::spawn(answer(request, shared.clone()));
    }
    drop(channel);
    shared.connected.send_modify(|connected| *connected -= 1);
}

async fn answer(request: Request, shared: Arc<Shared>) {
    match request.parse() {
        Ok(KeeperRequest::Guest(inner)) => pass(request, &inner, &shared).await,
        Ok(KeeperRequest::Notices) => tell(request.accept(), &shared).await,
        Ok(KeeperRequest::Stop { grace_ms }) => {
            let stream = request.accept();
            let _ = shared.commands.send(Command::Stop { grace_ms }).await;
            send_end(&stream, &shared).await;
        }
        Ok(KeeperRequest::Detach) => {
            let stream = request.accept();
            let _ = shared.commands.send(Command::Detach).await;
            let _ = stream.message(&KeeperEvent::Detached).await;
            let _ = stream.end().await;
        }
        Ok(KeeperRequest::Commit) => ask(request, &shared, |told| Command::Commit { told }).await,
        Ok(KeeperRequest::RemoveSnapshot) => {
            ask(request, &shared, |told| Command::RemoveSnapshot { told }).await;
        }
        Ok(KeeperRequest::Pulled { at }) => ask(request, &shared, |told| Command::Pulled { at, told }).await,
        Ok(KeeperRequest::Answer(response)) => {
            let stream = request.accept();
            let event = match shared.asker.answer(*response).await {
                Ok(brought) => KeeperEvent::Answered(brought),
                Err(why) => KeeperEvent::Refused(why),
            };
            let _ = stream.message(&event).await;
            let _ = stream.end().await;
        }
        Ok(KeeperRequest::Ask(question)) => {
            let asker = shared.asker.clone();
            // Nobody goes on by the answer but the proxy.
            tokio::spawn(async move { asker.ask(*question).await });
            let stream = request.accept();
            let _ = stream.message(&KeeperEvent::Done).await;
            let _ = stream.end().await;
        }
        Ok(KeeperRequest::Offer) => {
            *shared.offer.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.accept());
        }
        Ok(KeeperRequest::Launch(_) | KeeperRequest::Adopt { .. }) => {
            request.refuse("this keeper has its bottle").await;
        }
        Err(error) => request.refuse(&format!("not a request: {error}")).await,
    }
}

/// Has the owner do something, and passes on what it says.
async fn ask(request: Request, shared: &Shared, command: impl FnOnce(mpsc::Sender<KeeperEvent>) -> Command) {
    let stream = request.accept();
    let (told, mut events) = mpsc::channel(16);
    let _ = shared.commands.send(command(told)).await;
    let mut last = None;
    while let Some(event) = events.recv().await {
        if stream.message(&event).await.is_err() {
            // What was asked for goes on; nobody hears of it any more.
            return;
        }
        last = Some(event);
    }
    if matches!(last, None | Some(KeeperEvent::Copied(_))) {
        let _ = stream.message(&KeeperEvent::Refused("the bottle is ending".to_owned())).await;
    }
    let _ = stream.end().await;
}

/// Passes a request through to the guest, unless it is the keeper's own to make.
async fn pass(request: Request, inner: &GuestRequest, shared: &Shared) {
    match inner {
        GuestRequest::Provision(_) | GuestRequest::StartAgent(_) | GuestRequest::Stop(_) => {
            request.refuse("that is for the keeper alone to ask").await;
        }
        GuestRequest::Attach(_) => {
            shared.attached.send_modify(|a| *a = Attached { now: a.now + 1, ever: true });
            connect(request, inner, shared).await;
            shared.attached.send_modify(|a| a.now -= 1);
        }
        _ => connect(request, inner, shared).await,
    }
}

async fn connect(request: Request, inner: &GuestRequest, shared: &Shared) {
    match shared.guest.open(inner).await {
        Ok(stream) => splice(request.accept(), stream).await,
        Err(error) => request.refuse(&format!("the bottle does not answer: {error}")).await,
    }
}

/// Notices as they come, the bottle's end last.
async fn tell(stream: Stream, shared: &Shared) {
    let (kept, mut coming) = shared.notices.listen();
    let mut ended = shared.ended.subscribe();
    for notice in kept {
        if stream.message(&KeeperEvent::Notice(notice)).await.is_err() {
            return;
        }
    }
    loop {
        let notice = tokio::select! {
            biased;
            notice = coming.recv() => notice,
            _ = ended.wait_for(Option::is_some) => break,
        };
        let sent = match notice {
            Ok(notice) => stream.message(&KeeperEvent::Notice(notice)).await,
            // A client this slow loses the middle; the log has all of it.
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => break,
        };
        if sent.is_err() {
            return;
        }
    }
    send_end(&stream, shared).await;
}

async fn send_end(stream: &Stream, shared: &Shared) {
    let mut ended = shared.ended.subscribe();
    let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
    if let Some(ended) = ended {
        let _ = stream.message(&KeeperEvent::Ended(ended)).await;
        let _ = stream.end().await;
    }
}
