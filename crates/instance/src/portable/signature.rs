//! Signs the digests of an archive with a key of the home, and verifies signatures.
//!
//! A signature shows who exported an archive. A signature grants no permission: the importer decides what the bottle
//! may do.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use bottle_host::{files, plain_file};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// The path of the home's key, relative to `$BOTTLE_HOME`: an Ed25519 key in the format PKCS #8.
const KEY: &str = "keys/export.pk8";

/// The maximum size of the key's file in bytes. A larger file is not a key.
const KEY_MAX: u64 = 4096;

/// The text before the digests in the signed message. It ensures that a signature of this key is not valid for other
/// data.
const PURPOSE: &[u8] = b"bottle archive digests 1\n";

/// The prefix of the text form of a public key.
const PREFIX: &str = "ed25519:";

/// A public key, written as `ed25519:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let digits = text.strip_prefix(PREFIX).ok_or(BadKey::Form)?;
        let mut key = [0; 32];
        hex::decode_to_slice(digits, &mut key).map_err(|_| BadKey::Form)?;
        if has_small_order(key) {
            return Err(BadKey::SmallOrder);
        }
        Ok(Self(key))
    }
}

/// Why a string is not a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// The string has another form.
    #[error(
        "is not a public key: write `{PREFIX}` and 64 hexadecimal digits, as `bottle export --sign` prints it"
    )]
    Form,
    /// The public key is a point of small order. Anybody can make signatures that such a key accepts.
    #[error("is not a key that only one owner can sign with")]
    SmallOrder,
}

/// The `y` coordinates of all points of small order on Curve25519, little-endian: 0, 1, the two of order 8, -1, and the
/// encodings of 0 and 1 as `p` and `p + 1`, where `p` is the prime of the field. Each `y` represents the points with
/// both signs of `x`. The list is the same as in libsodium's `ge25519_has_small_order`.
const SMALL_ORDER: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

/// Whether a key is a point of small order. The library accepts signatures of such keys, although anybody can make
/// these signatures without a secret.
fn has_small_order(mut key: [u8; 32]) -> bool {
    // The highest bit is the sign of `x`.
    key[31] &= 0x7f;
    SMALL_ORDER.contains(&hex::encode(key).as_str())
}

/// The content of `bottle/signature`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The public key of the signer.
    pub key: String,
    /// The signature, in hexadecimal.
    pub signature: String,
}

impl Signature {
    /// Verifies the signature of these digests. Returns the signer's key, or `None` if the signature is wrong.
    #[must_use]
    pub fn verify(&self, digests: &[u8]) -> Option<PublicKey> {
        let key: PublicKey = self.key.parse().ok()?;
        let signature = hex::decode(&self.signature).ok()?;
        UnparsedPublicKey::new(&ED25519, key.0).verify(&[PURPOSE, digests].concat(), &signature).ok()?;
        Some(key)
    }
}

/// The key with which a home signs archives.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl SigningKey {
    /// Reads the home's key, and makes the key if it does not exist.
    ///
    /// # Errors
    /// Fails if the key cannot be read or written.
    pub fn of_home(home: &Path) -> io::Result<Self> {
        if let Some(key) = Self::existing(home)? {
            return Ok(key);
        }
        let failed = |_| io::Error::other("cannot make a key");
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let path = home.join(KEY);
        files::create_private_directory(path.parent().unwrap_or(home))?;
        files::replace_durably(&path, |file| file.write_all(document.as_ref()))?;
        Self::existing(home)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Reads the home's key. `None` if the key does not exist yet.
    ///
    /// # Errors
    /// Fails if the key cannot be read.
    pub fn existing(home: &Path) -> io::Result<Option<Self>> {
        let document = match plain_file::read(&home.join(KEY), KEY_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            document => document?,
        };
        let key = Ed25519KeyPair::from_pkcs8(&document)
            .map_err(|_| io::Error::other(format!("{KEY} is not an Ed25519 key")))?;
        Ok(Some(Self(key)))
    }

    /// Returns the public half of the key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(key)
    }

    /// Signs the digests of an archive.
    #[must_use]
    pub fn sign(&self, digests: &[u8]) -> Signature {
        let signature = self.0.sign(&[PURPOSE, digests].concat());
        Signature { key: self.public().to_string(), signature: hex::encode(signature) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_signs_only_these_digests() {
        let home = tempfile::tempdir().expect("directory");
        assert!(SigningKey::existing(home.path()).expect("read").is_none());
        let key = SigningKey::of_home(home.path()).expect("made");
        assert_eq!(SigningKey::of_home(home.path()).expect("read").public(), key.public());
        let mode = home.path().join(KEY).metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let signature = key.sign(b"digests");
        assert_eq!(signature.verify(b"digests"), Some(key.public()));
        assert_eq!(signature.verify(b"others"), None);
        let other = SigningKey::of_home(tempfile::tempdir().expect("directory").path()).expect("made");
        let forged = Signature { key: other.public().to_string(), ..signature.clone() };
        assert_eq!(forged.verify(b"digests"), None);
        for (key, text) in [("", "00"), ("ed25519:00", "00"), (&*signature.key, "zz"), (&*signature.key, "")]
        {
            let damaged = Signature { key: key.to_owned(), signature: text.to_owned() };
            assert_eq!(damaged.verify(b"digests"), None, "{key} {text}");
        }
        let text = key.public().to_string();
        assert_eq!(text.parse(), Ok(key.public()));
        assert_eq!("ed25519:xyz".parse::<PublicKey>(), Err(BadKey::Form));
    }

    #[test]
    fn a_key_that_needs_no_secret_is_refused() {
        // If the public key is the neutral element, a signature with `R = S * B` is valid for every message. Here `S =
        // 1` and `R = B`.
        let forged = "5866666666666666666666666666666666666666666666666666666666666666\
                      0100000000000000000000000000000000000000000000000000000000000000";
        let neutral = hex::decode(SMALL_ORDER[1]).expect("hexadecimal");
        let verifies = UnparsedPublicKey::new(&ED25519, neutral)
            .verify(&[PURPOSE, b"digests"].concat(), &hex::decode(forged).expect("hexadecimal"));
        assert!(verifies.is_ok(), "the library refuses such keys itself");
        for key in SMALL_ORDER {
            for sign in [0, 0x80] {
                let mut bytes = hex::decode(key).expect("hexadecimal");
                bytes[31] |= sign;
                let key = format!("{PREFIX}{}", hex::encode(bytes));
                assert_eq!(key.parse::<PublicKey>(), Err(BadKey::SmallOrder), "{key}");
                let signature = Signature { key, signature: forged.to_owned() };
                assert_eq!(signature.verify(b"digests"), None);
            }
        }
    }
}
