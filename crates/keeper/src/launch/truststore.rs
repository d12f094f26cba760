//! Builds the truststore of Java programs, which read neither PEM files nor the variables for certificates.
//!
//! The format of the truststore is JKS, because every version of Java reads JKS, even without the password. In PKCS#12,
//! the entries would need attributes that Oracle defines. Java's documentation of `KeyStore` does not describe the
//! bytes of the format. `sun.security.provider.JavaKeyStore` reads the layout below. All numbers are big-endian:
//!
//! ```text
//! | FEEDFEED | 2 | count | entry … | SHA-1 of the password (UTF-16), "Mighty Aphrodite" and everything before |
//! entry: | 2 (trusted certificate) | alias | date (u64, ms) | "X.509" | length | certificate (DER) |
//! ```

use std::io;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const MAGIC: u32 = 0xFEED_FEED;
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;

/// The password of the truststores that come with Java. The hash protects a file only against accidental changes.
const PASSWORD: &str = "changeit";

/// Returns a truststore with the certificates of a PEM text. Omits a certificate that cannot be parsed, because Java
/// rejects a truststore that contains such a certificate.
///
/// # Errors
/// When the PEM encoding is not valid, or when there are more certificates than the format can count.
pub(super) fn of_pem(pem: &str) -> io::Result<Vec<u8>> {
    let mut certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    certificates.retain(|certificate| webpki::anchor_from_trusted_cert(certificate).is_ok());
    let mut store = Vec::with_capacity(pem.len());
    for number in [MAGIC, VERSION, length(&certificates)?] {
        store.extend(number.to_be_bytes());
    }
    for (index, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED_CERTIFICATE.to_be_bytes());
        text(&mut store, &format!("bottle-{index}"))?;
        store.extend(0_u64.to_be_bytes());
        text(&mut store, "X.509")?;
        store.extend(length(certificate)?.to_be_bytes());
        store.extend_from_slice(certificate);
    }
    let mut sum = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    for unit in PASSWORD.encode_utf16() {
        sum.update(&unit.to_be_bytes());
    }
    sum.update(b"Mighty Aphrodite");
    sum.update(&store);
    store.extend_from_slice(sum.finish().as_ref());
    Ok(store)
}

/// Appends an ASCII text with its length in two bytes.
fn text(store: &mut Vec<u8>, text: &str) -> io::Result<()> {
    let length = u16::try_from(text.len()).map_err(io::Error::other)?;
    store.extend(length.to_be_bytes());
    store.extend_from_slice(text.as_bytes());
    Ok(())
}

fn length<T>(list: &[T]) -> io::Result<u32> {
    u32::try_from(list.len()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use bottle_test_support::authority::Authority;

    use super::*;

    #[test]
    fn omits_a_certificate_that_java_could_not_parse() {
        let good = Authority::new("good").expect("authority");
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let store = of_pem(&[bad, good.pem(), bad].concat()).expect("a truststore");
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 1]);
        let certificate = CertificateDer::from_pem_slice(good.pem().as_bytes()).expect("PEM");
        assert_eq!(store[store.len() - 20 - certificate.len()..store.len() - 20], *certificate);
        assert_eq!(of_pem("").expect("an empty truststore").len(), 12 + 20);
    }
}
