//! Issues leaf certificates for the names that the bottle connects to.
//!
//! All leaf certificates share one key, so issuing a certificate takes a single signature. Sharing the key does not
//! weaken security, because the bottle trusts the authority for every name. The cache is limited in size and age. The
//! bottle determines which names are in the cache, but only the issued certificates depend on these names.

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

/// How long a leaf certificate is valid. The time is far below the limit of clients (398 days) and far above
/// [`LEAF_KEPT`], the maximum age in the cache.
const LEAF_LIVES: Duration = Duration::from_secs(30 * 24 * 3600);

/// After this time a cached certificate is issued again, so a bottle that runs for months never receives an expired
/// certificate.
const LEAF_KEPT: Duration = Duration::from_secs(24 * 3600);

/// ALPN protocols offered to the bottle, in order of preference. `curl --http1.0` offers only the last protocol.
const ALPN: [&[u8]; 3] = [b"h2", b"http/1.1", b"http/1.0"];

/// Issues and caches TLS server configurations, one for each name.
pub struct Leaves {
    authority: Authority,
    key: KeyPair,
    signing_key: Arc<dyn rustls::sign::SigningKey>,
    base: ServerConfig,
    cache: moka::sync::Cache<String, Arc<ServerConfig>>,
}

/// Why a certificate or TLS configuration cannot be created.
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
    /// [`LeafError`] if the system provides no randomness.
    pub fn make(name: &str) -> Result<Self, LeafError> {
        let authority = Authority::make(name)?;
        let key = KeyPair::generate()?;
        let der = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let signing_key = rustls::crypto::ring::sign::any_supported_type(&der)?;
        let base = base_config()?;
        let cache = moka::sync::Cache::builder().max_capacity(bounds::LEAVES).time_to_live(LEAF_KEPT).build();
        Ok(Self { authority, key, signing_key, base, cache })
    }

    /// Returns the authority's certificate, PEM.
    #[must_use]
    pub fn authority_certificate(&self) -> String {
        self.authority.certificate()
    }

    /// Returns the TLS configuration with a certificate for `name` (a canonical host name or address).
    ///
    /// # Errors
    /// [`LeafError::Mint`] if `name` is not valid in a certificate.
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
        // A common name has at most 64 characters, so a longer name is only in the subject alternative name. Clients
        // use the subject alternative name.
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

/// Returns the settings that all names share: protocol versions, ALPN, one key for session tickets.
fn base_config() -> Result<ServerConfig, LeafError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Nothing));
    config.alpn_protocols = ALPN.iter().map(|protocol| protocol.to_vec()).collect();
    // The tickets are stateless, so that session resumption needs no memory for each client.
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// Presents one certificate and ignores the `ClientHello`, because the host name is already known.
#[derive(Debug)]
struct Presents(Arc<CertifiedKey>);

impl ResolvesServerCert for Presents {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Presents no certificate. Used only in [`base_config`].
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
