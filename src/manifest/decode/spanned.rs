//! Passes positions from the tree to our [`Located`](crate::manifest::Located) and to the
//! [`Spanned`](bottle_contract::yaml::Spanned) of the contract's wire types.

use serde::de::value::{MapDeserializer, StrDeserializer, U64Deserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::At;
use super::error::DecodeError;
use crate::manifest::located::Position;
use crate::manifest::placed::SPANNED_OPENING;
use crate::manifest::yaml::Node;

/// A node as the map that `Spanned` reads: `value`, and its position as `referenced` and `defined`.
pub(super) struct WithPlace<'a>(pub(super) &'a Node);

impl<'de> Deserializer<'de> for WithPlace<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_map(PlaceFields { node: self.0, next: 0 })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct PlaceFields<'a> {
    node: &'a Node,
    next: usize,
}

impl<'de> MapAccess<'de> for PlaceFields<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let keys = [SPANNED_OPENING, "value", "referenced", "defined"];
        let Some(key) = keys.get(self.next) else { return Ok(None) };
        let key: StrDeserializer<'_, DecodeError> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        self.next += 1;
        if self.next <= 2 {
            return seed.deserialize(At(self.node));
        }
        let Position { line, column } = self.node.at;
        seed.deserialize(MapDeserializer::new([("line", line), ("column", column)].into_iter()))
    }
}

/// A node as the three parts of a `Located`: line, column, value.
pub(super) struct Parts<'a> {
    node: &'a Node,
    next: u8,
}

impl<'a> Parts<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self { node, next: 0 }
    }
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let number = |n: u64| -> U64Deserializer<DecodeError> { n.into_deserializer() };
        self.next += 1;
        match self.next {
            1 => seed.deserialize(number(self.node.at.line)).map(Some),
            2 => seed.deserialize(number(self.node.at.column)).map(Some),
            3 => seed.deserialize(At(self.node)).map(Some),
            _ => Ok(None),
        }
    }
}
