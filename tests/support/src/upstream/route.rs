//! The responses of the fake site, by path.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde_json::json;

use super::{Visit, websocket};
use crate::body::{Body, Pace, paced, whole};
use crate::server::Answer;

/// The size of a chunk of `/bytes/N` in bytes.
const CHUNK: usize = 64 << 10;
/// The maximum number of bytes of a request body that are echoed as text. The rest is only counted.
const ECHO_LIMIT: usize = 64 << 10;

pub(super) async fn answer(visits: Arc<Mutex<Vec<Visit>>>, request: Request<Incoming>) -> Answer {
    let visit = visit(&request);
    visits.lock().unwrap_or_else(PoisonError::into_inner).push(visit.clone());
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let number = |at: usize| parts.get(at).and_then(|part| part.parse::<usize>().ok()).unwrap_or(0);
    let millis = |at: usize| Duration::from_millis(number(at) as u64);
    let answer = match parts.first().copied().unwrap_or_default() {
        "close" => return None,
        "ws" => websocket::upgrade(request),
        "status" => {
            let status = u16::try_from(number(1)).ok().and_then(|code| StatusCode::from_u16(code).ok());
            with_status(status.unwrap_or(StatusCode::BAD_REQUEST), text(whole("as you asked\n")))
        }
        "bytes" => text(paced(zeros(number(1)), Pace::default())),
        "wait" => {
            tokio::time::sleep(millis(1)).await;
            text(whole("at last\n"))
        }
        "drip" => text(paced(lines(number(1)), Pace { delay: millis(2), cut_after: None })),
        "sse" => {
            let body = paced(events(number(1)), Pace { delay: millis(2), cut_after: None });
            with_type("text/event-stream", body)
        }
        "cut" => text(paced(lines(usize::MAX), Pace { delay: Duration::ZERO, cut_after: Some(number(1)) })),
        _ => echo(&visit, request).await,
    };
    Some(answer)
}

fn visit(request: &Request<Incoming>) -> Visit {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let authority = request.uri().authority().map(ToString::to_string);
    Visit {
        method: request.method().to_string(),
        path: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
        host: authority.or_else(|| header("host").map(str::to_owned)).unwrap_or_default(),
        protocol: format!("{:?}", request.version()),
        headers: request
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect(),
    }
}

async fn echo(visit: &Visit, request: Request<Incoming>) -> Response<Body> {
    let mut body = request.into_body();
    let (mut length, mut start) = (0_usize, Vec::new());
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            length += data.len();
            let room = ECHO_LIMIT.saturating_sub(start.len());
            start.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    let echo = json!({
        "method": visit.method, "path": visit.path, "host": visit.host, "protocol": visit.protocol,
        "headers": visit.headers, "body_bytes": length, "body": String::from_utf8_lossy(&start),
    });
    with_type("application/json", whole(echo.to_string()))
}

fn zeros(total: usize) -> impl Iterator<Item = Bytes> + Send + Sync {
    static ZEROS: [u8; CHUNK] = [b'0'; CHUNK];
    (0..total.div_ceil(CHUNK)).map(move |n| Bytes::from_static(&ZEROS[..CHUNK.min(total - n * CHUNK)]))
}

fn lines(count: usize) -> impl Iterator<Item = Bytes> + Send + Sync {
    (0..count).map(|n| Bytes::from(format!("line {n}\n")))
}

fn events(count: usize) -> impl Iterator<Item = Bytes> + Send + Sync {
    (0..count).map(|n| Bytes::from(format!("event: tick\ndata: {{\"n\":{n}}}\n\n")))
}

fn text(body: Body) -> Response<Body> {
    with_type("text/plain", body)
}

fn with_type(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn with_status(status: StatusCode, mut response: Response<Body>) -> Response<Body> {
    *response.status_mut() = status;
    response
}
