//! A value with its position in a document.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A position in a text. Lines and columns are counted from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl Position {
    /// The beginning of a text.
    pub const START: Self = Self { line: 1, column: 1 };

    pub(super) fn new(location: serde_yaml::Location) -> Option<Self> {
        (location.line() > 0).then(|| Self { line: location.line(), column: location.column() })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value with its position. Comparison ignores the position.
#[derive(Debug, Clone)]
pub struct Spanned<T> {
    /// The value that was read.
    pub value: T,
    /// The position of the first character; [`Position::START`] if the value was not read from a text.
    pub at: Position,
}

impl<T> Spanned<T> {
    /// Adds a position to a value.
    pub const fn new(value: T, at: Position) -> Self {
        Self { value, at }
    }

    /// Converts the value with `f` and keeps the position.
    ///
    /// # Errors
    /// Returns the error of `f`.
    pub fn try_map<U, E>(self, f: impl FnOnce(T) -> Result<U, E>) -> Result<Spanned<U>, E> {
        Ok(Spanned { value: f(self.value)?, at: self.at })
    }
}

/// Converts a value that was not read from a text. Its position is [`Position::START`].
impl<T> From<T> for Spanned<T> {
    fn from(value: T) -> Self {
        Self::new(value, Position::START)
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Spanned<T> {}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// The struct name with which [`Spanned`] asks the decoder for a line, a column and a value. Deserializers for other
/// formats provide only the value.
pub(super) const MARKER: &str = "$bottle::Spanned";

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(MARKER, SpannedVisitor(PhantomData))
    }
}

struct SpannedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SpannedVisitor<T> {
    type Value = Spanned<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or its line, column and value")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Spanned<T>, D::Error> {
        T::deserialize(inner).map(Spanned::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Spanned<T>, A::Error> {
        let missing = || A::Error::custom("a value came without its position");
        let line = parts.next_element()?.ok_or_else(missing)?;
        let column = parts.next_element()?.ok_or_else(missing)?;
        let value = parts.next_element()?.ok_or_else(missing)?;
        Ok(Spanned { value, at: Position { line, column } })
    }
}
