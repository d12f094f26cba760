//! Accepts the connections of clients on a keeper's socket, and passes their requests to a handler.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bottle_channel::{Channel, Incoming, Request, Side};
use bottle_host::files;
use bottle_protocol::session::{Hello, Role};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tracing::Instrument as _;

use super::permission::Keeper;
use super::protocol::KeeperRequest;

/// Answers the requests of clients. The keeper of a running bottle and the keeper that opens kept files implement this
/// trait.
pub(super) trait Handler: Send + Sync + 'static {
    /// The watch channel with the number of open connections.
    fn connected(&self) -> &watch::Sender<usize>;

    /// Returns what this keeper serves.
    fn keeper(&self) -> Keeper;

    /// Answers one parsed request that the keeper does not refuse ([`Keeper::refusal`]).
    fn answer(self: Arc<Self>, request: Request, parsed: KeeperRequest) -> impl Future<Output = ()> + Send;
}

/// Binds the keeper's socket, to which only the current user can connect. Replaces a socket that a killed keeper left
/// behind.
///
/// # Errors
/// When the socket cannot be bound, or when the file at its path cannot be removed. The error contains the path.
pub(super) fn listen(socket: &Path) -> io::Result<UnixListener> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", socket.display()));
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    let listener = files::bind_private(socket).map_err(at)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Accepts clients until `closed` is ready. At this time, also accepts the clients that are waiting. When this function
/// returns, [`Handler::connected`] counts all accepted clients that are still connected.
///
/// # Errors
/// When the waiting clients cannot be accepted.
pub(super) async fn accept(
    listener: UnixListener,
    handler: Arc<impl Handler>,
    closed: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let mut closed = std::pin::pin!(closed);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut closed => break,
        };
        match accepted {
            Ok((socket, _)) => admit(socket, &handler),
            // The likely cause is a lack of file descriptors. The pause prevents a busy loop.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
    // The tokio runtime may not know yet that a client is waiting, so the loop below calls `accept` directly.
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(true)?;
                admit(UnixStream::from_std(socket)?, &handler);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Serves a client in a separate task. Ignores a client of another user.
fn admit(socket: UnixStream, handler: &Arc<impl Handler>) {
    let own = rustix::process::getuid().as_raw();
    if socket.peer_cred().is_ok_and(|peer| peer.uid() == own) {
        tokio::spawn(greet(socket, Counted::new(handler.clone())).in_current_span());
    }
}

async fn greet(socket: UnixStream, handler: Counted<impl Handler>) {
    match Channel::establish(socket, Side::Accepted, Hello::of(Role::Keeper)).await {
        Ok((channel, incoming, _)) => answer_all(channel, incoming, &handler.0).await,
        Err(error) => tracing::warn!("a client did not complete the handshake: {error}"),
    }
}

/// Serves one connection until it closes.
pub(super) async fn serve(channel: Channel, incoming: Incoming, handler: Arc<impl Handler>) {
    let handler = Counted::new(handler);
    answer_all(channel, incoming, &handler.0).await;
}

async fn answer_all(channel: Channel, mut incoming: Incoming, handler: &Arc<impl Handler>) {
    while let Some(request) = incoming.next().await {
        tokio::spawn(answer(request, handler.clone()).in_current_span());
    }
    drop(channel);
}

/// Parses a request, and either passes it to the handler or refuses it.
async fn answer(request: Request, handler: Arc<impl Handler>) {
    let parsed: KeeperRequest = match request.parse() {
        Ok(parsed) => parsed,
        Err(error) => return request.refuse(&format!("cannot parse the request: {error}")).await,
    };
    match handler.keeper().refusal(&parsed) {
        Some(why) => request.refuse(why).await,
        None => handler.answer(request, parsed).await,
    }
}

/// A guard that counts a connection in [`Handler::connected`] from its accept to its end.
struct Counted<S: Handler>(Arc<S>);

impl<S: Handler> Counted<S> {
    fn new(handler: Arc<S>) -> Self {
        handler.connected().send_modify(|connected| *connected += 1);
        Self(handler)
    }
}

impl<S: Handler> Drop for Counted<S> {
    fn drop(&mut self) {
        self.0.connected().send_modify(|connected| *connected -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Idle(watch::Sender<usize>);

    impl Handler for Idle {
        fn connected(&self) -> &watch::Sender<usize> {
            &self.0
        }

        fn keeper(&self) -> Keeper {
            Keeper::Running
        }

        async fn answer(self: Arc<Self>, _: Request, _: KeeperRequest) {}
    }

    #[tokio::test]
    async fn an_error_has_the_path_of_the_socket() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        std::fs::create_dir(&socket).expect("a directory at its path");
        let error = listen(&socket).expect_err("a directory is not replaced").to_string();
        assert!(error.starts_with(&format!("{}: ", socket.display())), "{error}");
    }

    #[tokio::test]
    async fn clients_that_wait_when_the_socket_closes_are_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let listener = listen(&socket).expect("bound");
        let connect = || std::os::unix::net::UnixStream::connect(&socket).expect("connected");
        let _clients = [connect(), connect()];
        let handler = Arc::new(Idle(watch::Sender::default()));
        accept(listener, handler.clone(), std::future::ready(())).await.expect("accepted");
        assert_eq!(*handler.connected().borrow(), 2);
    }
}
