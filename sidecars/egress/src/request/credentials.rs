//! Step 7, the credentials: what the agent sent goes, what the route adds comes.

use bottle_contract::credential::strip;
use bottle_contract::route::Route;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::vault::Vault;

/// What happens to the credentials of one request.
#[derive(Clone)]
pub(crate) struct Exchange {
    strip: bool,
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
        Some(Self { strip: !route.pass_credentials, inject })
    }

    /// The query as it is sent.
    pub(super) fn query(&self, query: &str) -> String {
        if self.strip { strip::query(query).into_owned() } else { query.to_owned() }
    }

    /// Whether a header of the agent is sent.
    pub(super) fn lets(&self, name: &HeaderName) -> bool {
        let stripped = self.strip && strip::is_credential_header(name.as_str());
        !stripped && self.inject.as_ref().is_none_or(|(injected, _)| injected != name)
    }

    /// Changes the headers; returns the name of the one that was added.
    pub(super) fn headers(self, headers: &mut HeaderMap) -> Option<HeaderName> {
        if self.strip {
            strip_headers(headers);
        }
        let (name, value) = self.inject?;
        headers.insert(name.clone(), value);
        Some(name)
    }

    /// Changes the trailers of the body: nothing is ever added there.
    pub(super) fn trailers(&self, trailers: &mut HeaderMap) {
        if self.strip {
            strip_headers(trailers);
        }
        if let Some((name, _)) = &self.inject {
            trailers.remove(name);
        }
    }
}

fn strip_headers(headers: &mut HeaderMap) {
    let credentials: Vec<HeaderName> =
        headers.keys().filter(|name| strip::is_credential_header(name.as_str())).cloned().collect();
    for name in credentials {
        headers.remove(name);
    }
    if headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        strip_subprotocols(headers);
    }
}

fn strip_subprotocols(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().cloned().collect();
    let kept: Vec<&str> = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|entry| !entry.is_empty() && !strip::is_credential_subprotocol(entry))
        .collect();
    // What was put together from parts of header values is one itself.
    match HeaderValue::try_from(kept.join(", ")) {
        Ok(kept) if !kept.is_empty() => headers.insert(SEC_WEBSOCKET_PROTOCOL, kept),
        _ => headers.remove(SEC_WEBSOCKET_PROTOCOL),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(strip: bool, inject: bool) -> Exchange {
        let header = (HeaderName::from_static("x-api-key"), HeaderValue::from_static("real"));
        Exchange { strip, inject: inject.then_some(header) }
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
        assert!(!lets(true, false, "cookie") && !lets(false, true, "x-api-key"));
    }

    #[test]
    fn trailers_carry_no_credential_either() {
        let mut trailers = sent();
        exchange(true, true).trailers(&mut trailers);
        assert!(!trailers.contains_key("x-api-key") && trailers.contains_key("accept"));
    }
}
