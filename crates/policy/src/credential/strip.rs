//! Strips the agent's own credentials from every inspected request, unless the route sets `pass_credentials`. Without
//! this rule, an agent that obtains an attacker's key could store data in the attacker's account on an allowed host.
//!
//! Signatures of pre-signed URLs (`X-Amz-Signature`, `sig`) are kept. Many servers use such URLs for package
//! and release downloads, which would fail without the signature.

use std::borrow::Cow;

use crate::route::Route;

/// Lower-case header names that denote credentials and do not end in one of [`HEADER_ENDS`].
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

/// Header names that end in one of [`HEADER_ENDS`] but hold no credential: anti-forgery tokens (useless
/// without a session), pagination, idempotency, WebDAV locks, Cosmos DB sessions (a read position), cache
/// keys and keys of the WebSocket handshake. Each entry is matched at the end of the header name.
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

/// Query keys that denote credentials, in lower case and with `-` and `.` replaced by `_`.
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

/// Prefixes of WebSocket subprotocols that contain a key. Browsers send keys this way because they cannot set
/// headers on a WebSocket request.
const SUBPROTOCOLS: &[&str] = &["openai-insecure-api-key.", "base64url.bearer.authorization.k8s.io."];

/// Whether the header `name` (lower case, as parsers return it) holds a credential.
#[must_use]
pub fn is_credential_header(name: &str) -> bool {
    let name = dashed(name);
    let is_end = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    name.contains("authorization")
        || HEADERS.contains(&&*name)
        || (is_end(HEADER_ENDS) && !NO_CREDENTIALS.iter().any(|words| ends_with_words(&name, words)))
}

/// Whether `name` ends with `words` as complete words: `x-lock-token` ends with `lock-token`, and
/// `x-block-token` does not.
fn ends_with_words(name: &str, words: &str) -> bool {
    name.strip_suffix(words).is_some_and(|head| head.is_empty() || head.ends_with('-'))
}

/// Replaces `_` with `-`, because CGI-style servers treat both spellings as the same header.
fn dashed(name: &str) -> Cow<'_, str> {
    if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) }
}

/// Lower-case headers that tell a backend server that the client requested another path or host. A server that trusts
/// these headers would serve a request that the proxy did not check.
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

/// Whether the header `name` (lower case) states another path or host than the request line. No client needs
/// such a header, and the proxy strips it from every request.
#[must_use]
pub fn is_rerouting_header(name: &str) -> bool {
    let name = dashed(name);
    let by_front = |start: &str| {
        name.strip_prefix(start).is_some_and(|what| matches!(what, "host" | "path" | "uri" | "url" | "query"))
    };
    REROUTING.contains(&&*name)
        || ["x-original-", "x-original-request-", "x-rewrite-", "x-ms-original-"].into_iter().any(by_front)
}

/// Lower-case headers that request a part of a response, a digest of it, or another representation.
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

/// Whether the header `name` (lower case) requests something other than the complete plain response. If an honest
/// server echoes an injected credential, such a header makes the server send the credential in slices or in a form that
/// the proxy cannot recognize.
#[must_use]
pub fn is_partial_header(name: &str) -> bool {
    PARTIAL.contains(&&*dashed(name))
}

/// Whether the header `name` (lower case) is reserved for `bottle` itself. Agents and servers must not send
/// such a header.
#[must_use]
pub fn is_own_header(name: &str) -> bool {
    dashed(name).starts_with("x-bottle-")
}

/// Which of the agent's headers are stripped on one route.
#[derive(Debug, Clone, Copy)]
pub struct StrippedHeaders {
    credentials: bool,
    partial: bool,
    destination: bool,
}

/// The WebDAV header with the target of COPY and MOVE: a path that the proxy did not check.
const DESTINATION: &str = "destination";

impl StrippedHeaders {
    /// Returns which headers are stripped on `route`.
    #[must_use]
    pub fn for_route(route: &Route) -> Self {
        Self {
            credentials: !route.pass_credentials,
            // The response must contain an injected credential complete and in plain form, or the proxy
            // cannot recognize it.
            partial: route.auth.is_some(),
            // The header `Destination` is stripped only on routes with `matches`, which may contain path conditions.
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

/// Whether an entry of `Sec-WebSocket-Protocol` contains a credential.
#[must_use]
pub fn is_credential_subprotocol(entry: &str) -> bool {
    SUBPROTOCOLS
        .iter()
        .any(|start| entry.trim().get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start)))
}

/// Returns the keys of the credentials in `query` (canonical), as written and cut to 64 bytes.
pub fn query_keys(query: &str) -> impl Iterator<Item = &str> {
    let pairs = query.split(['&', ';']).filter(|pair| is_credential_pair(pair));
    pairs.map(|pair| {
        let key = pair.split('=').next().unwrap_or_default();
        key.get(..64).unwrap_or(key)
    })
}

/// Returns `query` (canonical) without its credentials; the result is borrowed if `query` has none. The other pairs
/// keep their order.
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

/// Whether a pair of a query's key and value holds a credential.
pub(super) fn is_credential_pair(pair: &str) -> bool {
    let Some((key, value)) = crate::canonical::decoded_pairs(pair).next() else { return false };
    let name = key.trim().to_ascii_lowercase().replace(['-', '.'], "_");
    // Google's API keys use the query key `key`, which other APIs use for other things. The prefix of the value shows
    // whether it is one of Google's keys.
    QUERY_KEYS.contains(&name.as_str()) || (name == "key" && value.starts_with("AIza"))
}
