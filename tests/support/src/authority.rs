//! A certificate authority for one test.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

/// Signs certificates of fake servers. Only tests that configure this authority trust it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// An intentional defect of a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leaf {
    /// No defect: the certificate is valid for the requested names.
    #[default]
    Valid,
    /// The certificate expired in 1991.
    Expired,
    /// The certificate is self-signed.
    SelfSigned,
    /// The certificate is valid, but is sent after the certificate of its issuer.
    WrongOrder,
}

/// The protocols that a server offers in the TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alpn {
    /// HTTP/2, and otherwise HTTP/1.1.
    #[default]
    Both,
    /// Only HTTP/1.1.
    Http1,
    /// Only HTTP/2.
    Http2,
}

impl Authority {
    /// Creates a new authority with this name.
    ///
    /// # Errors
    /// Returns an error if the random source or the encoder fails.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("authority key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).context("authority certificate")?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Returns the certificate of the authority.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes the certificate of the authority to `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write_pem(&self, path: &Path) -> Result<()> {
        std::fs::write(path, &self.pem).with_context(|| format!("write {}", path.display()))
    }

    /// Returns a certificate that is valid for all of `names`, and its private key, as PEM.
    ///
    /// # Errors
    /// Returns an error if one of the names is invalid.
    pub fn leaf_pem(&self, names: &[&str]) -> Result<(String, String)> {
        let key = KeyPair::generate().context("leaf key")?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).context("leaf names")?;
        let certificate = params.signed_by(&key, &self.issuer).context("leaf certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Returns the TLS configuration of a server. Its certificate is valid for all of `names`, which are host
    /// names or IP addresses.
    ///
    /// # Errors
    /// Returns an error if one of the names is invalid.
    pub fn server_config(&self, names: &[&str], leaf: Leaf, alpn: Alpn) -> Result<Arc<ServerConfig>> {
        let key = KeyPair::generate().context("leaf key")?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).context("leaf names")?;
        params.use_authority_key_identifier_extension = true;
        if leaf == Leaf::Expired {
            params.not_before = rcgen::date_time_ymd(1990, 1, 1);
            params.not_after = rcgen::date_time_ymd(1991, 1, 1);
        }
        let certificate = match leaf {
            Leaf::SelfSigned => params.self_signed(&key),
            _ => params.signed_by(&key, &self.issuer),
        };
        let certificate = certificate.context("leaf certificate")?.der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let chain = match leaf {
            Leaf::WrongOrder => vec![CertificateDer::from_pem_slice(self.pem.as_bytes())?, certificate],
            _ => vec![certificate],
        };
        // Unlike rustls's own function, this does not check whether key and certificate belong together.
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        let shown = Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key)));
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_cert_resolver(shown);
        config.alpn_protocols = match alpn {
            Alpn::Both => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Alpn::Http1 => vec![b"http/1.1".to_vec()],
            Alpn::Http2 => vec![b"h2".to_vec()],
        };
        Ok(Arc::new(config))
    }
}
