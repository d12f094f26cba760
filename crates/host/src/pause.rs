//! A duration in the settings that can be 0.

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

/// A duration, or the number 0.
pub(super) struct Pause(pub(super) String);

impl<'de> Deserialize<'de> for Pause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationOrZero;
        impl Visitor<'_> for DurationOrZero {
            type Value = Pause;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration, as in `10m`, or 0")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Pause, E> {
                Ok(Pause(number.to_string()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pause, E> {
                Ok(Pause(text.to_owned()))
            }
        }
        deserializer.deserialize_any(DurationOrZero)
    }
}
