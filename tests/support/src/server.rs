//! An HTTP server on loopback with its own thread, for plain and async tests.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::body::Body;

/// A handler's response; `None` closes the connection without one.
pub type Answer = Option<Response<Body>>;
/// Answers one request.
pub type Handler =
    Arc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// A web site at this address of the machine that answers everything with an empty 200 until the test process ends.
///
/// # Errors
/// When this machine has no such address.
pub fn says_yes(address: IpAddr) -> Result<SocketAddr> {
    let listener =
        std::net::TcpListener::bind((address, 0)).with_context(|| format!("listen on {address}"))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let mut reader = BufReader::new(&socket);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let _ = (&socket).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    Ok(address)
}

/// A running server; dropping it closes its port and every connection.
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on 127.0.0.1 (`port` 0: any free one) and answers with `handler`, over TLS when `tls`
    /// is given.
    ///
    /// # Errors
    /// When the port is taken or the thread cannot start.
    pub fn start(port: u16, tls: Option<Arc<ServerConfig>>, handler: Handler) -> Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, port).into(), tls, handler)
    }

    /// The same on another address of this machine.
    ///
    /// # Errors
    /// As [`Server::start`]; also when this machine has no such address.
    pub fn start_on(address: SocketAddr, tls: Option<Arc<ServerConfig>>, handler: Handler) -> Result<Self> {
        let listener =
            std::net::TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name(format!("server-{}", address.port())).spawn(move || {
                runtime.block_on(async move {
                    let Ok(listener) = TcpListener::from_std(listener) else { return };
                    tokio::select! {
                        () = accept(listener, tls.map(TlsAcceptor::from), handler) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panicked handler has printed its message to stderr.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, handler: Handler) {
    // Connections are aborted with the set when the server stops.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, handler) = (tls.clone(), Arc::clone(&handler));
        connections.spawn(connection(socket, tls, handler));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(socket: TcpStream, tls: Option<TlsAcceptor>, handler: Handler) {
    // Without it every small answer waits 40 ms for an acknowledgement.
    let _ = socket.set_nodelay(true);
    match tls {
        // A client that does not trust the certificate aborts the handshake.
        Some(tls) => {
            if let Ok(stream) = tls.accept(socket).await {
                http(stream, handler).await;
            }
        }
        None => http(socket, handler).await,
    }
}

async fn http<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: IO, handler: Handler) {
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { answer.await.ok_or(Closed) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    // Errors here are disconnects of the client or deliberate interruptions.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(io), service).await;
}

/// The error by which a handler closes its connection.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed on purpose")
    }
}

impl std::error::Error for Closed {}

/// Makes a [`Handler`] of an async function over `state`.
pub fn handler<S, F, A>(state: Arc<S>, answer: F) -> Handler
where
    S: Send + Sync + 'static,
    F: Fn(Arc<S>, Request<Incoming>) -> A + Send + Sync + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    Arc::new(move |request| Box::pin(answer(Arc::clone(&state), request)))
}
