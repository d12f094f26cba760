//! Serves client connections to a keeper, and each stream that a client opens.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bottle_channel::{Channel, Incoming, Request, Side, Stream, splice};
use bottle_contract::queue::{Answer, Question, Scope, Status};
use bottle_contract::session::guest::{Attach, Failure, FailureKind, GuestEvent, GuestRequest};
use bottle_contract::session::{Hello, Role};
use bottle_host::budget::Policy;
use bottle_host::files;
use bottle_instance::record::ApprovedCommand;
use bottle_instance::snapshots::{CommitOptions, Removal};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tracing::Instrument as _;

use super::activity;
use super::budget::order::Order;
use super::protocol::{BudgetOrder, KeeperEvent, KeeperRequest, ParentChange};
use super::shared::{Attached, Command, Fact, Shared, send_last};
use super::watcher;

/// How long pid 1 of a bottle that is not paused takes to answer, at most. After that, the backend is queried whether
/// the bottle is paused.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How long a client waits, at most, until its order for requests to models takes effect.
const ORDER_APPLIED_WITHIN: Duration = Duration::from_secs(10);

/// Why a request is refused that came too late.
const ENDING: &str = "the bottle is ending";

/// Answers the requests of clients. The keeper of a running bottle does so, and the keeper that opens preserved files.
pub(super) trait Service: Send + Sync + 'static {
    /// The number of open connections.
    fn connected(&self) -> &watch::Sender<usize>;

    /// Answers one request.
    fn answer(self: Arc<Self>, request: Request) -> impl Future<Output = ()> + Send;
}

impl Service for Shared {
    fn connected(&self) -> &watch::Sender<usize> {
        &self.connected
    }

    fn answer(self: Arc<Self>, request: Request) -> impl Future<Output = ()> + Send {
        answer(request, self)
    }
}

/// Binds the keeper's socket, to which only this user can connect. Replaces one that a killed keeper left.
///
/// # Errors
/// When the socket cannot be bound.
pub(super) fn listen(socket: &Path) -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(socket);
    let listener = files::bind_private(socket)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Accepts clients until `closed`, and those that wait then. When this function returns, [`Service::connected`] counts
/// all of them.
///
/// # Errors
/// When the clients that wait cannot be accepted.
pub(super) async fn accept(
    listener: UnixListener,
    service: Arc<impl Service>,
    closed: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let mut closed = std::pin::pin!(closed);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut closed => break,
        };
        match accepted {
            Ok((socket, _)) => admit(socket, &service),
            // The likely cause is a lack of file descriptors. The pause prevents a busy loop.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
    // The runtime may not know yet that a client waits, so the kernel is asked.
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(true)?;
                admit(UnixStream::from_std(socket)?, &service);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Serves a client of this user in a task of its own.
fn admit(socket: UnixStream, service: &Arc<impl Service>) {
    let own = rustix::process::getuid().as_raw();
    if socket.peer_cred().is_ok_and(|peer| peer.uid() == own) {
        tokio::spawn(greet(socket, Counted::new(service.clone())).in_current_span());
    }
}

async fn greet(socket: UnixStream, service: Counted<impl Service>) {
    match Channel::establish(socket, Side::Accepted, Hello::of(Role::Keeper)).await {
        Ok((channel, incoming, _)) => answer_all(channel, incoming, &service.0).await,
        Err(error) => tracing::warn!("a client did not complete the handshake: {error}"),
    }
}

/// Serves one connection until it closes.
pub(super) async fn serve(channel: Channel, incoming: Incoming, service: Arc<impl Service>) {
    let service = Counted::new(service);
    answer_all(channel, incoming, &service.0).await;
}

async fn answer_all(channel: Channel, mut incoming: Incoming, service: &Arc<impl Service>) {
    while let Some(request) = incoming.next().await {
        tokio::spawn(service.clone().answer(request).in_current_span());
    }
    drop(channel);
}

/// A connection in [`Service::connected`], from its accept to its end.
struct Counted<S: Service>(Arc<S>);

impl<S: Service> Counted<S> {
    fn new(service: Arc<S>) -> Self {
        service.connected().send_modify(|connected| *connected += 1);
        Self(service)
    }
}

impl<S: Service> Drop for Counted<S> {
    fn drop(&mut self) {
        self.0.connected().send_modify(|connected| *connected -= 1);
    }
}

async fn answer(request: Request, shared: Arc<Shared>) {
    match request.parse() {
        Ok(KeeperRequest::Guest(inner)) => forward(request, &inner, &shared).await,
        Ok(KeeperRequest::Watch) => watcher::serve(request, &shared).await,
        Ok(KeeperRequest::Notices) => send_notices(request.accept(), &shared).await,
        Ok(KeeperRequest::Stop { grace_ms }) => {
            let stream = request.accept();
            let (events, mut notices) = mpsc::channel(1);
            let _ = shared.commands.send(Command::Stop { grace_ms, events }).await;
            // The owner drops the sender at once, except when the bottle is already being torn down.
            if let Some(notice) = notices.recv().await {
                let _ = stream.message(&notice).await;
            }
            send_end(&stream, &shared).await;
        }
        Ok(KeeperRequest::FindDelay) => {
            run_command(request, &shared, |events| Command::FindDelay { events }).await
        }
        Ok(KeeperRequest::Activity) => {
            let stream = request.accept();
            let report = activity::report(&shared).await;
            send_last(&stream, &KeeperEvent::Activity(report)).await;
        }
        Ok(KeeperRequest::Detach) => {
            let stream = request.accept();
            // A command after this answer finds the bottle detached.
            send_last(&stream, &answer_to(shared.record(Fact::Detached).await, KeeperEvent::Detached)).await;
        }
        Ok(KeeperRequest::Commit) => {
            let options = CommitOptions::default();
            run_command(request, &shared, |events| Command::Commit { options, events }).await;
        }
        Ok(KeeperRequest::CommitAs(options)) => {
            run_command(request, &shared, |events| Command::Commit { options, events }).await;
        }
        Ok(KeeperRequest::RemoveSnapshot) => {
            let which = Removal::All;
            run_command(request, &shared, |events| Command::RemoveSnapshot { which, events }).await;
        }
        Ok(KeeperRequest::RemoveOneSnapshot { name }) => {
            let which = Removal::One(name);
            run_command(request, &shared, |events| Command::RemoveSnapshot { which, events }).await;
        }
        Ok(KeeperRequest::Pulled { at }) => {
            let stream = request.accept();
            send_last(&stream, &answer_to(shared.record(Fact::Pulled(at)).await, KeeperEvent::Done)).await;
        }
        Ok(KeeperRequest::Answer(response)) => {
            let stream = request.accept();
            let event = match shared.asker.answer(*response).await {
                Ok(results) => KeeperEvent::Answered(results),
                Err(error) => KeeperEvent::Refused(format!("{:#}", anyhow::Error::new(error))),
            };
            send_last(&stream, &event).await;
        }
        Ok(KeeperRequest::ChangeRoutes(change)) => {
            let stream = request.accept();
            let event = match shared.decisions.change_routes(*change).await {
                Ok((mut report, of_parent)) => {
                    if let Some(change) = of_parent {
                        report.not_followed = shared.children.change(change).await;
                    }
                    KeeperEvent::RoutesChanged(Box::new(report))
                }
                Err(error) => KeeperEvent::Refused(format!("{error:#}")),
            };
            send_last(&stream, &event).await;
        }
        Ok(KeeperRequest::Ask(question)) => {
            let event = match shared.asker.propose(*question).await {
                Ok(answer) => {
                    // The return value is not needed: the proxy applies the answer.
                    tokio::spawn(answer);
                    KeeperEvent::Done
                }
                Err(why) => {
                    KeeperEvent::Refused(format!("cannot add the proposal to the supervise queue: {why}"))
                }
            };
            send_last(&request.accept(), &event).await;
        }
        Ok(KeeperRequest::Permit { question, approves }) => {
            let stream = request.accept();
            tokio::select! {
                answer = shared.permit(*question, approves) => {
                    send_last(&stream, &KeeperEvent::Decision(answer)).await;
                }
                () = stream.closed() => {}
            }
        }
        Ok(KeeperRequest::Budget { order, by }) => {
            let children = shared.children.change(ParentChange::Budget { order, by: by.clone() });
            let own = shared.order_budget(order, &by);
            let event = match tokio::join!(children, own).0.as_slice() {
                [] => KeeperEvent::Done,
                failed => KeeperEvent::Refused(format!("it was carried out, but {}", failed.join("; "))),
            };
            send_last(&request.accept(), &event).await;
        }
        Ok(KeeperRequest::OfParent(change)) => {
            let stream = request.accept();
            let event = match shared.follow_parent(*change).await {
                Ok(()) => KeeperEvent::Done,
                Err(error) => KeeperEvent::Refused(format!("{error:#}")),
            };
            send_last(&stream, &event).await;
        }
        Ok(KeeperRequest::Offer) => {
            *shared.offer.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.accept());
        }
        Ok(KeeperRequest::Launch(_) | KeeperRequest::Adopt { .. } | KeeperRequest::Open { .. }) => {
            request.refuse("this keeper has a bottle already").await;
        }
        Err(error) => request.refuse(&format!("cannot parse the request: {error}")).await,
    }
}

/// The answer to a client whose request was to be recorded: `done`, or why it was not recorded.
fn answer_to(recorded: Option<io::Result<()>>, done: KeeperEvent) -> KeeperEvent {
    match recorded {
        Some(Ok(())) => done,
        Some(Err(error)) => KeeperEvent::Refused(format!("cannot write the bottle's record: {error}")),
        None => KeeperEvent::Refused(ENDING.to_owned()),
    }
}

/// Sends a client's command to the task that owns the bottle, and forwards that task's events to the client.
async fn run_command(
    request: Request,
    shared: &Shared,
    command: impl FnOnce(mpsc::Sender<KeeperEvent>) -> Command,
) {
    let stream = request.accept();
    let (sender, mut events) = mpsc::channel(16);
    let _ = shared.commands.send(command(sender)).await;
    let mut last = None;
    while let Some(event) = events.recv().await {
        if stream.message(&event).await.is_err() {
            // The command continues without its client.
            return;
        }
        last = Some(event);
    }
    if matches!(last, None | Some(KeeperEvent::Copied(_))) {
        let _ = stream.message(&KeeperEvent::Refused(ENDING.to_owned())).await;
    }
    let _ = stream.end().await;
}

/// Forwards a request to the guest. Refuses requests that only the keeper may send.
async fn forward(request: Request, inner: &GuestRequest, shared: &Shared) {
    match inner {
        GuestRequest::Provision(_)
        | GuestRequest::StartAgent(_)
        | GuestRequest::Pause
        | GuestRequest::Continue
        | GuestRequest::Stop(_)
        | GuestRequest::EndProcesses { .. } => {
            return request.refuse("only the keeper may send this request").await;
        }
        _ => {}
    }
    let guest = shared.guest().await;
    if let Some(hint) = shared.pause(&guest).await {
        let message = format!("the bottle is paused; {hint}");
        let failure = GuestEvent::Failed(Failure { kind: FailureKind::BadState, message });
        let stream = request.accept();
        let _ = stream.message(&failure).await;
        let _ = stream.end().await;
        return;
    }
    if let GuestRequest::Attach(Attach { process: None, .. }) = inner {
        shared.attached.send_modify(|a| *a = Attached { now: a.now + 1, ever: true });
        connect(request, inner, &guest).await;
        shared.attached.send_modify(|a| a.now -= 1);
    } else {
        connect(request, inner, &guest).await;
    }
}

impl Shared {
    /// Asks the user to approve a command. An approval for the run is recorded before the answer is sent.
    async fn permit(&self, question: Question, approves: Vec<ApprovedCommand>) -> Answer {
        let answer = self.asker.ask(question).await;
        if let Answer::Decided(response) = &answer
            && response.status == Status::Approved
            && response.scope != Scope::Once
        {
            let _ = self.record(Fact::ApprovedCommands(approves)).await;
        }
        answer
    }

    /// Applies to this bottle what happened to the one that started it.
    async fn follow_parent(&self, change: ParentChange) -> anyhow::Result<()> {
        match change {
            ParentChange::Routes { edit, before, after, by } => {
                self.decisions.follow(&before, &after, edit, &by).await
            }
            ParentChange::Budget { order, by } => {
                self.order_budget(order, &by).await;
                Ok(())
            }
            ParentChange::Locked(why) => self.decisions.lock(why).await,
        }
    }

    /// Records and applies an order of the user.
    async fn order_budget(&self, order: BudgetOrder, by: &str) {
        self.decisions.ordered(by, order).await;
        self.apply_budget_order(order).await;
    }

    /// Applies an order of the user. Freezing and killing end the bottle later.
    async fn apply_budget_order(&self, order: BudgetOrder) {
        let why = || "the user ordered it with `bottle budget stop`".to_owned();
        let policy = match order {
            BudgetOrder::Continue => None,
            BudgetOrder::Stop(policy @ (Policy::Pause | Policy::Cutoff)) => Some(policy),
            BudgetOrder::Stop(policy @ (Policy::Freeze | Policy::Kill)) => {
                let _ = self.commands.send(Command::Enforce { policy, why: why() }).await;
                return;
            }
        };
        // A keeper that adopts the bottle applies what is recorded.
        let _ = self.record(Fact::BudgetOrder(policy)).await;
        let order = Order::recorded(policy);
        self.order.send_replace(order);
        let mut applied = self.applied.subscribe();
        // If the sidecars do not answer, all traffic of the bottle is blocked.
        let _ =
            tokio::time::timeout(ORDER_APPLIED_WITHIN, applied.wait_for(|applied| *applied == order)).await;
    }

    /// The channel to the guest. Waits while the keeper connects again.
    async fn guest(&self) -> Channel {
        let mut guest = self.guest.subscribe();
        // The sender exists as long as `self`, so the wait ends with a channel.
        let connected = guest.wait_for(Option::is_some).await.ok().and_then(|guest| guest.clone());
        match connected {
            Some(guest) => guest,
            None => std::future::pending().await,
        }
    }

    /// If pid 1 does not answer because something else paused the bottle, returns how the user continues it.
    async fn pause(&self, guest: &Channel) -> Option<String> {
        let answers = async {
            let mut stream = guest.open(&GuestRequest::Status).await.ok()?;
            stream.next().await
        };
        if tokio::time::timeout(ANSWERS_WITHIN, answers).await.is_ok() {
            return None;
        }
        let (answer, hint) = oneshot::channel();
        let _ = self.commands.send(Command::FindPause { answer }).await;
        hint.await.ok().flatten()
    }
}

/// Forwards a request to the guest.
pub(super) async fn connect(request: Request, inner: &GuestRequest, guest: &Channel) {
    match guest.open(inner).await {
        Ok(stream) => splice(request.accept(), stream).await,
        Err(error) => request.refuse(&format!("cannot reach the bottle's guest: {error}")).await,
    }
}

/// Sends buffered and new notices to a client, then the event that the bottle ended.
async fn send_notices(stream: Stream, shared: &Shared) {
    let (buffered, mut receiver) = shared.notices.subscribe();
    let mut ended = shared.ended.subscribe();
    for notice in buffered {
        if stream.message(&KeeperEvent::Notice(notice)).await.is_err() {
            return;
        }
    }
    loop {
        let notice = tokio::select! {
            biased;
            notice = receiver.recv() => notice,
            _ = ended.wait_for(Option::is_some) => break,
        };
        let sent = match notice {
            Ok(notice) => stream.message(&KeeperEvent::Notice(notice)).await,
            // A slow client misses the oldest notices.
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => break,
        };
        if sent.is_err() {
            return;
        }
    }
    send_end(&stream, shared).await;
}

/// Waits until the bottle has ended, and sends how.
async fn send_end(stream: &Stream, shared: &Shared) {
    let mut ended = shared.ended.subscribe();
    let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
    if let Some(ended) = ended {
        send_last(stream, &KeeperEvent::Ended(ended)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Idle(watch::Sender<usize>);

    impl Service for Idle {
        fn connected(&self) -> &watch::Sender<usize> {
            &self.0
        }

        async fn answer(self: Arc<Self>, _: Request) {}
    }

    /// A full disk must not end the bottle.
    #[test]
    fn an_answer_says_whether_the_request_is_recorded() {
        let failed = io::Error::from(io::ErrorKind::StorageFull);
        let refused = |why: &str| KeeperEvent::Refused(why.to_owned());
        for (recorded, answer) in [
            (Some(Ok(())), KeeperEvent::Detached),
            (Some(Err(failed)), refused("cannot write the bottle's record: no storage space")),
            (None, refused(ENDING)),
        ] {
            assert_eq!(answer_to(recorded, KeeperEvent::Detached), answer);
        }
    }

    #[tokio::test]
    async fn clients_that_wait_when_the_socket_closes_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let listener = listen(&socket).expect("bound");
        let connect = || std::os::unix::net::UnixStream::connect(&socket).expect("connected");
        let _clients = [connect(), connect()];
        let service = Arc::new(Idle(watch::Sender::default()));
        accept(listener, service.clone(), std::future::ready(())).await.expect("accepted");
        assert_eq!(*service.connected().borrow(), 2);
    }
}
