//! Step 7, the credentials: what the agent sent goes, what the route adds comes.

use bottle_contract::credential::strip::{self, StrippedHeaders};
use bottle_contract::route::Route;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::vault::Vault;

/// What happens to the headers of one request that its route decides about.
#[derive(Clone)]
pub(crate) struct Exchange {
    taken: StrippedHeaders,
    inject: Option<(HeaderName, HeaderValue)>,
}

impl Exchange {
    /// As `route` says. `None`: the route wants a credential that is not bound to it, so that nothing
    /// may be sent.
    pub(super) fn of(route: &Route, vault: &Vault) -> Option<Self> {
        let inject = match &route.auth {
            Some(_) => Some(vault.header_for(route)?),
            None => None,
        };
        Some(Self { taken: StrippedHeaders::for_route(route), inject })
    }

    /// The query as it is sent.
    pub(super) fn query(&self, query: &str) -> String {
        if self.taken.credentials() { strip::query(query).into_owned() } else { query.to_owned() }
    }

    /// Keys of what [`Self::query`] takes out.
    pub(super) fn stripped_keys(&self, query: &str) -> Vec<String> {
        if self.taken.credentials() {
            strip::query_keys(query).map(str::to_owned).collect()
        } else {
            Vec::new()
        }
    }

    /// Whether a header of the agent is sent.
    pub(super) fn lets(&self, name: &HeaderName) -> bool {
        !self.takes(name) && self.inject.as_ref().is_none_or(|(injected, _)| injected != name)
    }

    /// Whether a header is taken out, and nothing put in its place.
    fn takes(&self, name: &HeaderName) -> bool {
        self.taken.strips(name.as_str())
    }

    /// The names of what [`Self::headers`] takes out.
    pub(super) fn stripped(&self, headers: &HeaderMap) -> Vec<String> {
        let injected = |name: &HeaderName| self.inject.as_ref().is_some_and(|(injected, _)| injected == name);
        let taken = headers.keys().filter(|name| self.takes(name) && !injected(name));
        let mut names: Vec<String> = taken.map(HeaderName::to_string).collect();
        if self.taken.credentials() && subprotocols(headers).any(strip::is_credential_subprotocol) {
            names.push(SEC_WEBSOCKET_PROTOCOL.to_string());
        }
        names
    }

    /// Changes the headers; returns the name of the one that was added.
    pub(super) fn headers(self, headers: &mut HeaderMap) -> Option<HeaderName> {
        self.take_out(headers);
        let (name, value) = self.inject?;
        headers.insert(name.clone(), value);
        Some(name)
    }

    /// Changes the trailers of the body: nothing is ever added there.
    pub(super) fn trailers(&self, trailers: &mut HeaderMap) {
        self.take_out(trailers);
        if let Some((name, _)) = &self.inject {
            trailers.remove(name);
        }
    }

    fn take_out(&self, headers: &mut HeaderMap) {
        let taken: Vec<HeaderName> = headers.keys().filter(|name| self.takes(name)).cloned().collect();
        for name in taken {
            headers.remove(name);
        }
        if self.taken.credentials() && headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
            strip_subprotocols(headers);
        }
    }
}

fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

fn strip_subprotocols(headers: &mut HeaderMap) {
    let kept: Vec<&str> = subprotocols(headers)
        .filter(|entry| !entry.is_empty() && !strip::is_credential_subprotocol(entry))
        .collect();
    let kept = kept.join(", ");
    // What was put together from parts of header values is one itself.
    match HeaderValue::try_from(kept) {
        Ok(kept) if !kept.is_empty() => headers.insert(SEC_WEBSOCKET_PROTOCOL, kept),
        _ => headers.remove(SEC_WEBSOCKET_PROTOCOL),
    };
}

#[cfg(test)]
mod tests {
    use bottle_contract::route::{Form, parse_routes};

    use super::*;

    fn route(strip: bool, inject: bool, more: &str) -> Route {
        let auth = if inject { "  auth: {scheme: header, header: x-api-key, slot: s}\n" } else { "" };
        let pass = if strip { "" } else { "  pass_credentials: true\n" };
        let yaml = format!("routes:\n- host: a.example\n{auth}{pass}{more}");
        parse_routes(&yaml, Form::Runtime).expect("routes").routes()[0].clone()
    }

    fn exchange(strip: bool, inject: bool) -> Exchange {
        let header = (HeaderName::from_static("x-api-key"), HeaderValue::from_static("real"));
        Exchange {
            taken: StrippedHeaders::for_route(&route(strip, inject, "")),
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
    fn what_the_agent_sent_goes_and_the_real_one_comes() {
        let mut headers = sent();
        headers.append("x-api-key", HeaderValue::from_static("second"));
        let added = exchange(true, true).headers(&mut headers);
        assert_eq!(added, Some(HeaderName::from_static("x-api-key")));
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
        exchange(true, false).headers(&mut headers);
        let left: Vec<_> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(left, ["realtime"]);
    }

    #[test]
    fn credentials_pass_where_the_route_says_so() {
        let mut headers = sent();
        assert_eq!(exchange(false, false).headers(&mut headers), None);
        assert_eq!(headers, sent());
        let query = "a=1&api_key=mine";
        assert_eq!(exchange(false, false).query(query), query);
        assert_eq!(exchange(true, false).query(query), "a=1");
        let lets = |strip, inject, name: &str| {
            exchange(strip, inject).lets(&HeaderName::from_bytes(name.as_bytes()).expect("name"))
        };
        assert!(lets(false, false, "x-api-key") && lets(true, false, "accept"));
        assert!(!lets(true, false, "cookie") && !lets(true, true, "x-api-key"));
    }

    #[test]
    fn what_leads_elsewhere_or_asks_for_parts_is_taken_out_where_it_matters() {
        let names = ["range", "x-rewrite-url", "x-bottle-reason", "destination", "accept", "x-csrf-token"];
        let of = |exchange: &Exchange| {
            exchange.stripped(
                &names
                    .map(|name| (HeaderName::from_static(name), HeaderValue::from_static("1")))
                    .into_iter()
                    .collect(),
            )
        };
        assert_eq!(of(&exchange(false, false)), ["x-rewrite-url", "x-bottle-reason"]);
        assert_eq!(of(&exchange(true, true)), ["range", "x-rewrite-url", "x-bottle-reason"]);
        let matches = "  matches: [{methods: [GET]}]\n";
        let bounded = Exchange {
            taken: StrippedHeaders::for_route(&route(true, false, matches)),
            ..exchange(true, false)
        };
        assert_eq!(of(&bounded), ["x-rewrite-url", "x-bottle-reason", "destination"]);
        assert_eq!(
            exchange(true, true).stripped(&sent()),
            ["authorization", "cookie", "sec-websocket-protocol"]
        );
        assert_eq!(exchange(true, true).stripped_keys("a=1&token=x"), ["token"]);
    }

    #[test]
    fn trailers_carry_no_credential_either() {
        let mut trailers = sent();
        exchange(true, true).trailers(&mut trailers);
        assert!(!trailers.contains_key("x-api-key") && trailers.contains_key("accept"));
    }
}
