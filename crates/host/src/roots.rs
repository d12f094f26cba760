//! Reads the root certificates that this machine trusts.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// The maximum size of a bundle of root certificates in bytes. If the machine's bundle file is larger, it is not used.
/// If the file of `egress.ca_bundle` is larger, it is an error. A bundle of all public root certificates has about 220
/// KB.
const BUNDLE_MAX: u64 = 4 << 20;

/// The label that precedes a certificate in a PEM file (RFC 7468).
const OPENING: &str = "-----BEGIN CERTIFICATE-----";

/// Returns the machine's root certificates as PEM. If the machine has none, the text is empty, and the proxy uses its
/// built-in root certificates.
#[must_use]
pub fn of_this_machine() -> String {
    let has_directory = std::env::var_os("SSL_CERT_DIR").is_some();
    let bundle = if has_directory { None } else { read_bundle_file() };
    bundle.unwrap_or_else(read_store)
}

/// Reads the distribution's bundle file, which curl uses too. Reading one file is fifty times faster than reading a
/// directory with hundreds of files. [`of_this_machine`] does not call this function if the user has set
/// `SSL_CERT_DIR`.
fn read_bundle_file() -> Option<String> {
    if cfg!(not(target_os = "linux")) {
        return None;
    }
    read(&openssl_probe::probe().cert_file?).ok().filter(|text| text.contains(OPENING))
}

fn read_store() -> String {
    let mut pem = String::new();
    for certificate in rustls_native_certs::load_native_certs().certs {
        push(&mut pem, &certificate);
    }
    pem
}

/// Reads a file of at most [`BUNDLE_MAX`] bytes.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BUNDLE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BUNDLE_MAX {
        return Err(io::Error::other("larger than a bundle of root certificates may be"));
    }
    Ok(text)
}

/// Returns the machine's root certificates, followed by those of the bottle's `egress.ca_bundle`.
///
/// # Errors
/// Returns [`CaBundleError`] if the file of `egress.ca_bundle` cannot be used.
pub fn with_bundle(machine: &str, ca_bundle: Option<&Path>) -> Result<String, CaBundleError> {
    let own = ca_bundle.map(bundle).transpose()?.unwrap_or_default();
    Ok(format!("{machine}{own}"))
}

/// Reads a PEM file of additional root certificates.
///
/// # Errors
/// Returns [`CaBundleError`] if the file cannot be read, or contains no certificate.
fn bundle(path: &Path) -> Result<String, CaBundleError> {
    let about = |source| CaBundleError { path: path.to_owned(), source };
    let text = read(path).map_err(about)?;
    if !text.contains(OPENING) {
        return Err(about(io::Error::other("contains no PEM certificate")));
    }
    Ok(text)
}

/// Why a file with additional root certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("egress.ca_bundle {}", path.display())]
pub struct CaBundleError {
    path: PathBuf,
    source: io::Error,
}

/// Appends a certificate as PEM (RFC 7468): base64 in lines of 64 characters between two labels.
fn push(pem: &mut String, der: &[u8]) {
    let text = BASE64_STANDARD.encode(der);
    pem.push_str(OPENING);
    pem.push('\n');
    for line in text.as_bytes().chunks(64) {
        // Writing to a String cannot fail, and base64 is ASCII.
        let _ = writeln!(pem, "{}", String::from_utf8_lossy(line));
    }
    pem.push_str("-----END CERTIFICATE-----\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_a_certificate_as_pem() {
        let mut pem = String::new();
        push(&mut pem, &[7; 100]);
        let lines: Vec<_> = pem.lines().collect();
        assert_eq!(lines.first(), Some(&OPENING));
        assert_eq!(BASE64_STANDARD.decode(lines[1..lines.len() - 1].concat()).expect("base64"), [7; 100]);
    }

    #[test]
    fn the_bundle_file_has_no_more_roots_than_the_store() {
        let Some(one) = read_bundle_file() else {
            // If there is no bundle file, [`of_this_machine`] reads the directory of certificates.
            return assert!(openssl_probe::probe().cert_file.is_none() || cfg!(not(target_os = "linux")));
        };
        let all = read_store();
        let (one, all) = (one.matches(OPENING).count(), all.matches(OPENING).count());
        assert!(one > 0 && one <= all, "{one} of {all}");
    }

    #[test]
    fn refuses_a_file_without_certificates() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let error = bundle(file.path()).expect_err("an empty bundle");
        assert_eq!(error.source.to_string(), "contains no PEM certificate");
        let error = bundle(Path::new("/nowhere/roots.pem")).expect_err("a missing bundle");
        assert!(error.to_string().contains("/nowhere/roots.pem"), "{error}");
    }
}
