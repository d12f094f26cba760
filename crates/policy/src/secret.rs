//! A string whose value is never printed.

use std::fmt;

use serde::{Deserialize, Deserializer};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A secret value in memory. `Debug` prints a placeholder. `Display` and `Serialize` are not implemented.
/// Dropping the value wipes its memory.
///
/// A secret is serialized only into a session frame: a wire type names [`on_channel`] in an attribute of the field. The
/// wire types therefore show every message that carries a secret.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret(String);

impl Secret {
    /// Takes ownership of `value`. The caller must wipe all earlier copies of the value.
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(value)
    }

    /// Returns the secret value. Every call must be reviewed.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// Serializes the value into a session frame. A field names this function with `#[serde(serialize_with =
/// "secret::on_channel")]`.
///
/// Only the keeper, the bundle and the guest hold the sockets and pipes that carry frames. Frames are never
/// written to disk or logged.
///
/// # Errors
/// Fails only if the serializer fails.
pub fn on_channel<S: serde::Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_value() {
        let secret = Secret::new("hunter2-hunter2".to_owned());
        assert_eq!(format!("{secret:?}"), "[secret]");
    }
}
