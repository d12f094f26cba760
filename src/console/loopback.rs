//! Runs HTTP servers on the loopback interface. Every user and every web page on this machine can connect to these
//! servers. The servers check who sends a request, and this module limits the connections.

use std::convert::Infallible;
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::CliError;

/// The maximum number of connections of a server. Further connections wait.
const MAX_CONNECTIONS: usize = 64;

/// The time limit for a client to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// The maximum size of the head of a request, in bytes.
const BUFFER: usize = 32 << 10;

/// The pause after a failure to accept a connection, for example for lack of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A server that answers requests.
pub(crate) trait Site: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// Answers a request.
    fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Listens on a port. Port 0 selects any free port.
///
/// # Errors
/// Returns an error if the port cannot be used.
pub(crate) async fn listen(port: u16) -> Result<TcpListener, CliError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        CliError::cannot(format_args!("listen on port {port} of 127.0.0.1"), error)
            .hint("omit `--port` to use any free port")
    })
}

/// Returns the address and port of a server, in the form that clients use.
///
/// # Errors
/// Returns an error if the system does not report the address.
pub(crate) fn authority(listener: &TcpListener) -> Result<String, CliError> {
    let address =
        listener.local_addr().map_err(|error| CliError::cannot("find out the server's address", error))?;
    Ok(address.to_string())
}

/// Accepts and serves connections without end.
pub(crate) async fn accept(listener: TcpListener, site: Arc<impl Site>) -> Infallible {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed, so this call does not fail.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { continue };
        match listener.accept().await {
            Ok((socket, _)) => drop(tokio::spawn(connection(socket, Arc::clone(&site), permit))),
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}

async fn connection(socket: TcpStream, site: Arc<impl Site>, _permit: OwnedSemaphorePermit) {
    let service = hyper::service::service_fn(move |request| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(site.respond(request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to a server on the loopback interface ended");
    }
}
