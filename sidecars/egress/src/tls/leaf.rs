//! Mints leaf certificates for the names that the bottle connects to.
//!
//! All leaves share one key (the bottle trusts the authority for every name anyway), so minting is one signature. The
//! cache is bounded by number and age. The bottle chooses the names in it, and only the certificate depends on them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;

use super::authority::{Authority, valid};
use crate::bounds;

/// Well below the limits of clients (398 days), far above the cache's age.
const LEAF_LIVES: Duration = Duration::from_secs(30 * 24 * 3600);

/// A cached certificate is minted again after this time, so a bottle that runs for months never sees an expired one.
const LEAF_KEPT: Duration = Duration::from_secs(24 * 3600);

/// ALPN protocols offered to the bottle, preferred first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Mints and caches TLS server configurations, one for each name.
pub struct Leaves {
    authority: Authority,
    key: KeyPair,
    signing_key: Arc<dyn rustls::sign::SigningKey>,
    base: ServerConfig,
    cache: moka::sync::Cache<String, Arc<ServerConfig>>,
}

/// A certificate or TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// The name is not valid in a certificate.
    #[error("certificate for {name:?}")]
    Mint {
        /// The requested name.
        name: String,
        /// rcgen's error.
        source: rcgen::Error,
    },
    /// rustls rejected the key or the protocol versions.
    #[error("TLS towards the bottle")]
    Tls(#[from] rustls::Error),
    /// The authority or the leaves' key could not be generated.
    #[error("bottle authority")]
    Authority(#[from] rcgen::Error),
}

impl Leaves {
    /// Generates an authority for the bottle `name` and a key for its leaves.
    ///
    /// # Errors
    /// [`LeafError`] when the system has no randomness.
    pub fn make(name: &str) -> Result<Self, LeafError> {
        let authority = Authority::make(name)?;
        let key = KeyPair::generate()?;
        let der = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let signing_key = rustls::crypto::ring::sign::any_supported_type(&der)?;
        let base = base_config()?;
        let cache = moka::sync::Cache::builder().max_capacity(bounds::LEAVES).time_to_live(LEAF_KEPT).build();
        Ok(Self { authority, key, signing_key, base, cache })
    }

    /// The authority's certificate, PEM.
    #[must_use]
    pub fn authority_certificate(&self) -> String {
        self.authority.certificate()
    }

    /// The configuration that presents `name` (a canonical host name or address).
    ///
    /// # Errors
    /// [`LeafError::Mint`] when `name` is not valid in a certificate.
    pub fn config_for(&self, name: &str) -> Result<Arc<ServerConfig>, LeafError> {
        if let Some(config) = self.cache.get(name) {
            return Ok(config);
        }
        let config = Arc::new(self.mint(name)?);
        self.cache.insert(name.to_owned(), Arc::clone(&config));
        Ok(config)
    }

    fn mint(&self, name: &str) -> Result<ServerConfig, LeafError> {
        let certificate =
            self.certificate(name).map_err(|source| LeafError::Mint { name: name.to_owned(), source })?;
        let certified = CertifiedKey::new(vec![certificate], Arc::clone(&self.signing_key));
        let mut config = self.base.clone();
        config.cert_resolver = Arc::new(Presents(Arc::new(certified)));
        Ok(config)
    }

    fn certificate(&self, name: &str) -> Result<CertificateDer<'static>, rcgen::Error> {
        let mut params = CertificateParams::default();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        params.subject_alt_names = vec![match bare.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.try_into()?),
        }];
        params.distinguished_name = DistinguishedName::new();
        // A common name has at most 64 characters; clients read the alternative name.
        if name.len() <= 64 {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, LEAF_LIVES);
        Ok(self.authority.sign(&params, &self.key)?.der().clone())
    }
}

/// The shared configuration: protocol versions, ALPN, one key for session tickets.
fn base_config() -> Result<ServerConfig, LeafError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Nothing));
    config.alpn_protocols = ALPN.iter().map(|protocol| protocol.to_vec()).collect();
    // Stateless tickets: resumption costs the proxy no memory per client.
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// Presents one certificate, whatever the `ClientHello` contains: the name is settled before.
#[derive(Debug)]
struct Presents(Arc<CertifiedKey>);

impl ResolvesServerCert for Presents {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Presents nothing: the base configuration is only a template.
#[derive(Debug)]
struct Nothing;

impl ResolvesServerCert for Nothing {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mints_each_name_once_and_rejects_invalid_names() {
        let leaves = Leaves::make("test").expect("leaves");
        let first = leaves.config_for("api.example.com").expect("first");
        let again = leaves.config_for("api.example.com").expect("again");
        assert!(Arc::ptr_eq(&first, &again));
        for name in ["127.0.0.1", "[::1]", &"a.".repeat(120)] {
            assert!(leaves.config_for(name).is_ok(), "{name}");
        }
        assert!(leaves.config_for("höst").is_err());
    }

    #[test]
    fn the_cache_stays_within_its_bound() {
        let leaves = Leaves::make("test").expect("leaves");
        for n in 0..bounds::LEAVES + 50 {
            leaves.config_for(&format!("h{n}.example.com")).expect("config");
        }
        leaves.cache.run_pending_tasks();
        assert!(leaves.cache.entry_count() <= bounds::LEAVES);
    }
}
