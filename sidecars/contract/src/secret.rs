//! A string that will not print.

use std::fmt;

use serde::{Deserialize, Deserializer};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// A secret value in memory: `Debug` shows a placeholder, there is no `Display` and no `Serialize`,
/// and the memory is wiped when it is dropped.
///
/// The one way it leaves the process is a session frame, through [`on_channel`] on the field of a
/// wire type, so that a reader of the wire types sees every place where a secret travels.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret(String);

impl Secret {
    /// Takes ownership of `value`; copies made before this call are the caller's to wipe.
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(value)
    }

    /// The value itself. Every call is a place to review.
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

/// `#[serde(serialize_with = "secret::on_channel")]`: writes the value into a session frame.
///
/// Frames go over a socket or pipe that only the keeper, the bundle and the guest hold; they are
/// never written to disk or logged.
///
/// # Errors
/// Only what the serializer itself reports.
pub fn on_channel<S: serde::Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_the_value() {
        let secret = Secret::new("hunter2-hunter2".to_owned());
        assert_eq!(format!("{secret:?}"), "[secret]");
    }
}
