//! Answers that the proxy gives by itself: refusals, and what it says about itself.

use bottle_contract::decide::Refusal;
use bottle_contract::route::display_value;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::body::{self, Body};
use crate::live::Current;
use crate::report::Reporter;
use crate::report::record::Asked;

/// Carries the reason code, for programs that do not read bodies.
const REASON: HeaderName = HeaderName::from_static("x-bottle-reason");

/// Tells of a refusal and makes the answer that says so. Both carry the same id.
pub(crate) fn refused(reporter: &Reporter, asked: &Asked, refusal: &Refusal) -> Response<Body> {
    let id = reporter.refused(asked, refusal);
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::FORBIDDEN);
    let mut response = json(status, &refusal.body(&id));
    let headers = response.headers_mut();
    headers.insert(REASON, HeaderValue::from_static(refusal.reason.as_str()));
    if status == StatusCode::UPGRADE_REQUIRED {
        // RFC 9110 wants to hear which protocol would do.
        headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    }
    response
}

/// Carries the names of what was taken out of the request.
const STRIPPED: HeaderName = HeaderName::from_static("x-bottle-stripped");

/// The longest that [`STRIPPED`] gets; what is more is left out.
const STRIPPED_BYTES: usize = 1024;

/// Says in an answer's headers what was taken out of its request: `authorization, cookie, ?token`.
pub(super) fn say_stripped(headers: &mut HeaderMap, names: &[String]) {
    let mut said = String::new();
    for name in names {
        let more = if said.is_empty() { 0 } else { 2 };
        if said.len() + more + name.len() > STRIPPED_BYTES {
            break;
        }
        if more > 0 {
            said.push_str(", ");
        }
        said.push_str(name);
    }
    match HeaderValue::try_from(said) {
        Ok(said) if !said.is_empty() => drop(headers.insert(STRIPPED, said)),
        _ => {}
    }
}

/// `/allowlist`: the routes that requests are decided by right now.
pub(super) fn allowlist(current: &Current) -> Response<Body> {
    let routes = current.table.routes().iter().map(display_value).collect();
    json(StatusCode::OK, &Allowlist { revision: current.revision, routes })
}

/// Anything else that is asked of the proxy itself.
pub(super) fn unknown() -> Response<Body> {
    let mut response = Response::new(body::full("the proxy answers GET /allowlist\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

#[derive(Serialize)]
struct Allowlist {
    revision: u64,
    routes: Vec<Value>,
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    let mut response = Response::new(body::full(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
