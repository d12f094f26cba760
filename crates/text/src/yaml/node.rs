//! A YAML document as a tree of values, each with its type and position.
//!
//! The spelling of a scalar determines its type: `8080` is a number, `"8080"` is a string.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::Position;

/// A value with its position.
#[derive(Debug, Clone)]
pub struct Node {
    /// The position of the first character.
    pub at: Position,
    /// The value that begins at this position.
    pub value: Value,
}

impl Node {
    /// Returns the text of a string. Returns an empty text for other types.
    #[must_use]
    pub fn text(&self) -> &str {
        match &self.value {
            Value::Text(text) => text,
            _ => "",
        }
    }

    /// Returns the entries of a map, each a key and a value. Returns `None` for other types.
    pub fn entries_mut(&mut self) -> Option<&mut Vec<(Node, Node)>> {
        match &mut self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }
}

/// Compares the values and ignores the positions.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A YAML value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value: an empty value, `~` or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without a fraction.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the document. Keys are [`Value::Text`].
    Map(Vec<(Node, Node)>),
}

impl Value {
    /// Returns the name of the type, with an article, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "empty",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let serde_yaml::Spanned { value, referenced, .. } = serde_yaml::Spanned::deserialize(deserializer)?;
        Ok(Self { at: Position::new(referenced).unwrap_or(Position::START), value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

/// A key of a map, always read as text.
struct Key(Node);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = serde_yaml::Spanned::<String>::deserialize(deserializer)?;
        let at = Position::new(key.referenced).unwrap_or(Position::START);
        Ok(Self(Node { at, value: Value::Text(key.value) }))
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((Key(key), value)) = entries.next_entry()? {
            map.push((key, value));
        }
        Ok(Value::Map(map))
    }
}
