//! Calls a forge's API over verified TLS, with a deadline and a bounded response.

use std::time::Duration;

use bottle_egress::host_connector;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use url::Url;

/// Time limit of a whole call.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of a response: more than a page of a hundred keys.
const ANSWER_MAX: usize = 1 << 20;

/// A response.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The request was not sent.
    #[error("{0}")]
    NotSent(String),
    /// The request was or may have been sent; its effect is unknown.
    #[error("{0}")]
    NoResponse(String),
}

/// Sends `request` to the host of `url`; the request has the path.
///
/// # Errors
/// [`CallError`]; its message contains nothing of the request.
pub(super) async fn call(url: &Url, request: Request<Full<Bytes>>, roots: &str) -> Result<Answer, CallError> {
    // The request counts as sent from when it is given to a connection.
    let sent = std::sync::atomic::AtomicBool::new(false);
    let answered = tokio::time::timeout(CALL_TIMEOUT, exchange(url, request, roots, &sent)).await;
    answered.unwrap_or_else(|_| {
        let why = format!("it did not answer within {} s", CALL_TIMEOUT.as_secs());
        Err(match sent.into_inner() {
            true => CallError::NoResponse(why),
            false => CallError::NotSent(why),
        })
    })
}

async fn exchange(
    url: &Url,
    request: Request<Full<Bytes>>,
    roots: &str,
    sent: &std::sync::atomic::AtomicBool,
) -> Result<Answer, CallError> {
    let not_sent = |why: String| CallError::NotSent(why);
    let host = url.host_str().ok_or_else(|| not_sent("its URL has no host".to_owned()))?;
    let port = url.port_or_known_default().unwrap_or(443);
    let stream = host_connector::connect(host, port, roots)
        .await
        .map_err(|error| not_sent(format!("{:#}", anyhow::Error::new(error))))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| not_sent(error.to_string()))?;
    let send = async {
        sent.store(true, std::sync::atomic::Ordering::SeqCst);
        let lost = |error: String| CallError::NoResponse(format!("its response was interrupted: {error}"));
        let answer = sender.send_request(request).await.map_err(|error| lost(error.to_string()))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(|error| lost(error.to_string()))?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    };
    // The connection is dropped with the exchange.
    let connection = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = send => answer,
        () = connection => Err(CallError::NoResponse("its response was interrupted".to_owned())),
    }
}
