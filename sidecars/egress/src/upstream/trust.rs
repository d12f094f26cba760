//! The root certificates with which the proxy verifies upstream servers.
//!
//! The provisioned roots are those of the host and of `ca_bundle`. If no roots are provisioned, the proxy uses the
//! compiled-in roots. Verification cannot be disabled.
//!
//! A server may also present a certificate that is itself in the bundle, such as a self-signed certificate. As with
//! curl, the proxy then trusts the certificate without an issuer, but only for the names in the certificate and during
//! its validity period.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

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
    /// rustls rejected the roots.
    #[error("upstream roots")]
    Roots(#[from] rustls::client::VerifierBuilderError),
}

impl Trust {
    /// Trusts the roots in `pem`, or the compiled-in roots if `pem` is blank.
    ///
    /// # Errors
    /// [`TrustError`]. Single unusable certificates in a bundle are ignored, because system stores contain unusable
    /// certificates.
    pub(crate) fn from_roots(pem: &str) -> Result<Self, TrustError> {
        let (mut roots, mut listed) = (RootCertStore::empty(), Vec::new());
        if pem.trim().is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        } else {
            let certificates: Vec<CertificateDer<'static>> =
                CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?;
            let (added, ignored) = roots.add_parsable_certificates(certificates.iter().cloned());
            listed = certificates;
            if added == 0 {
                return Err(TrustError::Empty);
            }
            if ignored > 0 {
                tracing::info!(ignored, "some upstream roots are not usable");
            }
        }
        let http1 = config(roots, listed, &[b"http/1.1"])?;
        let mut any = http1.clone();
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { any: Arc::new(any), http1: Arc::new(http1) })
    }
}

fn config(
    roots: RootCertStore,
    listed: Vec<CertificateDer<'static>>,
    alpn: &[&[u8]],
) -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let issued =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { issued, listed }))
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// Verifies servers against the roots, or against the certificates of the bundle themselves.
#[derive(Debug)]
struct Verifier {
    issued: Arc<WebPkiServerVerifier>,
    /// All certificates of the bundle.
    listed: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let issued =
            self.issued.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match issued {
            Err(rustls::Error::InvalidCertificate(why)) if lacks_only_issuer(&why) => {
                if !self.listed.contains(end_entity) {
                    return Err(why.into());
                }
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            issued => issued,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.issued.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.issued.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}

/// Whether the only defect is that the certificate has no trusted issuer, or that it is itself a CA certificate. webpki
/// checks the validity period before both conditions.
fn lacks_only_issuer(why: &CertificateError) -> bool {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => true,
        CertificateError::Other(other) => {
            matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, DnType, IsCa, Issuer, KeyPair};
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    #[test]
    fn uses_compiled_in_roots_for_blank_and_rejects_broken_ones() {
        assert!(Trust::from_roots(" \n").is_ok());
        let truncated = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert!(matches!(Trust::from_roots(truncated), Err(TrustError::Pem(_))));
        assert!(matches!(Trust::from_roots("no certificate here"), Err(TrustError::Empty)));
    }

    /// Connects to a server with the certificate of `server`, trusting `bundle`. Returns the certificate's defect as
    /// the error.
    async fn connect(server: &CertifiedKey<KeyPair>, bundle: &str, name: &'static str) -> Result<(), String> {
        let key = PrivateKeyDer::Pkcs8(server.signing_key.serialize_der().into());
        let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("key");
        let shown = rustls::sign::CertifiedKey::new(vec![server.cert.der().clone()], key);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)));
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let accepted = tokio::spawn(tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(theirs));
        let trust = Trust::from_roots(bundle).expect("trust");
        let connector = tokio_rustls::TlsConnector::from(trust.any);
        let connected = connector.connect(name.try_into().expect("name"), ours).await;
        let _ = accepted.await;
        connected.map(drop).map_err(|error| error.to_string())
    }

    /// Returns a self-signed certificate for `own.example.com`. If `is_ca` is true, it is a CA certificate, as `openssl
    /// req -x509` creates it.
    fn self_signed(is_ca: bool, year: i32) -> CertifiedKey<KeyPair> {
        let signing_key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(vec!["own.example.com".to_owned()]).expect("params");
        params.distinguished_name.push(DnType::CommonName, "own.example.com");
        params.is_ca = if is_ca { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        CertifiedKey { cert: params.self_signed(&signing_key).expect("certificate"), signing_key }
    }

    #[tokio::test]
    async fn accepts_a_listed_certificate_for_its_names_and_time() {
        for is_ca in [true, false] {
            let server = self_signed(is_ca, 4000);
            let other = self_signed(is_ca, 4000);
            let own = server.cert.pem();
            assert_eq!(connect(&server, &own, "own.example.com").await, Ok(()), "{is_ca}");
            let both = format!("{}{own}", other.cert.pem());
            assert_eq!(connect(&server, &both, "own.example.com").await, Ok(()), "{is_ca}");
            for (server, bundle, name, word) in [
                (&server, &own, "other.example.com", "not valid for name"),
                (&server, &other.cert.pem(), "own.example.com", "invalid peer certificate"),
            ] {
                let error = connect(server, bundle, name).await.expect_err(name);
                assert!(error.contains(word), "{is_ca} {name}: {error}");
            }
            let expired = self_signed(is_ca, 2021);
            let error = connect(&expired, &expired.cert.pem(), "own.example.com").await.expect_err("expired");
            assert!(error.contains("expired"), "{error}");
        }
    }

    #[tokio::test]
    async fn accepts_a_listed_certificate_of_an_unlisted_issuer() {
        let issuer = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(params, issuer);
        let signing_key = KeyPair::generate().expect("key");
        let params = CertificateParams::new(vec!["own.example.com".to_owned()]).expect("params");
        let cert = params.signed_by(&signing_key, &issuer).expect("certificate");
        let server = CertifiedKey { cert, signing_key };
        assert_eq!(connect(&server, &server.cert.pem(), "own.example.com").await, Ok(()));
    }
}
