//! The certificate authorities that this machine trusts.

use std::fmt::Write;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// A bundle of every root in the world is about 220 KB; a file this large is not one.
const BUNDLE_MAX: u64 = 4 << 20;

/// The machine's roots as PEM. A machine without any gives an empty text; the proxy then uses the roots
/// compiled into it. Reads every file of the machine's store.
#[must_use]
pub fn of_this_machine() -> String {
    let mut pem = String::new();
    for certificate in rustls_native_certs::load_native_certs().certs {
        push(&mut pem, &certificate);
    }
    pem
}

/// A file of further roots (`egress.ca_bundle`), PEM.
///
/// # Errors
/// A sentence naming the file, when it cannot be read or holds no certificate.
pub fn bundle(path: &Path) -> Result<String, String> {
    let about = |why: String| format!("egress.ca_bundle {}: {why}", path.display());
    let size = std::fs::metadata(path).map_err(|error| about(error.to_string()))?.len();
    if size > BUNDLE_MAX {
        return Err(about("larger than any bundle of roots".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| about(error.to_string()))?;
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(about("holds no PEM certificate".to_owned()));
    }
    Ok(text)
}

/// RFC 7468: base64 in lines of 64 characters between two labels.
fn push(pem: &mut String, der: &[u8]) {
    let text = BASE64_STANDARD.encode(der);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
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
    fn what_is_written_is_read_as_a_certificate() {
        let mut pem = String::new();
        push(&mut pem, &[7; 100]);
        let lines: Vec<_> = pem.lines().collect();
        assert_eq!(lines.first(), Some(&"-----BEGIN CERTIFICATE-----"));
        assert_eq!(BASE64_STANDARD.decode(lines[1..lines.len() - 1].concat()).expect("base64"), [7; 100]);
    }

    #[test]
    fn a_bundle_that_is_none_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let error = bundle(file.path()).expect_err("an empty bundle");
        assert!(error.contains("holds no PEM certificate"), "{error}");
        let error = bundle(Path::new("/nowhere/roots.pem")).expect_err("a missing bundle");
        assert!(error.contains("/nowhere/roots.pem"), "{error}");
    }
}
