//! `egress.upstream_proxy`: a corporate HTTP proxy between this proxy and the internet.
//!
//! All traffic goes through CONNECT tunnels of the corporate proxy. The corporate proxy resolves the names, so this
//! proxy can check only addresses that a request contains literally.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bottle_policy::secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bounds;

/// The corporate proxy's address and credentials.
pub(crate) struct CorporateProxy {
    /// Host name or address.
    pub(crate) host: String,
    /// Port; 80 if the URL contains no port.
    pub(crate) port: u16,
    /// `user:password`, encoded for HTTP Basic authentication.
    authorization: Option<Secret>,
}

/// Why the URL of the corporate proxy cannot be used. The error omits the URL, which may contain a password.
#[derive(Debug, thiserror::Error)]
#[error("egress.upstream_proxy is not an http:// URL of a proxy: {0}")]
pub(crate) struct BadProxyUrl(&'static str);

/// Why the corporate proxy did not open a tunnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("the upstream proxy did not answer in time")]
    Timeout,
    #[error("the upstream proxy")]
    Io(#[source] io::Error),
    #[error("the upstream proxy answered {0}")]
    Status(u16),
    #[error("the upstream proxy did not answer with HTTP")]
    NotHttp,
}

impl CorporateProxy {
    /// Parses `http://[user:password@]host[:port]`.
    ///
    /// # Errors
    /// [`BadProxyUrl`] with the problem.
    pub(crate) fn parse(url: &Secret) -> Result<Self, BadProxyUrl> {
        let uri: http::Uri = url.expose().parse().map_err(|_| BadProxyUrl("it does not parse"))?;
        if uri.scheme_str() != Some("http") {
            return Err(BadProxyUrl("the scheme is not http"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(BadProxyUrl("it has a path"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(BadProxyUrl("no host"))?;
        let userinfo = uri.authority().and_then(|a| a.as_str().rsplit_once('@')).map(|(u, _)| u);
        let authorization = userinfo.map(basic);
        Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(80), authorization })
    }

    /// Sends a CONNECT request for `host:port` over `stream`, which is a connection to the corporate proxy.
    ///
    /// # Errors
    /// [`ProxyError`] if the corporate proxy does not open the tunnel.
    pub(crate) async fn connect(
        &self,
        stream: &mut TcpStream,
        host: &str,
        port: u16,
    ) -> Result<(), ProxyError> {
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some(authorization) = &self.authorization {
            request.push_str("Proxy-Authorization: Basic ");
            request.push_str(authorization.expose());
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        let request = Secret::new(request);
        let exchange = async {
            stream.write_all(request.expose().as_bytes()).await?;
            read_head(stream).await
        };
        let head = timeout(bounds::CONNECT_WITHIN, exchange)
            .await
            .map_err(|_| ProxyError::Timeout)?
            .map_err(ProxyError::Io)?;
        match status(&head) {
            Some(200..=299) => Ok(()),
            Some(code) => Err(ProxyError::Status(code)),
            None => Err(ProxyError::NotHttp),
        }
    }
}

fn basic(userinfo: &str) -> Secret {
    let decoded = percent_encoding::percent_decode_str(userinfo).collect::<Vec<u8>>();
    Secret::new(STANDARD.encode(decoded))
}

/// Reads the head of the response, exactly up to the blank line. The bytes after the blank line belong to the tunnel.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == bounds::PROXY_ANSWER_BYTES {
            return Err(io::Error::other("its answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

fn status(head: &[u8]) -> Option<u16> {
    let line = head.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_urls_and_omits_passwords_from_errors() {
        let parse = |url: &str| CorporateProxy::parse(&Secret::new(url.to_owned()));
        let proxy = parse("http://u%40x:p@proxy.corp:3128/").expect("proxy");
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.corp", 3128));
        let encoded = proxy.authorization.expect("authorization");
        assert_eq!(encoded.expose(), STANDARD.encode("u@x:p"));
        assert_eq!(parse("http://[::1]").map(|p| (p.host, p.port)).expect("v6"), ("[::1]".into(), 80));
        for bad in ["https://u:pass@p", "http://u:pass@p/x", "p:3128", "", "http://"] {
            let error = parse(bad).err().expect(bad).to_string();
            assert!(!error.contains("pass"), "{error}");
        }
    }

    #[test]
    fn parses_status_lines() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407 No\r\n\r\n"), Some(407));
        assert_eq!(status(b"SSH-2.0-x\r\n\r\n"), None);
        assert_eq!(status(b"HTTP/1.1"), None);
    }
}
