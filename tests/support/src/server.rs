//! An HTTP server that runs on its own thread, for synchronous and asynchronous tests.

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

/// The response of a handler. `None` closes the connection without a response.
pub type Answer = Option<Response<Body>>;
/// A function that responds to a request.
pub type Handler =
    Arc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// Starts a web site at this address of the machine. It responds to every request with an empty 200, until
/// the test process ends.
///
/// # Errors
/// Returns an error if the machine does not have this address.
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

/// A running server. Dropping the value closes its port and all connections.
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server on 127.0.0.1 whose requests are handled by `handler`. For `port` 0, the kernel chooses
    /// a free port. If `tls` is given, the server uses TLS.
    ///
    /// # Errors
    /// Returns an error if the port is in use, or the thread cannot be started.
    pub fn start(port: u16, tls: Option<Arc<ServerConfig>>, handler: Handler) -> Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, port).into(), tls, handler)
    }

    /// Like [`Server::start`], on another address of this machine.
    ///
    /// # Errors
    /// Returns the same errors as [`Server::start`], and an error if the machine does not have this address.
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

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If the handler panicked, its message was printed to standard error.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, handler: Handler) {
    // When the server stops, the set is dropped, which aborts all connections.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, handler) = (tls.clone(), Arc::clone(&handler));
        connections.spawn(connection(socket, tls, handler));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(socket: TcpStream, tls: Option<TlsAcceptor>, handler: Handler) {
    // Without this option, every small response would be delayed by 40 ms, because the kernel waits for an
    // acknowledgement.
    let _ = socket.set_nodelay(true);
    match tls {
        // If the client does not trust the certificate, it aborts the handshake.
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
    // An error here means that the client disconnected, or that the response was interrupted on purpose.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(io), service).await;
}

/// The error with which a handler closes its connection.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed on purpose")
    }
}

impl std::error::Error for Closed {}

/// Converts an async function that uses `state` to a [`Handler`].
pub fn handler<S, F, A>(state: Arc<S>, answer: F) -> Handler
where
    S: Send + Sync + 'static,
    F: Fn(Arc<S>, Request<Incoming>) -> A + Send + Sync + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    Arc::new(move |request| Box::pin(answer(Arc::clone(&state), request)))
}
