//! The way a value's place reaches [`bottle_contract::yaml::Spanned`] from a tree.

use serde::de::value::{MapDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};

use super::At;
use super::error::DecodeError;
use crate::manifest::located::Position;
use crate::manifest::yaml::Node;

/// The name by which the YAML library's `Spanned` asks for a value together with its place, and the key
/// that opens the answer. Neither is part of the library's documented interface;
/// `spans_reach_every_value` notices should one of them change.
pub(super) const SPANNED: &str = "__yaml_spanned";
const SPANNED_OPENING: &str = "__serde_saphyr_private_spanned";

/// A node as the map that `Spanned` reads: `value`, and its place as `referenced` and `defined`.
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
