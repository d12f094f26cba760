//! The certificate authorities that this machine trusts.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// A bundle of every root in the world is about 220 KB; a file this large is not one.
const BUNDLE_MAX: u64 = 4 << 20;

/// What opens a certificate in a PEM file (RFC 7468).
const OPENING: &str = "-----BEGIN CERTIFICATE-----";

/// The machine's roots as PEM. A machine without any gives an empty text; the proxy then uses the roots
/// compiled into it.
#[must_use]
pub fn of_this_machine() -> String {
    let folder_named = std::env::var_os("SSL_CERT_DIR").is_some();
    let one = if folder_named { None } else { in_one_file() };
    one.unwrap_or_else(of_the_whole_store)
}

/// Linux distributions keep every root in one file besides their folder of hundreds: fifty times faster to read. It
/// is the file that curl goes by; where a folder is named by the user (`SSL_CERT_DIR`), that counts too.
fn in_one_file() -> Option<String> {
    if cfg!(not(target_os = "linux")) {
        return None;
    }
    read(&openssl_probe::probe().cert_file?).ok().filter(|text| text.contains(OPENING))
}

fn of_the_whole_store() -> String {
    let mut pem = String::new();
    for certificate in rustls_native_certs::load_native_certs().certs {
        push(&mut pem, &certificate);
    }
    pem
}

/// A file that may be a bundle of roots, by its size.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BUNDLE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BUNDLE_MAX {
        return Err(io::Error::other("larger than any bundle of roots"));
    }
    Ok(text)
}

/// A file of further roots (`egress.ca_bundle`), PEM.
///
/// # Errors
/// A sentence naming the file, when it cannot be read or holds no certificate.
pub fn bundle(path: &Path) -> Result<String, String> {
    let about = |why: String| format!("egress.ca_bundle {}: {why}", path.display());
    let text = read(path).map_err(|error| about(error.to_string()))?;
    if !text.contains(OPENING) {
        return Err(about("holds no PEM certificate".to_owned()));
    }
    Ok(text)
}

/// RFC 7468: base64 in lines of 64 characters between two labels.
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
    fn what_is_written_is_read_as_a_certificate() {
        let mut pem = String::new();
        push(&mut pem, &[7; 100]);
        let lines: Vec<_> = pem.lines().collect();
        assert_eq!(lines.first(), Some(&OPENING));
        assert_eq!(BASE64_STANDARD.decode(lines[1..lines.len() - 1].concat()).expect("base64"), [7; 100]);
    }

    #[test]
    fn the_one_file_has_no_other_roots_than_the_store() {
        let Some(one) = in_one_file() else {
            // Not here; then it is the store that counts.
            return assert!(openssl_probe::probe().cert_file.is_none() || cfg!(not(target_os = "linux")));
        };
        let all = of_the_whole_store();
        let (one, all) = (one.matches(OPENING).count(), all.matches(OPENING).count());
        assert!(one > 0 && one <= all, "{one} of {all}");
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
