//! Parses `known_hosts` files (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").
//!
//! This module exists because the `ssh-key` crate parses the lines but does not match hosts, ports, patterns or hashes.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

use super::files::FileError;

/// The maximum number of bytes that are read from one `known_hosts` file. The rest of the file is ignored.
const FILE_MAX: u64 = 256 << 10;

/// Returns the contents of `files`, joined into one text. Files that do not exist are skipped.
///
/// # Errors
/// Returns [`FileError`] if a file exists but cannot be read.
pub fn read(files: &[PathBuf]) -> Result<String, FileError> {
    let mut text = String::new();
    for path in files {
        let read = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(FileError::read(path, error)),
            _ => text.push('\n'),
        }
    }
    Ok(text)
}

/// Whether `text` contains a key or a certificate authority for the host and port. As in ssh, an entry
/// without a port is valid for every port.
#[must_use]
pub fn knows(text: &str, host: &str, port: Option<u16>) -> bool {
    let host = host.to_ascii_lowercase();
    let names = match port {
        Some(port) if port != 22 => vec![format!("[{host}]:{port}"), host],
        _ => vec![host],
    };
    text.lines().any(|line| names.iter().any(|name| is_for(line, name)))
}

/// Whether a line contains a key for this host name.
fn is_for(line: &str, name: &str) -> bool {
    let mut words = line.split_ascii_whitespace().peekable();
    // Skips comments and revoked keys.
    if words.next_if(|word| *word == "@cert-authority").is_none()
        && words.peek().is_none_or(|word| word.starts_with(['@', '#']))
    {
        return false;
    }
    let (Some(hosts), Some(_), Some(_)) = (words.next(), words.next(), words.next()) else { return false };
    match hosts.strip_prefix("|1|") {
        Some(hashed) => is_hash_of(hashed, name).unwrap_or(false),
        None => {
            let matches =
                |pattern: &str| glob_matches(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            let negated = |pattern: &str| pattern.strip_prefix('!').is_some_and(matches);
            hosts.split(',').any(matches) && !hosts.split(',').any(negated)
        }
    }
}

/// Whether `hashed`, which has the form `SALT|HASH`, is the hash of this host name. Returns `None` if
/// `hashed` is malformed.
fn is_hash_of(hashed: &str, name: &str) -> Option<bool> {
    let (salt, hash) = hashed.split_once('|')?;
    let [salt, hash] = [BASE64_STANDARD.decode(salt).ok()?, BASE64_STANDARD.decode(hash).ok()?];
    // The file format requires SHA-1. Security does not depend on the strength of SHA-1 here.
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    Some(hmac::verify(&key, name.as_bytes(), &hash).is_ok())
}

/// Whether `name` matches a pattern, in which `*` matches any text and `?` matches one character. The function
/// backtracks only to the last `*`, so that a pattern with many `*` does not take exponential time.
fn glob_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut pos, mut star) = (0, 0, None);
    while pos < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, pos));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[pos] => {
                at += 1;
                pos += 1;
            }
            _ => match star {
                Some((star_at, star_pos)) => {
                    star = Some((star_at, star_pos + 1));
                    (at, pos) = (star_at + 1, star_pos + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_hosts_as_ssh_does() {
        for (line, host, port, known) in [
            ("git.example.com ssh-ed25519 AAAA", "git.example.com", None, true),
            ("git.example.com ssh-ed25519 AAAA", "Git.Example.com", Some(22), true),
            ("git.example.com,192.0.2.1 ssh-ed25519 AAAA", "192.0.2.1", None, true),
            ("git.example.com ssh-ed25519 AAAA", "example.com", None, false),
            ("git.example.com ssh-ed25519 AAAA", "git.example.com", Some(2222), true),
            ("[git.example.com]:2222 ssh-ed25519 AAAA", "git.example.com", Some(2222), true),
            ("[git.example.com]:2222 ssh-ed25519 AAAA", "git.example.com", None, false),
            ("*.example.com ssh-ed25519 AAAA", "git.example.com", None, true),
            ("*.example.com,!git.example.com ssh-ed25519 AAAA", "git.example.com", None, false),
            ("gi?.example.com ssh-ed25519 AAAA", "git.example.com", None, true),
            ("!git.example.com ssh-ed25519 AAAA", "git.example.com", None, false),
            ("@cert-authority *.example.com ssh-ed25519 AAAA", "git.example.com", None, true),
            ("@revoked git.example.com ssh-ed25519 AAAA", "git.example.com", None, false),
            ("# git.example.com ssh-ed25519 AAAA", "git.example.com", None, false),
            ("git.example.com", "git.example.com", None, false),
            ("|1|nonsense", "git.example.com", None, false),
            ("|1|AAAA|AAAA ssh-ed25519 AAAA", "git.example.com", None, false),
            ("", "git.example.com", None, false),
        ] {
            assert_eq!(knows(&format!("\n{line}\n"), host, port), known, "{line} {host} {port:?}");
        }
    }

    /// Compares the result with that of `ssh-keygen`, if `ssh-keygen` is installed.
    #[test]
    fn finds_names_hashed_by_ssh_keygen() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("known_hosts");
        let key = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
        std::fs::write(
            &path,
            format!("one.example.com ssh-ed25519 {key}\n[two.example.com]:7 ssh-ed25519 {key}\n"),
        )
        .expect("written");
        let hashed = std::process::Command::new("ssh-keygen").arg("-H").arg("-f").arg(&path).output();
        if !hashed.is_ok_and(|done| done.status.success()) {
            bottle_test_support::skip::aloud(
                "finds_names_hashed_by_ssh_keygen",
                &"ssh-keygen is not installed",
            );
            return;
        }
        let text = read(&[path, directory.path().join("none")]).expect("read");
        assert!(text.contains("|1|") && !text.contains("example"), "{text}");
        assert!(knows(&text, "one.example.com", None) && knows(&text, "two.example.com", Some(7)));
        assert!(!knows(&text, "two.example.com", None) && !knows(&text, "three.example.com", None));
    }

    #[test]
    fn a_pattern_with_many_stars_terminates() {
        let pattern = "*a".repeat(2000);
        assert!(!knows(&format!("{pattern} ssh-ed25519 AAAA"), &"a".repeat(1999), None));
    }
}
