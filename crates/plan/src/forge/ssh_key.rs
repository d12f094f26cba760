//! Generates an ssh key pair in memory, in the text formats of OpenSSH.
//!
//! This module implements the encoding itself. The crate `ssh-key` 0.6 depends on a second version of `sha2` and
//! `digest`, and 0.7 is a release candidate with nine additional crates.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::SecretText;
use rand::RngExt as _;
use ring::error::KeyRejected;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use zeroize::Zeroizing;

/// The name of the key algorithm in the ssh protocol.
const ALGORITHM: &[u8] = b"ssh-ed25519";

/// An ed25519 key pair for ssh.
pub struct SshKey {
    /// The private half in the format of `ssh-keygen`, without a passphrase.
    pub private: SecretText,
    /// The public half in the format of `authorized_keys`, without a comment.
    pub public: String,
}

/// Why a key pair cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    /// The random source failed.
    #[error("cannot read random bytes for a key")]
    Random,
    /// The random seed cannot be used as a key.
    #[error("cannot make a key: {0}")]
    Rejected(KeyRejected),
}

impl SshKey {
    /// Generates a random key pair.
    ///
    /// # Errors
    /// When the random source or the key generation fails.
    pub fn generate() -> Result<Self, KeyFault> {
        let mut seed = Zeroizing::new([0_u8; 32]);
        let random = ring::rand::SystemRandom::new();
        ring::rand::SecureRandom::fill(&random, seed.as_mut_slice()).map_err(|_| KeyFault::Random)?;
        let mut check = [0_u8; 4];
        rand::rng().fill(&mut check);
        Self::from_seed(&seed, check)
    }

    fn from_seed(seed: &[u8; 32], check: [u8; 4]) -> Result<Self, KeyFault> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(KeyFault::Rejected)?;
        let public = blob(pair.public_key().as_ref());
        Ok(Self {
            private: SecretText(private(seed, pair.public_key().as_ref(), &public, check)),
            public: format!("ssh-ed25519 {}", BASE64_STANDARD.encode(&public)),
        })
    }
}

/// Returns the public half in the wire format (RFC 8709).
fn blob(public: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    string(&mut bytes, ALGORITHM);
    string(&mut bytes, public);
    bytes
}

/// Returns the private half in OpenSSH's format (`PROTOCOL.key` in OpenSSH's sources), for one key without a
/// passphrase.
fn private(seed: &[u8], public: &[u8], blob: &[u8], check: [u8; 4]) -> Secret {
    let mut inner = Zeroizing::new(Vec::with_capacity(256));
    // The format contains the same random number twice. With a wrong passphrase, ssh decrypts two different numbers,
    // and thereby detects the wrong passphrase.
    inner.extend_from_slice(&check);
    inner.extend_from_slice(&check);
    string(&mut inner, ALGORITHM);
    string(&mut inner, public);
    // The seed and the public half form one string.
    inner.extend_from_slice(&length(seed.len() + public.len()));
    inner.extend_from_slice(seed);
    inner.extend_from_slice(public);
    // The comment is empty.
    string(&mut inner, b"");
    for padding in 1.. {
        if inner.len() % 8 == 0 {
            break;
        }
        inner.push(padding);
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(512));
    bytes.extend_from_slice(b"openssh-key-v1\0");
    for none in [&b"none"[..], b"none", b""] {
        string(&mut bytes, none);
    }
    bytes.extend_from_slice(&1_u32.to_be_bytes());
    string(&mut bytes, blob);
    string(&mut bytes, &inner);
    let encoded = Zeroizing::new(BASE64_STANDARD.encode(bytes.as_slice()));
    let mut text = String::with_capacity(1024);
    text.push_str("-----BEGIN OPENSSH PRIVATE KEY-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(70));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END OPENSSH PRIVATE KEY-----\n");
    Secret::new(text)
}

fn string(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(&length(text.len()));
    bytes.extend_from_slice(text);
}

/// Returns a length in ssh's encoding. No length in this module exceeds a few hundred bytes.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::Command;

    use super::*;

    /// Test vector 1 of RFC 8032, section 7.1.
    #[test]
    fn derives_the_public_half_from_the_seed() {
        let seed =
            hex::decode("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").expect("hex");
        let public =
            hex::decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a").expect("hex");
        let key = SshKey::from_seed(&seed.try_into().expect("32 bytes"), [7; 4]).expect("a key");
        assert_eq!(key.public, format!("ssh-ed25519 {}", BASE64_STANDARD.encode(blob(&public))));
    }

    #[test]
    fn generates_different_keys() {
        let [one, other] = [(); 2].map(|()| SshKey::generate().expect("a key"));
        assert_ne!(one.public, other.public);
        assert_ne!(one.private, other.private);
    }

    /// Checks the key with `ssh-keygen`, if `ssh-keygen` is installed.
    #[test]
    fn ssh_keygen_parses_the_private_key() {
        if Command::new("ssh-keygen").arg("-?").output().is_err() {
            bottle_test_support::skip::aloud(
                "ssh_keygen_parses_the_private_key",
                &"ssh-keygen is not installed",
            );
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        let key = SshKey::generate().expect("a key");
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.create_new(true).write(true).mode(0o600).open(&path).expect("a file");
        std::io::Write::write_all(&mut file, key.private.0.expose().as_bytes()).expect("written");
        let output = Command::new("ssh-keygen").arg("-y").arg("-f").arg(&path).output().expect("ssh-keygen");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), key.public);
    }
}
