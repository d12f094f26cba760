//! How a secret is put into its header.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{Binding, Scheme};
use crate::secret::Secret;

/// A secret that no header can carry. The value is not in the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the credential `{slot}` {why}")]
pub struct BadCredential {
    /// Which one.
    pub slot: String,
    /// What is wrong with it, as a fragment.
    pub why: &'static str,
}

/// The value of `binding`'s header for `secret`, as it goes over the wire. Spaces and line breaks around
/// the secret are dropped: they come from the file or command it was read from.
///
/// # Errors
/// [`BadCredential`] when the secret is empty, or holds a line break or anything else that would end the
/// header or split it.
pub fn header_value(binding: &Binding, secret: &Secret) -> Result<Secret, BadCredential> {
    let value = secret.expose().trim();
    let bad = |why| BadCredential { slot: binding.slot.clone(), why };
    if value.is_empty() {
        return Err(bad("is empty"));
    }
    if binding.scheme == Scheme::Basic {
        if !value.contains(':') {
            return Err(bad("is for `basic` and has no colon; write `user:password`"));
        }
        let encoded = Zeroizing::new(STANDARD.encode(value));
        return Ok(Secret::new(format!("Basic {}", *encoded)));
    }
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(bad("holds a line break or a character that no header can carry"));
    }
    let prefix = match binding.scheme {
        Scheme::Bearer => "Bearer ",
        Scheme::Token => "token ",
        Scheme::Basic | Scheme::Header => "",
    };
    Ok(Secret::new(format!("{prefix}{value}")))
}
