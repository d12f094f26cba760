//! Field types and serde hooks that make a derived `Deserialize` strict.

use std::fmt;

use serde::de::{Error, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `#[serde(default, deserialize_with = "yaml::present")]`: a key may be absent but not empty. `matches:`
/// with no value must not mean "no condition".
///
/// # Errors
/// If the value is null, and errors of `T`.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    match Option::<T>::deserialize(deserializer)? {
        Some(value) => Ok(Some(value)),
        None => Err(D::Error::custom("a value is missing here; write one or leave the key out")),
    }
}

/// A number or boolean by YAML type: rejects the strings `"443"` and `'true'`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strict<T>(pub T);

impl<T: Serialize> Serialize for Strict<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Strict<bool> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Boolean;
        impl Visitor<'_> for Boolean {
            type Value = bool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true` or `false`")
            }

            fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
                Ok(value)
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<bool, E> {
                Err(E::custom("write `true` or `false`, without quotes"))
            }
        }
        deserializer.deserialize_any(Boolean).map(Self)
    }
}

/// Whole numbers: one visitor, with a bound for each width.
macro_rules! strict_number {
    ($($number:ty),*) => {$(
        impl<'de> Deserialize<'de> for Strict<$number> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = deserializer.deserialize_any(WholeNumber { most: u64::from(<$number>::MAX) })?;
                <$number>::try_from(value).map(Self).map_err(D::Error::custom)
            }
        }
    )*};
}
strict_number!(u8, u16, u32, u64);

struct WholeNumber {
    most: u64,
}

impl WholeNumber {
    fn type_error<E: Error>(&self) -> E {
        E::custom(format_args!("expected {}", ExpectedBy(self)))
    }
}

struct ExpectedBy<'a>(&'a WholeNumber);

impl fmt::Display for ExpectedBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }
}

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {}, without quotes", self.most)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        if value <= self.most { Ok(value) } else { Err(self.type_error()) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(self.type_error()),
        }
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<u64, E> {
        Err(self.type_error())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<u64, E> {
        Err(self.type_error())
    }

    fn visit_unit<E: Error>(self) -> Result<u64, E> {
        Err(self.type_error())
    }
}

/// A known key without a use yet. Accepts any value, so that the error can be about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved;

impl<'de> Deserialize<'de> for Reserved {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl Serialize for Reserved {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}
