//! The root certificates with which the proxy verifies upstream servers.
//!
//! The roots are the provisioned roots (those of the host and of `ca_bundle`), or the compiled-in roots if none are
//! provisioned. Verification cannot be disabled.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The TLS client configurations for upstream connections.
#[derive(Clone)]
pub(crate) struct Trust {
    /// Offers HTTP/2 and HTTP/1.1.
    pub(crate) any: Arc<ClientConfig>,
    /// Offers HTTP/1.1 only, for WebSockets.
    pub(crate) http1: Arc<ClientConfig>,
}

/// Why the root certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    /// The text is not PEM.
    #[error("upstream roots are not PEM")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The text contains no usable root certificate.
    #[error("upstream roots contain no usable certificate")]
    Empty,
    /// rustls rejected its default settings.
    #[error("TLS towards upstream")]
    Tls(#[from] rustls::Error),
}

impl Trust {
    /// Trusts the roots in `pem`, or the compiled-in roots if `pem` is blank.
    ///
    /// # Errors
    /// [`TrustError`]. Single unusable certificates in a bundle are ignored, because system stores contain some.
    pub(crate) fn from_roots(pem: &str) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        if pem.trim().is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        } else {
            let certificates: Vec<CertificateDer<'_>> =
                CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?;
            let (added, ignored) = roots.add_parsable_certificates(certificates);
            if added == 0 {
                return Err(TrustError::Empty);
            }
            if ignored > 0 {
                tracing::info!(ignored, "some upstream roots are not usable");
            }
        }
        let http1 = config(roots, &[b"http/1.1"])?;
        let mut any = http1.clone();
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { any: Arc::new(any), http1: Arc::new(http1) })
    }
}

fn config(roots: RootCertStore, alpn: &[&[u8]]) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_compiled_in_roots_for_blank_and_rejects_broken_ones() {
        assert!(Trust::from_roots(" \n").is_ok());
        let truncated = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert!(matches!(Trust::from_roots(truncated), Err(TrustError::Pem(_))));
        assert!(matches!(Trust::from_roots("no certificate here"), Err(TrustError::Empty)));
    }
}
