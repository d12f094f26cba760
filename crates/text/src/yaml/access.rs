//! Serde access to a node's list items, map entries and position.

use serde::de::value::U64Deserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess};

use super::decode::At;
use super::error::inert;
use super::{Node, Position, YamlError};

/// Serde access to the items of a list.
pub(super) struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'a> Items<'a> {
    pub(super) fn new(items: &'a [Node]) -> Self {
        Self { items: items.iter().enumerate() }
    }
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = YamlError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, YamlError> {
        let Some((index, item)) = self.items.next() else { return Ok(None) };
        seed.deserialize(At(item)).map(Some).map_err(|error| error.within(format!("[{index}]")))
    }
}

/// Serde access to the entries of a map.
pub(super) struct Fields<'a> {
    entries: &'a [(Node, Node)],
    next: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(entries: &'a [(Node, Node)]) -> Self {
        Self { entries, next: 0 }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = YamlError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, YamlError> {
        let Some((key, _)) = self.entries.get(self.next) else { return Ok(None) };
        seed.deserialize(At(key)).map(Some).map_err(|error| error.placed(key.at))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, YamlError> {
        let (key, value) = self
            .entries
            .get(self.next)
            .ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
        self.next += 1;
        seed.deserialize(At(value)).map_err(|error| error.within(inert(key.text())))
    }
}

/// Serde access to the three parts of a [`Spanned`](super::Spanned): line, column and value.
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
    type Error = YamlError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, YamlError> {
        let number = |n: u64| -> U64Deserializer<YamlError> { n.into_deserializer() };
        let Position { line, column } = self.node.at;
        self.next += 1;
        match self.next {
            1 => seed.deserialize(number(line)).map(Some),
            2 => seed.deserialize(number(column)).map(Some),
            3 => seed.deserialize(At(self.node)).map(Some),
            _ => Ok(None),
        }
    }
}
