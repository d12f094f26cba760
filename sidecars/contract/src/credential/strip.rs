//! What an agent sends as a credential, and what is taken out of every request unless its route says
//! `pass_credentials`: an allowed host reached with an attacker's own key is a way out too.
//!
//! Signatures of pre-signed URLs (`X-Amz-Signature`, `sig`) stay: downloads are handed out that way, and
//! without them package and release downloads fail.

use std::borrow::Cow;

/// Headers that are credentials by their name alone, lower case.
pub const HEADERS: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "cookie2",
    "x-api-key",
    "api-key",
    "apikey",
    "circle-token",
    "dd-application-key",
    "fastly-key",
    "job-token",
    "ocp-apim-subscription-key",
    "private-token",
    "x-amz-security-token",
    "x-auth-email",
    "x-auth-key",
    "x-functions-key",
    "x-goog-api-key",
    "x-honeycomb-team",
    "xi-api-key",
];

/// Ends of header names that say the same. `-token` alone would take pagination and anti-forgery tokens.
const HEADER_ENDS: &[&str] = &[
    "api-key",
    "apikey",
    "api-token",
    "auth-token",
    "access-token",
    "access-key",
    "private-token",
    "server-token",
    "vault-token",
    "session-token",
    "secret-key",
    "-secret",
    "-password",
];

/// Query keys that are credentials by their name alone, lower case with `-` and `.` as `_`.
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

/// Beginnings of WebSocket subprotocols that carry a key, because browsers can send no header there.
const SUBPROTOCOLS: &[&str] = &["openai-insecure-api-key.", "base64url.bearer.authorization.k8s.io."];

/// Whether the header `name` (lower case, as parsers hand it out) is a credential.
#[must_use]
pub fn is_credential_header(name: &str) -> bool {
    // CGI and its heirs read both spellings as one header.
    let name = if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) };
    HEADERS.contains(&&*name) || HEADER_ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether an entry of `Sec-WebSocket-Protocol` is a credential.
#[must_use]
pub fn is_credential_subprotocol(entry: &str) -> bool {
    SUBPROTOCOLS
        .iter()
        .any(|start| entry.trim().get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start)))
}

/// `query` (canonical) without its credentials, borrowed when it has none. The rest keeps its order.
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
    // Google's keys go by `key`, which elsewhere names an object; their shape tells.
    QUERY_KEYS.contains(&name.as_str()) || (name == "key" && value.starts_with("AIza"))
}
