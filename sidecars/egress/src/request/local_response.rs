//! Builds the responses that the proxy itself sends: denials, and descriptions of its routes.

use bottle_policy::decide::{Reason, Refusal};
use bottle_policy::route::display_value;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, UPGRADE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::ext::ReasonPhrase;
use serde::Serialize;
use serde_json::Value;

use super::body::{self, Body};
use crate::live::CurrentRoutes;
use crate::report::Reporter;
use crate::report::record::RequestInfo;

/// The header with the reason code, for programs that do not parse bodies.
const REASON: HeaderName = HeaderName::from_static("x-bottle-reason");

/// The kind of client that sent a denied request. The kind determines the format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// A client that receives the denial as JSON.
    Any,
    /// git, which receives the denial as plain text because it shows no other media type to the user.
    Git,
}

impl Client {
    /// Determines the kind of client from `User-Agent`.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let is_git = headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"git/"));
        if is_git { Self::Git } else { Self::Any }
    }
}

/// Reports a denial and builds its response. The report and the response contain the same id.
pub(crate) fn denied(
    reporter: &Reporter,
    info: &RequestInfo,
    refusal: &Refusal,
    client: Client,
) -> Response<Body> {
    let id = reporter.report_denial(info, refusal);
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::FORBIDDEN);
    let mut response = match client {
        Client::Any => json(status, &refusal.body(&id)),
        Client::Git => text(status, format!("{}\nDenial {id} ({}).\n", refusal.sentence, refusal.reason)),
    };
    let headers = response.headers_mut();
    headers.insert(REASON, HeaderValue::from_static(refusal.reason.as_str()));
    if status == StatusCode::UPGRADE_REQUIRED {
        // RFC 9110 requires that a response with this status names the protocol to which the client must upgrade.
        headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    }
    add_reason_phrase(&mut response, refusal.reason);
    response
}

/// Puts the reason into the status line of HTTP/1.1, because npm, pip and other programs show no other part of a
/// response. The phrase is a fixed text, which contains nothing from the agent or from a finding.
fn add_reason_phrase(response: &mut Response<Body>, reason: Reason) {
    if let Ok(phrase) = ReasonPhrase::try_from(format!("bottle: {reason}")) {
        response.extensions_mut().insert(phrase);
    }
}

/// The header with the names of the headers and query keys that were stripped from the request.
const STRIPPED: HeaderName = HeaderName::from_static("x-bottle-stripped");

/// Maximum length of the value of [`STRIPPED`], in bytes. Names that do not fit are omitted.
const STRIPPED_BYTES: usize = 1024;

/// Adds a response header that lists the headers and query keys that the proxy stripped from the request, for example
/// `authorization, cookie, ?token`.
pub(super) fn add_stripped_header(headers: &mut HeaderMap, names: &[String]) {
    let mut listed = String::new();
    for name in names {
        let separator = if listed.is_empty() { 0 } else { 2 };
        if listed.len() + separator + name.len() > STRIPPED_BYTES {
            break;
        }
        if separator > 0 {
            listed.push_str(", ");
        }
        listed.push_str(name);
    }
    match HeaderValue::try_from(listed) {
        Ok(listed) if !listed.is_empty() => drop(headers.insert(STRIPPED, listed)),
        _ => {}
    }
}

/// The response to `/allowlist`: the current routes.
pub(super) fn allowlist(current: &CurrentRoutes) -> Response<Body> {
    let routes = current.table.routes().iter().map(display_value).collect();
    json(StatusCode::OK, &Allowlist { revision: current.revision, routes })
}

/// The response to any other request to the proxy itself.
pub(super) fn not_found() -> Response<Body> {
    let mut response = Response::new(body::full("the proxy answers GET /allowlist\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

#[derive(Serialize)]
struct Allowlist {
    revision: u64,
    routes: Vec<Value>,
}

/// The response to a request with more than [`crate::bounds::HEADERS`] headers.
pub(super) fn too_many_headers() -> Response<Body> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// Removes the body from the response to a HEAD request. `Content-Length` keeps the length of the body.
pub(crate) fn without_body(response: Response<Body>) -> Response<Body> {
    response.map(|_| body::empty())
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    with_body(status, "application/json", text)
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    with_body(status, "text/plain", text.into_bytes())
}

fn with_body(status: StatusCode, kind: &'static str, text: Vec<u8>) -> Response<Body> {
    let length = HeaderValue::from(text.len());
    let mut response = Response::new(body::full(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
