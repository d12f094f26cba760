//! Opens verified TLS connections for the host process, with the proxy's name resolution, trust store and deadlines.

use tokio::io::{AsyncRead, AsyncWrite};

use crate::upstream::dial::Dialer;
use crate::upstream::dns_lookup::HostResolver;
use crate::upstream::trust::{Trust, TrustError};
use crate::upstream::{Target, UpstreamError};

/// The connection failed before any request was sent over it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HostConnectorError(#[from] Failure);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Roots(#[from] TrustError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

/// Connects to `host` (a name, or an address as written in a URL) with TLS for HTTP/1.1. The certificate must verify
/// against `roots` (PEM), or against the compiled-in roots if `roots` is blank. All addresses are permitted, including
/// private ones, because the user configured the host.
///
/// # Errors
/// [`HostConnectorError`] with the host and the step that failed.
pub async fn connect(
    host: &str,
    port: u16,
    roots: &str,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static, HostConnectorError> {
    let trust = Trust::from_roots(roots).map_err(Failure::from)?;
    let dialer = Dialer {
        resolver: HostResolver::from_host(),
        host_addresses: Vec::new(),
        machine: None,
        proxy: None,
    };
    let target = Target { host: host.to_owned(), port, tls: true, private: true, connect_to: None };
    Ok(dialer.dial(&target, &trust.http1).await.map_err(Failure::from)?)
}
