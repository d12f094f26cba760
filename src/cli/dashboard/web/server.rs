//! Accepts connections, and bounds them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::site::Site;

/// The maximum number of connections. Further ones wait.
const MAX_CONNECTIONS: usize = 64;

/// How long a client may take for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// The maximum size of the head of a request, in bytes.
const BUFFER: usize = 32 << 10;

/// Pause after a failure to accept a connection, for example for lack of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves connections for ever.
pub(super) async fn accept(listener: TcpListener, site: Arc<Site>) -> Infallible {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { continue };
        match listener.accept().await {
            Ok((socket, _)) => drop(tokio::spawn(connection(socket, Arc::clone(&site), permit))),
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}

async fn connection(socket: TcpStream, site: Arc<Site>, _permit: OwnedSemaphorePermit) {
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
        tracing::debug!(%error, "a connection of a browser ended");
    }
}
