//! Which hosts ssh knows on this machine, as `known_hosts` files have it (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").

use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

/// As much of a file as is read.
const FILE_MAX: u64 = 256 << 10;

/// The text of all these files that are there.
///
/// # Errors
/// A sentence that names the one that cannot be read.
pub fn read(files: &[PathBuf]) -> Result<String, String> {
    let mut text = String::new();
    for path in files {
        let read = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(format!("cannot read {}: {error}", path.display()));
            }
            _ => text.push('\n'),
        }
    }
    Ok(text)
}

/// Whether `text` has a key, or an authority, for the host and port. As ssh has it, a host that is known without
/// a port is known on every port.
#[must_use]
pub fn knows(text: &str, host: &str, port: Option<u16>) -> bool {
    let host = host.to_ascii_lowercase();
    let names = match port {
        Some(port) if port != 22 => vec![format!("[{host}]:{port}"), host],
        _ => vec![host],
    };
    text.lines().any(|line| names.iter().any(|name| is_for(line, name)))
}

/// Whether a line gives this name a key.
fn is_for(line: &str, name: &str) -> bool {
    let mut words = line.split_ascii_whitespace().peekable();
    // One that was taken back is no key, and a comment is none either.
    if words.next_if(|word| *word == "@cert-authority").is_none()
        && words.peek().is_none_or(|word| word.starts_with(['@', '#']))
    {
        return false;
    }
    let (Some(hosts), Some(_), Some(_)) = (words.next(), words.next(), words.next()) else { return false };
    match hosts.strip_prefix("|1|") {
        Some(hashed) => is_hash_of(hashed, name).unwrap_or(false),
        None => {
            let fits = |pattern: &str| fits(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            let refused = |pattern: &str| pattern.strip_prefix('!').is_some_and(fits);
            hosts.split(',').any(fits) && !hosts.split(',').any(refused)
        }
    }
}

/// `SALT|HASH`, where names are not to be read off the file.
fn is_hash_of(hashed: &str, name: &str) -> Option<bool> {
    let (salt, hash) = hashed.split_once('|')?;
    let [salt, hash] = [BASE64_STANDARD.decode(salt).ok()?, BASE64_STANDARD.decode(hash).ok()?];
    // The format's own choice; nothing here rests on its strength.
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    Some(hmac::verify(&key, name.as_bytes(), &hash).is_ok())
}

/// `*` is anything, `?` one character. Goes back to the last `*` alone, so that it ends soon for any pattern.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of, mut star) = (0, 0, None);
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[of] => {
                at += 1;
                of += 1;
            }
            _ => match star {
                Some((star_at, star_of)) => {
                    star = Some((star_at, star_of + 1));
                    (at, of) = (star_at + 1, star_of + 1);
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
    fn a_host_is_known_as_ssh_knows_it() {
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

    /// The judge is the program whose format it is, where it is there.
    #[test]
    fn names_that_ssh_hashed_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("known_hosts");
        let key = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
        std::fs::write(
            &path,
            format!("one.example.com ssh-ed25519 {key}\n[two.example.com]:7 ssh-ed25519 {key}\n"),
        )
        .expect("written");
        let hashed = std::process::Command::new("ssh-keygen").arg("-H").arg("-f").arg(&path).output();
        if !hashed.is_ok_and(|done| done.status.success()) {
            bottle_test_support::skip::aloud(
                "names_that_ssh_hashed_are_found",
                &"there is no ssh-keygen here",
            );
            return;
        }
        let text = read(&[path, folder.path().join("none")]).expect("read");
        assert!(text.contains("|1|") && !text.contains("example"), "{text}");
        assert!(knows(&text, "one.example.com", None) && knows(&text, "two.example.com", Some(7)));
        assert!(!knows(&text, "two.example.com", None) && !knows(&text, "three.example.com", None));
    }

    #[test]
    fn a_pattern_of_many_stars_ends() {
        let pattern = "*a".repeat(2000);
        assert!(!knows(&format!("{pattern} ssh-ed25519 AAAA"), &"a".repeat(1999), None));
    }
}
