//! One verified connection to a site of the world for the host's own purposes, made as the proxy makes its own:
//! the same look-up of names, the same trust, the same deadlines.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::upstream::dial::Dialer;
use crate::upstream::names::Names;
use crate::upstream::trust::Trust;
use crate::upstream::{Target, UpstreamError};

/// Why there is no connection; nothing was sent over it.
#[derive(Debug, thiserror::Error)]
pub enum HostConnectorError {
    /// The roots cannot be used.
    #[error("{0}")]
    Roots(String),
    /// No connection, or a certificate that does not hold.
    #[error("{0}")]
    Unreachable(String),
}

/// Connects to `host` (a name, or an address as it stands in a URL) and opens TLS, for HTTP/1.1. The certificate
/// has to hold by `roots`, PEM, or by the compiled-in ones when that is blank. Any address may be reached: the
/// host is one that a user named.
///
/// # Errors
/// [`HostConnectorError`], naming the host and the step that failed.
pub async fn connect(
    host: &str,
    port: u16,
    roots: &str,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static, HostConnectorError> {
    let trust = Trust::in_roots(roots).map_err(|error| HostConnectorError::Roots(error.to_string()))?;
    let dialer =
        Dialer { names: Names::of_this_host(), host_addresses: Vec::new(), machine: None, proxy: None };
    let target = Target { host: host.to_owned(), port, tls: true, private: true, connect_to: None };
    let connected = dialer.dial(&target, &Arc::clone(&trust.http1)).await;
    connected.map_err(|error: UpstreamError| HostConnectorError::Unreachable(error.to_string()))
}
