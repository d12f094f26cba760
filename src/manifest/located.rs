//! A value and the place in the file it was read from.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

pub use bottle_contract::yaml::Position;

/// The beginning of a file.
pub const START: Position = Position { line: 1, column: 1 };

/// A value and where it stands. Two are equal when their values are: the place is not content.
#[derive(Debug, Clone)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it begins.
    pub at: Position,
}

impl<T> Located<T> {
    /// A value at a place.
    pub const fn new(value: T, at: Position) -> Self {
        Self { value, at }
    }

    /// The same place with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: f(self.value), at: self.at }
    }

    /// The same place with another value, or why there is none.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn try_map<U, E>(self, f: impl FnOnce(T) -> Result<U, E>) -> Result<Located<U>, E> {
        Ok(Located { value: f(self.value)?, at: self.at })
    }
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Located<T> {}

/// By this name the manifest's decoder recognises a [`Located`] and answers with (line, column, value).
pub(super) const MARKER: &str = "$bottle::Located";

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(MARKER, LocatedVisitor(PhantomData))
    }
}

struct LocatedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LocatedVisitor<T> {
    type Value = Located<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with its place, from a manifest's decoder")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Located<T>, A::Error> {
        let missing = || A::Error::custom("a value came without its place");
        let line = parts.next_element()?.ok_or_else(missing)?;
        let column = parts.next_element()?.ok_or_else(missing)?;
        let value = parts.next_element()?.ok_or_else(missing)?;
        Ok(Located { value, at: Position { line, column } })
    }
}
