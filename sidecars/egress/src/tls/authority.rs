//! The certificate authority of one bottle.
//!
//! The authority is generated when the proxy is provisioned and serves one launch of one bottle. The authority's key
//! exists only in this process's memory: no function writes or returns it.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose, SerialNumber,
};

/// The time by which a certificate is backdated, because the clock of a guest in a virtual machine may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// How long the authority is valid: longer than any bottle runs. A resumed bottle gets a new authority.
const AUTHORITY_LIVES: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Signs leaf certificates for one bottle.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Generates an authority. Users see `name` (the slug) in lists of certificates.
    ///
    /// # Errors
    /// [`rcgen::Error`] if the system provides no randomness.
    pub(crate) fn make(name: &str) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("bottle proxy of {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid(&mut params, AUTHORITY_LIVES);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// Returns the certificate that the bottle must trust, PEM.
    pub(crate) fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate with `params` for `key`.
    pub(super) fn sign(
        &self,
        params: &CertificateParams,
        key: &KeyPair,
    ) -> Result<rcgen::Certificate, rcgen::Error> {
        params.signed_by(key, &self.issuer)
    }
}

/// Sets the validity of `params` (from [`CLOCK_SKEW`] ago until `lives` from now) and a random serial number.
pub(super) fn valid(params: &mut CertificateParams, lives: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + (now + lives);
    // RFC 5280 requires a positive serial number, so the first byte is between 1 and 127.
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 1;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}
