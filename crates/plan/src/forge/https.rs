//! Calls a forge's API over verified TLS, with a deadline and a limit on the response size.

use std::error::Error;
use std::time::Duration;

use bottle_egress::host_connector::{self, HostConnectorError};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use url::Url;

/// The time limit of one call, from connecting to the end of the response. A call that takes longer is an error.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The size limit of a response in bytes. A longer response is an error. A page of a hundred keys is shorter.
const ANSWER_MAX: usize = 1 << 20;

/// The response to a call.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why a call did not receive a response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The URL contains no host.
    #[error("its URL has no host")]
    NoHost,
    /// The connection failed, or the certificate is not trusted.
    #[error(transparent)]
    Connect(#[from] HostConnectorError),
    /// The HTTP handshake on the connection failed.
    #[error(transparent)]
    Handshake(hyper::Error),
    /// The response did not arrive in time.
    #[error("it did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Late {
        /// Whether the request was sent, or may have been sent.
        sent: bool,
    },
    /// The connection was lost after the request was sent.
    #[error("its response was interrupted")]
    Interrupted(#[source] Option<Box<dyn Error + Send + Sync>>),
}

impl CallError {
    /// Whether the request was sent, or may have been sent. The effect of the request at the forge is then unknown.
    pub(super) fn is_unsure(&self) -> bool {
        matches!(self, Self::Interrupted(_) | Self::Late { sent: true })
    }
}

/// Sends `request` to the host of `url`. The path is in `request`.
///
/// # Errors
/// [`CallError`]. The error message contains nothing from the request.
pub(super) async fn call(url: &Url, request: Request<Full<Bytes>>, roots: &str) -> Result<Answer, CallError> {
    // The request is treated as sent as soon as it is handed to a connection.
    let sent = std::sync::atomic::AtomicBool::new(false);
    let answered = tokio::time::timeout(CALL_TIMEOUT, exchange(url, request, roots, &sent)).await;
    answered.unwrap_or_else(|_| Err(CallError::Late { sent: sent.into_inner() }))
}

async fn exchange(
    url: &Url,
    request: Request<Full<Bytes>>,
    roots: &str,
    sent: &std::sync::atomic::AtomicBool,
) -> Result<Answer, CallError> {
    let host = url.host_str().ok_or(CallError::NoHost)?;
    let port = url.port_or_known_default().unwrap_or(443);
    let stream = host_connector::connect(host, port, roots).await?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(CallError::Handshake)?;
    let send = async {
        sent.store(true, std::sync::atomic::Ordering::SeqCst);
        let answer = sender.send_request(request).await;
        let (head, body) = answer.map_err(|error| CallError::Interrupted(Some(error.into())))?.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|error| CallError::Interrupted(Some(error)))?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    };
    // The connection is dropped when the exchange ends.
    let connection = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = send => answer,
        () = connection => Err(CallError::Interrupted(None)),
    }
}
