//! Stage 7 of the request pipeline: strips the agent's credentials and injects the credential of the route.

use bottle_policy::credential::strip::{self, StrippedHeaders};
use bottle_policy::route::Route;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::body::Observe;
use crate::credential_store::CredentialStore;

/// The changes to the headers and query of one request.
#[derive(Clone)]
pub(crate) struct CredentialRewrite {
    stripped: StrippedHeaders,
    inject: Option<(HeaderName, HeaderValue)>,
}

impl CredentialRewrite {
    /// Returns the changes for `route`, or `None` if the route requires a credential that is not bound to the route or
    /// has no value. Without these changes, the request must not be sent.
    pub(super) fn for_route(route: &Route, credential_store: &CredentialStore) -> Option<Self> {
        let inject = match &route.auth {
            Some(_) => Some(credential_store.header_for(route)?),
            None => None,
        };
        Some(Self { stripped: StrippedHeaders::for_route(route), inject })
    }

    /// Returns the query as the proxy sends it.
    pub(super) fn query(&self, query: &str) -> String {
        if self.stripped.credentials() { strip::query(query).into_owned() } else { query.to_owned() }
    }

    /// Returns the keys that [`Self::query`] strips.
    pub(super) fn stripped_keys(&self, query: &str) -> Vec<String> {
        if self.stripped.credentials() {
            strip::query_keys(query).map(str::to_owned).collect()
        } else {
            Vec::new()
        }
    }

    /// Whether the proxy forwards a header of the agent.
    pub(super) fn forwards(&self, name: &HeaderName) -> bool {
        !self.strips(name) && self.inject.as_ref().is_none_or(|(injected, _)| injected != name)
    }

    /// Whether a header is stripped.
    fn strips(&self, name: &HeaderName) -> bool {
        self.stripped.strips(name.as_str())
    }

    /// Returns the names of the headers that [`Self::strip`] strips and does not replace with the injected credential.
    pub(super) fn stripped(&self, headers: &HeaderMap) -> Vec<String> {
        let injected = |name: &HeaderName| self.inject.as_ref().is_some_and(|(injected, _)| injected == name);
        let taken = headers.keys().filter(|name| self.strips(name) && !injected(name));
        let mut names: Vec<String> = taken.map(HeaderName::to_string).collect();
        if self.stripped.credentials() && subprotocols(headers).any(strip::is_credential_subprotocol) {
            names.push(SEC_WEBSOCKET_PROTOCOL.to_string());
        }
        names
    }

    /// Removes the headers that the proxy strips from `headers`.
    pub(super) fn strip(self, mut headers: HeaderMap) -> StrippedHead {
        self.strip_from(&mut headers);
        StrippedHead { headers, inject: self.inject }
    }

    /// Removes the same headers as [`Self::strip`] from the trailers of the body. Injects no credential.
    pub(super) fn trailers(&self, trailers: &mut HeaderMap) {
        self.strip_from(trailers);
        if let Some((name, _)) = &self.inject {
            trailers.remove(name);
        }
    }

    fn strip_from(&self, headers: &mut HeaderMap) {
        let taken: Vec<HeaderName> = headers.keys().filter(|name| self.strips(name)).cloned().collect();
        for name in taken {
            headers.remove(name);
        }
        if self.stripped.credentials() && headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
            strip_subprotocols(headers);
        }
    }
}

/// Strips headers from the trailers of a request body.
impl Observe for CredentialRewrite {
    fn on_trailers(&mut self, trailers: &mut HeaderMap) {
        self.trailers(trailers);
    }
}

/// The headers of a request without the agent's credentials. Only a [`StrippedHead`] can receive the route's
/// credential.
pub(super) struct StrippedHead {
    headers: HeaderMap,
    inject: Option<(HeaderName, HeaderValue)>,
}

impl StrippedHead {
    /// Adds the route's credential.
    pub(super) fn inject(self) -> InjectedHead {
        let Self { mut headers, inject } = self;
        let injected = inject.map(|(name, value)| {
            headers.insert(name.clone(), value);
            name
        });
        InjectedHead { headers, injected }
    }
}

/// The headers of a request as the proxy sends them.
pub(super) struct InjectedHead {
    headers: HeaderMap,
    /// The name of the injected header.
    injected: Option<HeaderName>,
}

impl InjectedHead {
    /// All headers, including the credential.
    pub(super) fn into_headers(self) -> HeaderMap {
        self.headers
    }

    /// The headers without the credential, for the log.
    pub(super) fn loggable(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.headers.iter().filter(|(name, _)| Some(*name) != self.injected.as_ref())
    }

    pub(super) fn contains_key(&self, name: &HeaderName) -> bool {
        self.headers.contains_key(name)
    }
}

fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

fn strip_subprotocols(headers: &mut HeaderMap) {
    let remaining: Vec<&str> = subprotocols(headers)
        .filter(|entry| !entry.is_empty() && !strip::is_credential_subprotocol(entry))
        .collect();
    let remaining = remaining.join(", ");
    // A list of items of valid header values is itself a valid header value.
    match HeaderValue::try_from(remaining) {
        Ok(remaining) if !remaining.is_empty() => headers.insert(SEC_WEBSOCKET_PROTOCOL, remaining),
        _ => headers.remove(SEC_WEBSOCKET_PROTOCOL),
    };
}

#[cfg(test)]
mod tests {
    use bottle_policy::route::{Form, parse_routes};

    use super::*;

    fn route(strip: bool, inject: bool, more: &str) -> Route {
        let auth = if inject { "  auth: {scheme: header, header: x-api-key, slot: s}\n" } else { "" };
        let pass = if strip { "" } else { "  pass_credentials: true\n" };
        let yaml = format!("routes:\n- host: a.example\n{auth}{pass}{more}");
        parse_routes(&yaml, Form::Runtime).expect("routes").routes()[0].clone()
    }

    fn rewrite(strip: bool, inject: bool) -> CredentialRewrite {
        let header = (HeaderName::from_static("x-api-key"), HeaderValue::from_static("real"));
        CredentialRewrite {
            stripped: StrippedHeaders::for_route(&route(strip, inject, "")),
            inject: inject.then_some(header),
        }
    }

    fn sent() -> HeaderMap {
        let pairs = [
            ("authorization", "Bearer mine"),
            ("x-api-key", "mine"),
            ("cookie", "a=b"),
            ("accept", "*/*"),
            ("sec-websocket-protocol", "realtime, openai-insecure-api-key.mine"),
        ];
        let pairs =
            pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.into_iter().collect()
    }

    #[test]
    fn strips_the_agents_credentials_and_injects_the_real_one() {
        let mut headers = sent();
        headers.append("x-api-key", HeaderValue::from_static("second"));
        let injected = rewrite(true, true).strip(headers).inject();
        assert_eq!(injected.injected, Some(HeaderName::from_static("x-api-key")));
        let headers = injected.into_headers();
        let keys: Vec<_> = headers.get_all("x-api-key").iter().collect();
        assert_eq!(keys, ["real"]);
        assert!(!headers.contains_key("authorization") && !headers.contains_key("cookie"));
        assert_eq!(headers["sec-websocket-protocol"], "realtime");
        assert_eq!(headers["accept"], "*/*");
    }

    #[test]
    fn a_second_subprotocol_header_cannot_hide_a_key() {
        let mut headers = sent();
        let hidden = HeaderValue::from_static("openai-insecure-api-key.mine");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("realtime"));
        headers.append(SEC_WEBSOCKET_PROTOCOL, hidden);
        let headers = rewrite(true, false).strip(headers).inject().into_headers();
        let left: Vec<_> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(left, ["realtime"]);
    }

    #[test]
    fn forwards_credentials_with_pass_credentials() {
        let injected = rewrite(false, false).strip(sent()).inject();
        assert_eq!(injected.injected, None);
        assert_eq!(injected.into_headers(), sent());
        let query = "a=1&api_key=mine";
        assert_eq!(rewrite(false, false).query(query), query);
        assert_eq!(rewrite(true, false).query(query), "a=1");
        let forwards = |strip, inject, name: &str| {
            rewrite(strip, inject).forwards(&HeaderName::from_bytes(name.as_bytes()).expect("name"))
        };
        assert!(forwards(false, false, "x-api-key") && forwards(true, false, "accept"));
        assert!(!forwards(true, false, "cookie") && !forwards(true, true, "x-api-key"));
    }

    #[test]
    fn strips_override_and_range_headers_where_they_matter() {
        let names = ["range", "x-rewrite-url", "x-bottle-reason", "destination", "accept", "x-csrf-token"];
        let of = |rewrite: &CredentialRewrite| {
            rewrite.stripped(
                &names
                    .map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1")))
                    .into_iter()
                    .collect(),
            )
        };
        assert_eq!(of(&rewrite(false, false)), ["x-rewrite-url", "x-bottle-reason"]);
        assert_eq!(of(&rewrite(true, true)), ["range", "x-rewrite-url", "x-bottle-reason"]);
        let matches = "  matches: [{methods: [GET]}]\n";
        let bounded = CredentialRewrite {
            stripped: StrippedHeaders::for_route(&route(true, false, matches)),
            ..rewrite(true, false)
        };
        assert_eq!(of(&bounded), ["x-rewrite-url", "x-bottle-reason", "destination"]);
        assert_eq!(
            rewrite(true, true).stripped(&sent()),
            ["authorization", "cookie", "sec-websocket-protocol"]
        );
        assert_eq!(rewrite(true, true).stripped_keys("a=1&token=x"), ["token"]);
    }

    #[test]
    fn strips_credentials_from_trailers() {
        let mut trailers = sent();
        rewrite(true, true).trailers(&mut trailers);
        assert!(!trailers.contains_key("x-api-key") && trailers.contains_key("accept"));
    }
}
