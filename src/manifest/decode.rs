//! The tree → the wire types of [`super::schema`], strictly.
//!
//! A serde deserializer over [`Node`] that converts nothing: a string is not a number, a number is not
//! a string, an empty value is not a missing one. What it adds to serde's errors is the path
//! (`egress.routes[2].host`), the place, the type that was found, and the key that was probably meant.

use serde::de::value::{MapDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::error::{Fault, listed};
use super::located::{Located, Position, START};
use super::schema;
use super::yaml::{Node, Value};
use crate::nearest::nearest;

/// Reads `node` as a `T`.
pub(super) fn decode<T: DeserializeOwned>(node: &Node) -> Result<T, Fault> {
    T::deserialize(At(node)).map_err(DecodeError::into_fault)
}

/// A fault on its way from the value it is about to the root, gathering place and path.
#[derive(Debug)]
pub(super) struct DecodeError {
    at: Option<Position>,
    /// Segments from the fault outwards.
    path: Vec<String>,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A sentence fragment that follows the path.
    Predicate {
        text: String,
        hint: Option<String>,
    },
    /// A fragment that says what to write, from a type's own check.
    Advice(String),
    UnknownKey {
        key: String,
        known: &'static [&'static str],
    },
    MissingKey(&'static str),
}

impl DecodeError {
    fn predicate(text: String, hint: Option<String>) -> Self {
        Self { at: None, path: Vec::new(), what: What::Predicate { text, hint } }
    }

    fn wrong_type(node: &Node, wanted: &str) -> Self {
        let found = node.value.type_name();
        let hint = match (&node.value, wanted) {
            (Value::Null, _) => Some("remove the key, or give it a value".to_owned()),
            (Value::Bool(_) | Value::Integer(_) | Value::Float(_), "a string") => {
                Some("put the value in quotes".to_owned())
            }
            (Value::Text(_), "true or false" | "a number" | "a whole number") => {
                Some("write the value without quotes".to_owned())
            }
            _ => None,
        };
        let text = match node.value {
            Value::Null => format!("has no value; {wanted} is needed"),
            _ => format!("must be {wanted}, not {found}"),
        };
        Self::predicate(text, hint).placed(node.at)
    }

    /// Fills in the place unless an inner value has given a nearer one.
    fn placed(mut self, at: Position) -> Self {
        self.at.get_or_insert(at);
        self
    }

    fn within(mut self, segment: String) -> Self {
        self.path.push(segment);
        self
    }

    fn path(&self) -> String {
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            if !path.is_empty() && !segment.starts_with('[') {
                path.push('.');
            }
            path.push_str(segment);
        }
        path
    }

    fn into_fault(self) -> Fault {
        let at = self.at.unwrap_or(START);
        let path = self.path();
        let subject = if path.is_empty() { "the frontmatter".to_owned() } else { format!("`{path}`") };
        match self.what {
            What::Predicate { text, hint } => Fault { at, message: format!("{subject} {text}"), hint },
            What::Advice(text) => Fault::new(at, format!("{subject}: {text}")),
            What::MissingKey(key) => Fault::new(at, format!("{subject} lacks the key `{key}`")),
            What::UnknownKey { key, known } => unknown_key(at, &path, &key, known),
        }
    }
}

/// “unknown key”, the one that was probably meant, and those that are accepted.
fn unknown_key(at: Position, path: &str, key: &str, known: &'static [&'static str]) -> Fault {
    let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
    let fault = Fault::new(at, format!("unknown key `{key}`{place}"));
    if let Some(hint) = schema::misplaced_key(path, key, known) {
        return fault.hint(hint);
    }
    let accepted = schema::offered_keys(known);
    let accepted_list = listed(accepted.iter().copied());
    match nearest(key, accepted.iter().copied()) {
        Some(meant) => fault.hint(format!("did you mean `{meant}`? accepted here: {accepted_list}")),
        None => fault.hint(format!("accepted here: {accepted_list}")),
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            What::Predicate { text, .. } => write!(f, "`{}` {text}", self.path()),
            What::Advice(text) => write!(f, "`{}`: {text}", self.path()),
            What::UnknownKey { key, .. } => write!(f, "unknown key `{key}`"),
            What::MissingKey(key) => write!(f, "`{}` lacks the key `{key}`", self.path()),
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { at: None, path: Vec::new(), what: What::Advice(message.to_string()) }
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::predicate(format!("must be {wanted}, not {}", type_of(found)), None)
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::predicate(format!("must be {wanted}"), None)
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        let hint = nearest(word, known.iter().copied()).map(|meant| format!("did you mean `{meant}`?"));
        let known = listed(known.iter().copied()).replace(" and ", " or ");
        Self::predicate(format!("must be {known}"), hint)
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self { at: None, path: Vec::new(), what: What::UnknownKey { key: key.to_owned(), known } }
    }

    fn missing_field(key: &'static str) -> Self {
        Self { at: None, path: Vec::new(), what: What::MissingKey(key) }
    }
}

/// The type of what was found, without its value.
fn type_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
        Unexpected::Char(_) | Unexpected::Str(_) => "a string",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a map",
        Unexpected::Unit | Unexpected::Option => "empty",
        _ => "that",
    }
}

/// A node as a deserializer.
#[derive(Clone, Copy)]
struct At<'a>(&'a Node);

impl<'a> At<'a> {
    fn wrong<T>(self, wanted: &str) -> Result<T, DecodeError> {
        Err(DecodeError::wrong_type(self.0, wanted))
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.value {
            Value::Integer(n) => match (u64::try_from(n), i64::try_from(n)) {
                (Ok(n), _) => visitor.visit_u64(n),
                (_, Ok(n)) => visitor.visit_i64(n),
                _ => Err(DecodeError::predicate("is out of range".to_owned(), None)),
            },
            _ => self.wrong("a whole number"),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            Value::Text(text) => visitor.visit_str(text),
            _ => self.wrong("a string"),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            Value::List(items) => visitor.visit_seq(Items { items, next: 0 }),
            _ => self.wrong("a list"),
        }
    }

    fn map<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            Value::Map(entries) => visitor.visit_map(Fields { entries, next: 0 }),
            _ => self.wrong("a map"),
        }
    }
}

/// Methods that read one kind of value and place whatever goes wrong in it.
macro_rules! placed {
    ($($method:ident => $read:ident),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.$read(visitor).map_err(|error| error.placed(self.0.at))
        }
    )+};
}

impl<'de> Deserializer<'de> for At<'_> {
    type Error = DecodeError;

    placed! {
        deserialize_i8 => integer, deserialize_i16 => integer, deserialize_i32 => integer,
        deserialize_i64 => integer, deserialize_u8 => integer, deserialize_u16 => integer,
        deserialize_u32 => integer, deserialize_u64 => integer,
        deserialize_str => text, deserialize_string => text, deserialize_char => text,
        deserialize_identifier => text,
        deserialize_seq => list, deserialize_map => map,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
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

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.value {
            Value::Bool(value) => visitor.visit_bool(value),
            _ => self.wrong("true or false"),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.value {
            // Exact for every integer a manifest means; a larger one is caught by the value's own bound.
            #[allow(clippy::cast_precision_loss)]
            Value::Integer(n) => visitor.visit_f64(n as f64),
            Value::Float(n) => visitor.visit_f64(n),
            _ => self.wrong("a number"),
        }
        .map_err(|error: DecodeError| error.placed(self.0.at))
    }

    /// A key that is written has a value: empty is an error of the value's type, never “absent”.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if name == SPANNED {
            visitor.visit_newtype_struct(WithPlace(self.0))
        } else {
            visitor.visit_newtype_struct(self)
        }
        .map_err(|error| error.placed(self.0.at))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            Value::Text(word) => visitor.visit_enum(Word(word)),
            _ => self.wrong("a string"),
        }
        .map_err(|error| error.placed(self.0.at))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

/// A list's items.
struct Items<'a> {
    items: &'a [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some(item) = self.items.get(self.next) else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        seed.deserialize(At(item)).map(Some).map_err(|error| error.within(format!("[{index}]")))
    }
}

/// A map's entries.
struct Fields<'a> {
    entries: &'a [(Located<String>, Node)],
    next: usize,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some((key, _)) = self.entries.get(self.next) else { return Ok(None) };
        let node = Node { at: key.at, value: Value::Text(key.value.clone()) };
        seed.deserialize(At(&node)).map(Some).map_err(|error| error.placed(key.at))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        let (key, value) = self
            .entries
            .get(self.next)
            .ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
        self.next += 1;
        seed.deserialize(At(value)).map_err(|error| error.within(key.value.clone()))
    }
}

/// The name by which the YAML library's `Spanned` asks for a value together with its place, and the key
/// that opens the answer. Neither is part of the library's documented interface;
/// `spans_reach_every_value` notices should one of them change.
const SPANNED: &str = "__yaml_spanned";
const SPANNED_OPENING: &str = "__serde_saphyr_private_spanned";

/// A node as the map that `Spanned` reads: `value`, and its place as `referenced` and `defined`.
struct WithPlace<'a>(&'a Node);

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

/// A choice written as a word.
struct Word<'a>(&'a str);

impl<'de, 'a> EnumAccess<'de> for Word<'a> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), DecodeError> {
        let word: StrDeserializer<'a, DecodeError> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word<'_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, DecodeError> {
        Err(de::Error::custom("a choice is a single word"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, DecodeError> {
        Err(de::Error::custom("a choice is a single word"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, DecodeError> {
        Err(de::Error::custom("a choice is a single word"))
    }
}

#[cfg(test)]
mod tests {
    use bottle_contract::yaml::Spanned;
    use serde::Deserialize;

    use super::super::yaml;
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        list: Option<Spanned<Vec<Located<Inner>>>>,
        number: Option<Spanned<u16>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        value: Located<String>,
        on: Option<bool>,
    }

    fn read(text: &str) -> Result<Outer, Fault> {
        decode(&yaml::parse(text)?)
    }

    #[test]
    fn spans_reach_every_value() {
        let outer = read("number: 7\nlist:\n  - value: a\n  - {value: b, on: true}\n").expect("outer");
        let list = outer.list.expect("list");
        assert_eq!(Position::of(&list), Some(Position { line: 3, column: 3 }));
        let places: Vec<_> = list.value.iter().map(|item| (item.at, item.value.value.at)).collect();
        let at = |line, column| Position { line, column };
        assert_eq!(places, [(at(3, 5), at(3, 12)), (at(4, 5), at(4, 13))]);
        assert_eq!(list.value[1].value.on, Some(true));
        assert_eq!(outer.number.map(|n| n.value), Some(7));
    }

    #[test]
    fn errors_name_path_place_and_type() {
        for (text, at, message) in [
            ("list: 5", "1:7", "`list` must be a list, not a number"),
            ("list:", "1:5", "`list` has no value; a list is needed"),
            ("number: '7'", "1:9", "`number` must be a whole number, not a string"),
            ("number: 7.5", "1:9", "`number` must be a whole number, not a number"),
            ("list:\n- value: true", "2:10", "`list[0].value` must be a string, not a boolean"),
            ("list:\n- value: a\n  on: yes", "3:7", "`list[0].on` must be true or false, not a string"),
            ("list:\n- on: true", "2:3", "`list[0]` lacks the key `value`"),
            ("list:\n- vlaue: a", "2:3", "unknown key `vlaue` in `list[0]`"),
            ("lists: []", "1:1", "unknown key `lists`"),
            ("[]", "1:1", "the frontmatter must be a map, not a list"),
        ] {
            let fault = read(text).expect_err(text);
            assert_eq!((fault.at.to_string().as_str(), fault.message.as_str()), (at, message), "{text:?}");
        }
        assert!(
            read("list:\n- vlaue: a")
                .expect_err("typo")
                .hint
                .expect("hint")
                .starts_with("did you mean `value`?")
        );
    }
}
