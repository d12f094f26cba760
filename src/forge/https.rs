//! One call of a forge's API: verified, within a deadline, its answer bounded.

use std::time::Duration;

use bottle_egress::host_connector;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use url::Url;

/// How long a call may take, all of it.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(30);

/// More than a page of a hundred keys takes.
const ANSWER_MAX: usize = 1 << 20;

/// What was answered.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Nothing was asked.
    #[error("{0}")]
    NotAsked(String),
    /// It was asked, or may have been, and what became of that is not known.
    #[error("{0}")]
    NotAnswered(String),
}

/// Asks what `request` says of the place `url`, of which the request has the path.
///
/// # Errors
/// [`CallError`]; no message of it holds anything of the request.
pub(super) async fn call(url: &Url, request: Request<Full<Bytes>>, roots: &str) -> Result<Answer, CallError> {
    // Until a request is handed to a connection, nothing was asked.
    let asked = std::sync::atomic::AtomicBool::new(false);
    let answered = tokio::time::timeout(CALL_WITHIN, exchange(url, request, roots, &asked)).await;
    answered.unwrap_or_else(|_| {
        let why = format!("it did not answer within {} s", CALL_WITHIN.as_secs());
        Err(match asked.into_inner() {
            true => CallError::NotAnswered(why),
            false => CallError::NotAsked(why),
        })
    })
}

async fn exchange(
    url: &Url,
    request: Request<Full<Bytes>>,
    roots: &str,
    asked: &std::sync::atomic::AtomicBool,
) -> Result<Answer, CallError> {
    let not_asked = |why: String| CallError::NotAsked(why);
    let host = url.host_str().ok_or_else(|| not_asked("its address names no host".to_owned()))?;
    let port = url.port_or_known_default().unwrap_or(443);
    let stream =
        host_connector::connect(host, port, roots).await.map_err(|error| not_asked(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| not_asked(error.to_string()))?;
    let talk = async {
        asked.store(true, std::sync::atomic::Ordering::SeqCst);
        let lost = |error: String| CallError::NotAnswered(format!("its answer broke off: {error}"));
        let answer = sender.send_request(request).await.map_err(|error| lost(error.to_string()))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(|error| lost(error.to_string()))?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    };
    // The connection lives as long as the exchange, and goes with it.
    let connection = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = talk => answer,
        () = connection => Err(CallError::NotAnswered("its answer broke off".to_owned())),
    }
}
