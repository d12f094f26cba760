//! Decodes a YAML tree into any type, strictly.
//!
//! The serde deserializer `At` reads a [`Node`] and makes no implicit conversions: a string is not a number, a number
//! is not a string, and an empty value is not a missing value. The deserializer adds the path
//! (`egress.routes[2].host`), the position and the actual type to serde's errors.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Visitor};

use super::access::{Fields, Items, Parts};
use super::spanned::MARKER;
use super::{Node, Value, YamlError};

/// Decodes `node` as a `T`.
///
/// # Errors
/// Returns a [`YamlError`] with the path and the position of the wrong value.
pub fn decode<T: DeserializeOwned>(node: &Node) -> Result<T, YamlError> {
    T::deserialize(At(node))
}

/// A deserializer that reads one node.
#[derive(Clone, Copy)]
pub(super) struct At<'a>(pub(super) &'a Node);

impl At<'_> {
    fn wrong<T>(self, wanted: &str) -> Result<T, YamlError> {
        Err(YamlError::wrong_type(self.0, wanted))
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.0.value {
            Value::Integer(n) => match (u64::try_from(n), i64::try_from(n)) {
                (Ok(n), _) => visitor.visit_u64(n),
                (_, Ok(n)) => visitor.visit_i64(n),
                _ => Err(YamlError::predicate("is out of range".to_owned(), None)),
            },
            _ => self.wrong("a whole number"),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match &self.0.value {
            Value::Text(text) => visitor.visit_str(text),
            _ => self.wrong("a string"),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match &self.0.value {
            Value::List(items) => visitor.visit_seq(Items::new(items)),
            _ => self.wrong("a list"),
        }
    }

    fn map<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match &self.0.value {
            Value::Map(entries) => visitor.visit_map(Fields::new(entries)),
            _ => self.wrong("a map"),
        }
    }
}

/// Generates methods that decode one kind of value and add the value's position to errors.
macro_rules! placed {
    ($($method:ident => $read:ident),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
            self.$read(visitor).map_err(|error| error.placed(self.0.at))
        }
    )+};
}

impl<'de> Deserializer<'de> for At<'_> {
    type Error = YamlError;

    placed! {
        deserialize_i8 => integer, deserialize_i16 => integer, deserialize_i32 => integer,
        deserialize_i64 => integer, deserialize_u8 => integer, deserialize_u16 => integer,
        deserialize_u32 => integer, deserialize_u64 => integer,
        deserialize_str => text, deserialize_string => text, deserialize_char => text,
        deserialize_identifier => text,
        deserialize_seq => list, deserialize_map => map,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match &self.0.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(_) => self.integer(visitor),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(_) => self.list(visitor),
            Value::Map(_) => self.map(visitor),
        }
        .map_err(|error| error.placed(self.0.at))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.0.value {
            Value::Bool(value) => visitor.visit_bool(value),
            _ => self.wrong("true or false"),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.0.value {
            // The conversion is exact for integers up to 2^53. The keys for fractional numbers reject larger numbers.
            #[allow(clippy::cast_precision_loss)]
            Value::Integer(n) => visitor.visit_f64(n as f64),
            Value::Float(n) => visitor.visit_f64(n),
            _ => self.wrong("a number"),
        }
        .map_err(|error: YamlError| error.placed(self.0.at))
    }

    /// A key that is present must have a value. An empty value is a type error. It does not mean that the key is
    /// absent.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        match name {
            MARKER => visitor.visit_seq(Parts::new(self.0)),
            _ => visitor.visit_newtype_struct(self),
        }
        .map_err(|error| error.placed(self.0.at))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        match &self.0.value {
            Value::Text(word) => visitor.visit_enum(StrDeserializer::<YamlError>::new(word)),
            _ => self.wrong("a string"),
        }
        .map_err(|error| error.placed(self.0.at))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 bytes byte_buf unit unit_struct tuple tuple_struct
    }
}
