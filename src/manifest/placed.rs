//! Deserializes a value with its position from the YAML library.
//!
//! The library's own `Spanned` allocates a string, compares field names and builds two locations for every value: a
//! tenth of the time of a resolve. This reads the same data by its fixed order and stops early. The names are not
//! part of the library's documented interface; `decode::tests::every_value_has_its_position` fails if they change.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::located::{Located, Position};

/// The struct name by which `Spanned` requests a value with its position.
pub(super) const SPANNED: &str = "__yaml_spanned";
/// The first key of the data; `value`, `referenced` and `defined` follow.
pub(super) const SPANNED_OPENING: &str = "__serde_saphyr_private_spanned";

/// A value from the YAML library with the position of its use.
pub(super) struct Placed<T>(pub(super) Located<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Placed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(SPANNED, PlacedVisitor(PhantomData))
    }
}

struct PlacedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PlacedVisitor<T> {
    type Value = Placed<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with its place, from the YAML library")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Placed<T>, D::Error> {
        inner.deserialize_any(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut answer: A) -> Result<Placed<T>, A::Error> {
        let missing = || A::Error::custom("a value came without its place");
        let (IgnoredAny, IgnoredAny) = answer.next_entry()?.ok_or_else(missing)?;
        let (IgnoredAny, value) = answer.next_entry()?.ok_or_else(missing)?;
        let (IgnoredAny, Place(at)) = answer.next_entry()?.ok_or_else(missing)?;
        Ok(Placed(Located { value, at }))
    }
}

/// The line and column, which are the first fields of a location.
struct Place(Position);

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Location", &["line", "column"], PlaceVisitor)
    }
}

struct PlaceVisitor;

impl<'de> Visitor<'de> for PlaceVisitor {
    type Value = Place;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a location")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut location: A) -> Result<Place, A::Error> {
        let missing = || A::Error::custom("a location came without line or column");
        let (IgnoredAny, line) = location.next_entry()?.ok_or_else(missing)?;
        let (IgnoredAny, column) = location.next_entry()?.ok_or_else(missing)?;
        Ok(Place(Position { line, column }))
    }
}
