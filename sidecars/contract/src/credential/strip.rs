//! Strips the agent's own credentials from every request, unless the route sets `pass_credentials`: an
//! allowed host with an attacker's key is an exfiltration path.
//!
//! Signatures of pre-signed URLs (`X-Amz-Signature`, `sig`) stay: servers hand out downloads that way, and
//! without them package and release downloads fail.

use std::borrow::Cow;

use crate::route::Route;

/// Header names that denote credentials and have no ending of [`HEADER_ENDS`], lower case.
pub const HEADERS: &[&str] = &[
    "apikey",
    "auth",
    "authentication",
    "cookie",
    "cookie2",
    "jwt",
    "passwd",
    "password",
    "secret",
    "token",
    "x-amz-credential",
    "x-auth-email",
    "x-honeycomb-team",
    "x-jwt-assertion",
    "x-token-auth",
];

/// Endings of header names that denote credentials.
const HEADER_ENDS: &[&str] = &[
    "apikey",
    "apitoken",
    "-auth",
    "-authentication",
    "-cookie",
    "-credential",
    "-credentials",
    "-jwt",
    "-key",
    "-pass",
    "-passwd",
    "-password",
    "-secret",
    "-token",
];

/// Header names with such an ending that hold no credential: anti-forgery tokens (useless without a session),
/// pagination, idempotency, WebDAV locks, Cosmos DB sessions (a read position), keys of caches and of the
/// WebSocket handshake. Matched as whole dash-separated words at the end of the name.
const NO_CREDENTIALS: &[&str] = &[
    "amz-client-token",
    "cache-key",
    "continuation-token",
    "continue-token",
    "csrf-token",
    "cursor-token",
    "dedup-key",
    "deduplication-key",
    "idempotency-key",
    "idempotent-key",
    "lock-token",
    "ms-session-token",
    "next-token",
    "page-token",
    "pagination-token",
    "partition-key",
    "requestverificationtoken",
    "routing-key",
    "sec-websocket-key",
    "sort-key",
    "surrogate-key",
    "sync-token",
    "xsrf-token",
];

/// Query keys that denote credentials, lower case with `-` and `.` as `_`.
const QUERY_KEYS: &[&str] = &[
    "access_token",
    "accesstoken",
    "api_key",
    "api_token",
    "apikey",
    "auth",
    "auth_token",
    "authorization",
    "authtoken",
    "bearer_token",
    "client_secret",
    "id_token",
    "job_token",
    "oauth_token",
    "passwd",
    "password",
    "private_token",
    "refresh_token",
    "secret",
    "session_token",
    "token",
    "x_api_key",
];

/// Prefixes of WebSocket subprotocols that carry a key, because browsers cannot send headers there.
const SUBPROTOCOLS: &[&str] = &["openai-insecure-api-key.", "base64url.bearer.authorization.k8s.io."];

/// Whether the header `name` (lower case, as parsers return it) is a credential.
#[must_use]
pub fn is_credential_header(name: &str) -> bool {
    let name = dashed(name);
    let is_end = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    name.contains("authorization")
        || HEADERS.contains(&&*name)
        || (is_end(HEADER_ENDS) && !is_end(NO_CREDENTIALS))
}

/// CGI-style servers treat both spellings as one header.
fn dashed(name: &str) -> Cow<'_, str> {
    if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) }
}

/// Headers that tell a backend server that another path or host was requested. A server that trusts them
/// would answer another request than the one decided on. Lower case.
const REROUTING: &[&str] = &[
    "base-url",
    "forwarded",
    "http-url",
    "path-info",
    "request-uri",
    "script-name",
    "x-envoy-original-path",
    "x-forwarded-host",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-host",
    "x-http-destinationurl",
    "x-http-host-override",
    "x-http-path-override",
    "x-http-uri-override",
    "x-http-url-override",
    "x-invoke-path",
    "x-invoke-query",
    "x-matched-path",
    "x-middleware-rewrite",
    "x-middleware-subrequest",
    "x-override-host",
    "x-override-path",
    "x-override-uri",
    "x-override-url",
    "x-path-info",
    "x-proxy-host",
    "x-proxy-url",
    "x-real-url",
    "x-request-path",
    "x-request-uri",
    "x-request-url",
    "x-script-name",
    "x-waws-unencoded-url",
];

/// Whether the header `name` (lower case) claims another path or host than the request's own. No client needs
/// it; the proxy strips it from every request.
#[must_use]
pub fn is_rerouting_header(name: &str) -> bool {
    let name = dashed(name);
    let by_front = |start: &str| {
        name.strip_prefix(start).is_some_and(|what| matches!(what, "host" | "path" | "uri" | "url" | "query"))
    };
    REROUTING.contains(&&*name)
        || ["x-original-", "x-original-request-", "x-rewrite-", "x-ms-original-"].into_iter().any(by_front)
}

/// Headers that ask for a part of a response, a digest of it, or another representation. Lower case.
const PARTIAL: &[&str] = &[
    "a-im",
    "accept-charset",
    "accept-features",
    "accept-transfer-encoding",
    "available-dictionary",
    "connect-accept-encoding",
    "delta-base",
    "dictionary-id",
    "grpc-accept-encoding",
    "if-range",
    "im",
    "range",
    "range-unit",
    "request-range",
    "want-content-digest",
    "want-digest",
    "want-repr-digest",
    "want-unencoded-digest",
    "x-ms-range",
    "x-ms-range-get-content-crc64",
    "x-ms-range-get-content-md5",
    "x-amz-range",
    "x-goog-range",
    "x-range",
];

/// Whether the header `name` (lower case) asks for less than the whole plain response. On a route with a
/// credential, an honest server that echoes the credential would send it in slices or in a form that the
/// proxy cannot recognize.
#[must_use]
pub fn is_partial_header(name: &str) -> bool {
    PARTIAL.contains(&&*dashed(name))
}

/// Whether the header `name` (lower case) belongs to this program; agents and servers may not send it.
#[must_use]
pub fn is_own_header(name: &str) -> bool {
    dashed(name).starts_with("x-bottle-")
}

/// The agent's headers that are stripped on one route.
#[derive(Debug, Clone, Copy)]
pub struct StrippedHeaders {
    credentials: bool,
    partial: bool,
    destination: bool,
}

/// WebDAV's target of COPY and MOVE: another path than the one decided on.
const DESTINATION: &str = "destination";

impl StrippedHeaders {
    /// The stripped headers of `route`.
    #[must_use]
    pub fn for_route(route: &Route) -> Self {
        Self {
            credentials: !route.pass_credentials,
            // An injected credential must come back whole and readable, or the proxy cannot recognize it in
            // the response.
            partial: route.auth.is_some(),
            // Only on routes with path conditions.
            destination: !route.matches.is_empty(),
        }
    }

    /// Whether credentials are stripped.
    #[must_use]
    pub fn credentials(self) -> bool {
        self.credentials
    }

    /// Whether the header `name` (lower case) is stripped.
    #[must_use]
    pub fn strips(self, name: &str) -> bool {
        (self.credentials && is_credential_header(name))
            || (self.partial && is_partial_header(name))
            || is_rerouting_header(name)
            || is_own_header(name)
            || (self.destination && name == DESTINATION)
    }
}

/// Whether an entry of `Sec-WebSocket-Protocol` is a credential.
#[must_use]
pub fn is_credential_subprotocol(entry: &str) -> bool {
    SUBPROTOCOLS
        .iter()
        .any(|start| entry.trim().get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start)))
}

/// The keys of credentials in `query` (canonical), as written; at most 64 bytes of each.
pub fn query_keys(query: &str) -> impl Iterator<Item = &str> {
    let pairs = query.split(['&', ';']).filter(|pair| is_credential_pair(pair));
    pairs.map(|pair| {
        let key = pair.split('=').next().unwrap_or_default();
        key.get(..64).unwrap_or(key)
    })
}

/// `query` (canonical) without its credentials; borrowed if it has none. The other pairs keep their order.
#[must_use]
pub fn query(query: &str) -> Cow<'_, str> {
    if !query.split(['&', ';']).any(is_credential_pair) {
        return Cow::Borrowed(query);
    }
    let mut kept = String::with_capacity(query.len());
    for part in query.split_inclusive(['&', ';']) {
        if !is_credential_pair(part.trim_end_matches(['&', ';'])) {
            kept.push_str(part);
        }
    }
    Cow::Owned(kept.trim_end_matches(['&', ';']).to_owned())
}

fn is_credential_pair(pair: &str) -> bool {
    let Some((key, value)) = crate::canonical::decoded_pairs(pair).next() else { return false };
    let name = key.trim().to_ascii_lowercase().replace(['-', '.'], "_");
    // Google's API keys use `key`, which elsewhere names an object; the value's prefix decides.
    QUERY_KEYS.contains(&name.as_str()) || (name == "key" && value.starts_with("AIza"))
}
