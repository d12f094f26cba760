//! Converts the user's URL of a model API to the URL that the agent uses in the bottle.

use bottle_policy::names::{HTTP_PORT, HTTPS_PORT};
use bottle_policy::route::{ConnectTo, HostPattern, OWN_MACHINE};
use url::{Host, Url};

/// The address of a model API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The URL for the agent, without a trailing slash.
    pub(super) url: String,
    /// The host of the URL.
    pub(super) host: HostPattern,
    /// The port of the URL.
    pub(super) port: u16,
    /// The address that the proxy connects to instead of the URL's host.
    pub(super) connect_to: Option<ConnectTo>,
    /// The path of the URL, without a trailing slash.
    pub(super) path: String,
}

impl Endpoint {
    /// Parses a URL. A plain HTTP URL gets port 80 in the bottle. The proxy accepts requests on port 80 and forwards
    /// them to the requested port. `localhost` and loopback addresses refer to the user's machine, not to the bottle.
    ///
    /// # Errors
    /// Returns a sentence fragment that follows the name of the key and describes the problem.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|_| "must be an `https://` or `http://` URL".to_owned())?;
        let plain = match url.scheme() {
            "https" => false,
            "http" => true,
            _ => return Err("must be an `https://` or `http://` URL".to_owned()),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not contain a password; set the key with `auth_token`".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must end with its path: no `?` and no `#`".to_owned());
        }
        let named = url.host_str().unwrap_or_default();
        let own = ["localhost", "127.0.0.1", "[::1]", OWN_MACHINE].contains(&named);
        let host = if own { OWN_MACHINE } else { named };
        let requested_port = url.port_or_known_default().unwrap_or(HTTPS_PORT);
        let port = if plain { HTTP_PORT } else { requested_port };
        // The user may write a private address here, as in `connect_to`.
        let redirected = own || port != requested_port || !matches!(url.host(), Some(Host::Domain(_)));
        let path = url.path().trim_end_matches('/').to_owned();
        Ok(Self {
            url: address(plain, host, port, &path),
            host: HostPattern::parse(host)?,
            port,
            connect_to: redirected.then(|| ConnectTo { host: host.to_owned(), port: requested_port }),
            path,
        })
    }
}

fn address(plain: bool, host: &str, port: u16, path: &str) -> String {
    let (scheme, default) = if plain { ("http", HTTP_PORT) } else { ("https", HTTPS_PORT) };
    let port = if port == default { String::new() } else { format!(":{port}") };
    format!("{scheme}://{host}{port}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_urls_for_the_proxy() {
        for (text, url, port, connect_to) in [
            ("https://api.example.com", "https://api.example.com", 443, None),
            ("https://api.example.com/v1/", "https://api.example.com/v1", 443, None),
            ("https://API.example.com:8443/v1", "https://api.example.com:8443/v1", 8443, None),
            ("http://models.example/v1", "http://models.example/v1", 80, None),
            ("http://models.example:8000/v1", "http://models.example/v1", 80, Some("models.example:8000")),
            ("http://localhost:11434/v1", "http://host/v1", 80, Some("host:11434")),
            ("http://127.0.0.1:11434/v1", "http://host/v1", 80, Some("host:11434")),
            ("http://[::1]/v1", "http://host/v1", 80, Some("host:80")),
            ("http://192.168.1.5:8000/v1", "http://192.168.1.5/v1", 80, Some("192.168.1.5:8000")),
            ("https://[fd00::5]/v1", "https://[fd00::5]/v1", 443, Some("[fd00::5]:443")),
            ("https://host:8443", "https://host:8443", 8443, Some("host:8443")),
        ] {
            let endpoint = Endpoint::parse(text).expect(text);
            assert_eq!(endpoint.url, url, "{text}");
            assert_eq!(endpoint.port, port, "{text}");
            let to = endpoint.connect_to.map(|to| to.to_string());
            assert_eq!(to.as_deref(), connect_to, "{text}");
        }
        for text in [
            "",
            "api.example.com",
            "ftp://a.example",
            "https://",
            "https://u:p@a.example",
            "https://a.example/?x",
            "https://a.example/#x",
        ] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }
}
