//! A certificate authority for one test.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

/// Signs leaf certificates for fake servers. Only tests that configure it trust it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A deliberate defect of a leaf certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leaf {
    /// None: valid for the requested names.
    #[default]
    Valid,
    /// Expired in 1991.
    Expired,
    /// Self-signed.
    SelfSigned,
    /// Valid, but sent after its issuer's certificate.
    WrongOrder,
}

/// The protocols a server offers in its hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alpn {
    /// HTTP/2, else HTTP/1.1.
    #[default]
    Both,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone.
    Http2,
}

impl Authority {
    /// Makes a fresh authority called `name`.
    ///
    /// # Errors
    /// When the random source or the encoder fails.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("authority key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).context("authority certificate")?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes the authority's certificate to `path`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_pem(&self, path: &Path) -> Result<()> {
        std::fs::write(path, &self.pem).with_context(|| format!("write {}", path.display()))
    }

    /// A server's TLS configuration with one leaf for all of `names` (host names or IP addresses).
    ///
    /// # Errors
    /// When a name is none.
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
        // Unlike rustls's own, which looks whether key and certificate belong together.
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
