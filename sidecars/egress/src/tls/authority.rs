//! The bottle's own certificate authority.
//!
//! Generated when the proxy is provisioned, for one launch of one bottle. Its key stays in this process's memory:
//! nothing here writes or returns it.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose, SerialNumber,
};

/// A bottle's guest may run in a virtual machine whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// Longer than any bottle runs; a resumed bottle gets a new authority.
const AUTHORITY_LIVES: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Signs leaf certificates for one bottle.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Generates an authority; users see `name` (the slug) in lists of certificates.
    ///
    /// # Errors
    /// [`rcgen::Error`] when the system has no randomness.
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

    /// The certificate that the bottle must trust, PEM.
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

/// Makes `params` valid from a day ago until `lives` from now, with a random serial number.
pub(super) fn valid(params: &mut CertificateParams, lives: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + (now + lives);
    // Positive and never zero, as RFC 5280 requires: the first byte is 1..=127.
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 1;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}
