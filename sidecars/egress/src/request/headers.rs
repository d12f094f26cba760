//! Removes headers that apply to one connection and not to the request (hop-by-hop headers).

use bottle_policy::credential::strip;
use http::header::{
    ACCEPT_ENCODING, ALT_SVC, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, PROXY_AUTHENTICATE, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::inspect::Coding;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Removes the headers that `Connection` lists, before the policy decides and before a credential is injected.
///
/// Removing these headers later could remove a header that the decision relied on, or the injected credential.
/// `Upgrade` and `TE` are kept because the proxy reads both.
pub(crate) fn remove_connection_listed(headers: &mut HeaderMap) {
    for name in connection_options(headers) {
        if name != UPGRADE && name != TE {
            headers.remove(name);
        }
    }
}

/// Removes the request headers that are meant for the proxy only, except those that [`remove_connection_listed`]
/// removes.
///
/// The proxy sets `Host` again from the host that it decided on. The proxy answers `Expect` itself when upstream reads
/// the body. In `TE` the proxy keeps `trailers`, which gRPC requires.
pub(crate) fn for_upstream(headers: &mut HeaderMap) {
    let trailers = headers
        .get_all(TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| items(value).any(|item| item == "trailers"));
    remove_hop_by_hop(headers);
    for name in [HOST, EXPECT, TE, HTTP2_SETTINGS] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes the response headers that upstream meant for the proxy only.
///
/// `Alt-Svc` is removed because it offers connections (QUIC, other ports) that a bottle cannot use. Headers that only
/// the proxy may set are removed because clients recognize the proxy's responses by these headers.
pub(crate) fn for_bottle(headers: &mut HeaderMap) {
    remove_own(headers);
    if headers.contains_key(TRANSFER_ENCODING) {
        // The transfer coding determines the length of the body, and `Content-Length` may be wrong (RFC 9112, 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    for name in connection_options(headers) {
        headers.remove(name);
    }
    remove_hop_by_hop(headers);
    for name in [PROXY_AUTHENTICATE, ALT_SVC] {
        headers.remove(name);
    }
}

/// Removes the headers that only the proxy may set.
pub(crate) fn remove_own(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> =
        headers.keys().filter(|name| strip::is_own_header(name.as_str())).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

/// Limits `Accept-Encoding` to codings that can be decoded as a stream, so that servers use no other codings.
pub(crate) fn limit_accept_encoding(headers: &mut HeaderMap) {
    if !headers.contains_key(ACCEPT_ENCODING) {
        return;
    }
    let values: Vec<HeaderValue> = headers.get_all(ACCEPT_ENCODING).iter().cloned().collect();
    let supported: Vec<&str> = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|entry| {
            let name = entry.split(';').next().unwrap_or_default().trim();
            name.eq_ignore_ascii_case("identity") || Coding::from_name(name).is_some_and(Coding::streams)
        })
        .collect();
    let supported = if supported.is_empty() { "identity".to_owned() } else { supported.join(", ") };
    // A list of items of valid header values is itself a valid header value.
    if let Ok(supported) = HeaderValue::try_from(supported) {
        headers.insert(ACCEPT_ENCODING, supported);
    }
}

/// Restores the WebSocket upgrade headers of a request or response after its hop-by-hop headers were removed.
pub(crate) fn set_websocket_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
}

/// Returns the names of the headers that `Connection` lists.
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(items)
        .filter_map(|item| HeaderName::try_from(item).ok())
        .collect()
}

/// Returns the comma-separated items of a header, in lower case.
fn items(value: &str) -> impl Iterator<Item = String> {
    value.split(',').map(|item| item.trim().to_ascii_lowercase()).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (name.parse::<HeaderName>().expect("name"), value.parse::<HeaderValue>().expect("value"))
        });
        pairs.collect()
    }

    #[test]
    fn limits_accept_encoding_to_streaming_codings() {
        for (requested, supported) in [
            ("gzip, deflate, br, zstd", "gzip, deflate, br"),
            ("compress, GZIP;q=0.5, *;q=0.1", "GZIP;q=0.5"),
            ("compress", "identity"),
        ] {
            let mut map = headers(&[("accept-encoding", requested)]);
            limit_accept_encoding(&mut map);
            assert_eq!(map, headers(&[("accept-encoding", supported)]));
        }
        let mut map = headers(&[("accept", "*/*")]);
        limit_accept_encoding(&mut map);
        assert_eq!(map, headers(&[("accept", "*/*")]));
    }

    #[test]
    fn removes_hop_by_hop_headers() {
        let mut map = headers(&[
            ("connection", "keep-alive, X-Hop"),
            ("keep-alive", "300"),
            ("x-hop", "1"),
            ("host", "a"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("accept", "*/*"),
        ]);
        remove_connection_listed(&mut map);
        for_upstream(&mut map);
        assert_eq!(map, headers(&[("accept", "*/*"), ("te", "trailers")]));
        let mut map = headers(&[
            ("alt-svc", "h3=\":443\""),
            ("connection", "close"),
            ("x-bottle-reason", "host-not-allowed"),
            ("x_bottle_stripped", "cookie"),
            ("etag", "1"),
        ]);
        for_bottle(&mut map);
        assert_eq!(map, headers(&[("etag", "1")]));
    }
}
