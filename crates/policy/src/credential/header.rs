//! Formats a secret as a header value.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{Binding, Scheme};
use crate::secret::Secret;

/// A secret that cannot be sent in a header. The message never contains the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the credential `{slot}` {why}")]
pub struct BadCredential {
    /// The slot of the credential.
    pub slot: String,
    /// The problem, as a sentence fragment.
    pub why: &'static str,
}

/// Returns the header value for `secret` as it is sent. Trims surrounding whitespace and line breaks, which
/// come from the file or command that provided the secret.
///
/// # Errors
/// [`BadCredential`] if the secret is empty, or contains a line break or another character that a header
/// value cannot contain.
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
        return Err(bad("contains a line break or a character that no header can carry"));
    }
    let prefix = match binding.scheme {
        Scheme::Bearer => "Bearer ",
        Scheme::Token => "token ",
        Scheme::Basic | Scheme::Header => "",
    };
    Ok(Secret::new(format!("{prefix}{value}")))
}
