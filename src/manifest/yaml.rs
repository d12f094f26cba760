//! Parses YAML into a tree of values with type and position.
//!
//! Limits and strictness are those of [`bottle_contract::yaml`], the only YAML parser. The tree adds two things: the
//! spelling of a scalar decides its type (`8080` is a number, `"8080"` a string), and every value keeps its position.

use std::fmt;

use bottle_contract::yaml::{self, YamlError};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::error::Fault;
use super::located::{Located, Position, START};
use super::placed::Placed;

/// A value with its position.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

impl Node {
    /// The text of a string; empty for other types.
    pub(super) fn text(&self) -> &str {
        match &self.value {
            Value::Text(text) => text,
            _ => "",
        }
    }
}

/// Compares values and ignores positions.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A YAML value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// Keys are [`Value::Text`].
    Map(Vec<(Node, Node)>),
}

impl Value {
    /// The type for messages, with its article.
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

/// Parses one document. An empty one is an empty map.
pub(super) fn parse(text: &str) -> Result<Node, Fault> {
    let root: Node = yaml::from_str(text).map_err(|error| fault(&error))?;
    Ok(match root.value {
        Value::Null => Node { at: START, value: Value::Map(Vec::new()) },
        _ => root,
    })
}

fn fault(error: &YamlError) -> Fault {
    let fault = Fault::new(error.at.unwrap_or(START), format!("cannot parse the YAML: {}", error.problem));
    // An unquoted sentence with a colon causes this, often in a subagent's description.
    if error.problem.contains("mapping values are not allowed") {
        return fault.hint("put text that contains `: ` in quotes");
    }
    fault
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Placed(Located { value, at }) = Placed::deserialize(deserializer)?;
        Ok(Self { at, value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
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
        while let Some((Placed(key), value)) = entries.next_entry()? {
            map.push((Node { at: key.at, value: Value::Text(key.value) }, value));
        }
        Ok(Value::Map(map))
    }
}
