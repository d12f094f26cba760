//! Decides on a request that the user describes, for `bottle policy check METHOD URL`.

use http::HeaderMap;

use super::{Findings, Ingress, RequestFacts, UrlScheme, Verdict, decide};
use crate::route::RouteTable;

/// Text that is not an `http://` or `https://` URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a URL; write `https://host/path`")]
pub struct BadUrl(pub String);

/// Decides on `method` to `url` as [`decide`] would for a client in the bottle. The URL is split and not
/// normalized, so the decision uses the path as written.
///
/// # Errors
/// [`BadUrl`] if the URL has no scheme that the proxy supports.
pub fn decide_url<'t, 'f>(
    table: &'t RouteTable,
    method: &'f str,
    url: &'f str,
    headers: &'f HeaderMap,
    loaded: &dyn Fn(&str) -> bool,
) -> Result<Verdict<'t, 'f>, BadUrl> {
    decide_url_with(table, method, url, headers, loaded, &Findings::none())
}

/// Like [`decide_url`], but with `findings` of the outbound scan.
///
/// # Errors
/// [`BadUrl`], as in [`decide_url`].
pub fn decide_url_with<'t, 'f>(
    table: &'t RouteTable,
    method: &'f str,
    url: &'f str,
    headers: &'f HeaderMap,
    loaded: &dyn Fn(&str) -> bool,
    findings: &Findings,
) -> Result<Verdict<'t, 'f>, BadUrl> {
    let bad = || BadUrl(url.to_owned());
    let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
    let (scheme, websocket) = match scheme.to_ascii_lowercase().as_str() {
        "http" => (UrlScheme::Http, false),
        "https" => (UrlScheme::Https, false),
        "ws" => (UrlScheme::Http, true),
        "wss" => (UrlScheme::Https, true),
        _ => return Err(bad()),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, target) = rest.split_at(rest.find(['/', '?', '\\']).unwrap_or(rest.len()));
    let facts = RequestFacts {
        ingress: Ingress::Absolute,
        scheme,
        sni: None,
        authority: Some(authority),
        method,
        target,
        headers,
        websocket: websocket || super::is_websocket_upgrade(headers),
    };
    Ok(decide(table, &facts, loaded, findings))
}
