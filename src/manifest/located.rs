//! A value and the place in the file it was read from.

use bottle_contract::yaml::Spanned;
use serde::{Deserialize, Deserializer};

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

/// Through [`Spanned`], so that the contract's wire types and these come from one decoder.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        let at = Position::of(&spanned).unwrap_or(START);
        Ok(Self { value: spanned.value, at })
    }
}
