//! Walks through the JSON of a request. `serde_json` recurses into nested values, up to 127 levels.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::fields::{self, Block, Field, field, is_hosted_tool, names_a_reference};
use super::{Api, BuildHasher, Hasher, MAX_COMPLETIONS, MeteredRequest, RandomState, count};
use crate::MAX_MODEL;

/// The error for an object that has a key twice.
pub(super) const BAD_KEY: &str = "has a key twice";
pub(super) const BAD_SPELLING: &str = "has a field that differs from one of the API only in its spelling";
pub(super) const BAD_MODEL: &str = "has a `model` that is no text";
pub(super) const BAD_LIMIT: &str = "has an output limit that is no whole number";
pub(super) const BAD_COUNT: &str = "has a number of completions that is no whole number up to 128";
pub(super) const BAD_STREAM: &str = "has a `stream` that is neither `true` nor `false`";
pub(super) const BAD_NUMBER: &str = "has a number that no provider needs";

/// The number of tokens that each number with a fraction adds. The parser does not keep the digits of such a number.
const FRACTION: u64 = 24;

/// The reader rejects floating-point numbers from this magnitude on. Some servers keep all digits of such a number.
const LARGE: f64 = 1e18;

/// The data that was read from the request so far.
pub(super) struct Reader<'k> {
    api: Api,
    keys: &'k RandomState,
    request: MeteredRequest,
    /// Whether the model reads the current field.
    is_prompt: bool,
    fingerprint: Option<<RandomState as BuildHasher>::Hasher>,
    /// The hashes of the keys of all open objects.
    seen: Vec<u64>,
    has_other_models: bool,
    /// Whether an output limit is 0, which some servers read as no limit.
    has_no_limit: bool,
    pub(super) problem: Option<&'static str>,
}

impl<'k> Reader<'k> {
    pub(super) fn new(api: Api, keys: &'k RandomState, compares: bool) -> Self {
        Self {
            api,
            keys,
            request: MeteredRequest { completions: 1, ..MeteredRequest::default() },
            is_prompt: false,
            fingerprint: compares.then(|| keys.build_hasher()),
            seen: Vec::new(),
            has_other_models: false,
            has_no_limit: false,
            problem: None,
        }
    }

    pub(super) fn finish(self) -> MeteredRequest {
        let model = self.request.model.filter(|_| !self.has_other_models);
        let output = self.request.output.filter(|_| !self.has_no_limit);
        let fingerprint = self.fingerprint.map(|hash| hash.finish());
        MeteredRequest { model, output, fingerprint, ..self.request }
    }

    fn fail<T, E: Error>(&mut self, problem: &'static str) -> Result<T, E> {
        self.problem = Some(problem);
        Err(E::custom(problem))
    }

    /// Adds tokens to `text` if the model reads the current field, and to `other` otherwise.
    fn add(&mut self, tokens: u64) {
        let sum = if self.is_prompt { &mut self.request.text } else { &mut self.request.other };
        *sum = sum.saturating_add(tokens);
    }

    fn text(&mut self, text: &str) {
        self.compare(text);
        self.add(count::tokens(text));
    }

    /// Adds a text to the fingerprint.
    fn compare(&mut self, text: &str) {
        if let Some(hash) = self.fingerprint.as_mut().filter(|_| self.is_prompt) {
            hash.write(text.as_bytes());
            hash.write_u8(0xff);
        }
    }

    /// Adds a byte that represents a part of the JSON structure to the fingerprint.
    fn mark(&mut self, byte: u8) {
        if let Some(hash) = self.fingerprint.as_mut().filter(|_| self.is_prompt) {
            hash.write_u8(byte);
        }
    }

    /// Adds the bits of a number to the fingerprint.
    fn mark_number(&mut self, bits: u64) {
        if let Some(hash) = self.fingerprint.as_mut().filter(|_| self.is_prompt) {
            hash.write_u64(bits);
        }
    }

    fn refer(&mut self, to: &'static str) {
        self.request.reference.get_or_insert(to);
    }

    fn add_image(&mut self) {
        self.request.images = self.request.images.saturating_add(1);
    }

    /// Records the value of a top-level field of the request.
    fn set(&mut self, field: Field, seen: Seen) -> Result<(), &'static str> {
        let request = &mut self.request;
        match (field, seen) {
            (Field::Models, Seen::Other | Seen::Empty) => self.has_other_models = true,
            (Field::Background, seen) => {
                request.background = !matches!(seen, Seen::Null | Seen::Bool(false));
            }
            (Field::Output | Field::Completions | Field::Streams, Seen::Null) => {}
            (Field::Output, Seen::Number(0)) => self.has_no_limit = true,
            (Field::Output, Seen::Number(limit)) => request.output = request.output.max(Some(limit)),
            (Field::Output, _) => return Err(BAD_LIMIT),
            (Field::Completions, Seen::Number(number @ ..=MAX_COMPLETIONS)) => {
                request.completions = number.max(1)
            }
            (Field::Completions, _) => return Err(BAD_COUNT),
            (Field::Streams, Seen::Bool(streams)) => request.streams = streams,
            (Field::Streams, _) => return Err(BAD_STREAM),
            _ => {}
        }
        Ok(())
    }

    /// Records a key of the innermost object.
    fn key(&mut self, key: &str) {
        let hash = self.keys.hash_one(key);
        self.seen.push(hash);
    }

    /// Ends the innermost object. `begin` is the index of its first key in `seen`. Fails if the object has two equal
    /// keys.
    fn close<E: Error>(&mut self, begin: usize) -> Result<(), E> {
        let keys = &mut self.seen[begin..];
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return self.fail(BAD_KEY);
        }
        self.seen.truncate(begin);
        Ok(())
    }
}

/// The position of a value in the request. It determines how the reader interprets the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Any JSON without references.
    Data,
    /// A text, a block, or a list of texts and blocks.
    Content,
    /// The items of a conversation. An item may be a reference to a stored item.
    Items,
    Tools,
    /// The type of a block.
    BlockType,
    /// The type of a tool.
    ToolType,
    /// The source of an image or a document.
    Source,
    /// The type of a source.
    SourceType,
    /// The data of a source, which may be text.
    SourceText,
    /// The base64 data of a source.
    SourceBytes,
    /// An image: a `data:` URL, or the image's address.
    ImageUrl,
    /// The id of a stored file, which may be an image.
    FileId,
    /// A reference to something outside of the request, unless the value is empty.
    Refers(&'static str),
    ContextManagement,
    /// A field that is not in the tables.
    Unknown,
}

/// The kind of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Seen {
    #[default]
    Null,
    Bool(bool),
    Number(u64),
    /// A text, a list or a block without any text.
    Empty,
    /// A text or a list that is not empty, an object, or a number that is negative or has a fraction.
    Other,
    Block(Block),
    /// The data of a source. The value is the number of tokens if the data is text, and 0 if it is base64.
    Data(u64),
    Source(SourceKind, u64),
    HostedTool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum SourceKind {
    #[default]
    Unknown,
    Base64,
    /// Text or content blocks.
    Text,
}

/// Reads a value at the given [`Place`].
struct Value<'r, 'k>(&'r mut Reader<'k>, Place);

impl<'de> DeserializeSeed<'de> for Value<'_, '_> {
    type Value = Seen;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Seen, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_> {
    type Value = Seen;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Seen, E> {
        self.0.mark(b'0');
        self.0.add(1);
        Ok(Seen::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Seen, E> {
        self.0.mark(if value { b'+' } else { b'-' });
        self.0.add(1);
        if let (Place::Refers(to), true) = (self.1, value) {
            self.0.refer(to);
        }
        Ok(Seen::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Seen, E> {
        self.0.mark_number(value);
        self.0.add(u64::from(value.checked_ilog10().unwrap_or(0)) + 1);
        if let Place::Refers(to) = self.1 {
            self.0.refer(to);
        }
        Ok(Seen::Number(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Seen, E> {
        self.visit_u64::<E>(value.unsigned_abs()).map(|_| Seen::Other)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Seen, E> {
        if value.abs() >= LARGE {
            return self.0.fail(BAD_NUMBER);
        }
        self.0.mark_number(value.to_bits());
        self.0.add(FRACTION);
        Ok(Seen::Other)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Seen, E> {
        let Self(reader, place) = self;
        match place {
            Place::ImageUrl => {
                // The length of an image says nothing about its tokens.
                if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
                    reader.add_image();
                    reader.compare(text);
                } else if !text.is_empty() {
                    reader.add_image();
                    reader.refer("an image at another place");
                }
                return Ok(Seen::Other);
            }
            Place::SourceText | Place::SourceBytes => {
                reader.compare(text);
                let tokens = if place == Place::SourceText { count::tokens(text) } else { 0 };
                return Ok(Seen::Data(tokens));
            }
            Place::FileId if !text.is_empty() => {
                reader.add_image();
                reader.refer("a document");
            }
            Place::Refers(to) if !text.is_empty() => reader.refer(to),
            Place::ContextManagement if text.starts_with("compact") => {
                reader.refer("a compaction by the provider");
            }
            _ => {}
        }
        reader.text(text);
        Ok(match place {
            Place::BlockType => Seen::Block(Block::named(text)),
            Place::ToolType if is_hosted_tool(text) => Seen::HostedTool,
            Place::SourceType => match text {
                "base64" => Seen::Source(SourceKind::Base64, 0),
                "text" | "content" => Seen::Source(SourceKind::Text, 0),
                _ => Seen::Source(SourceKind::Unknown, 0),
            },
            _ if text.is_empty() => Seen::Empty,
            _ => Seen::Other,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Seen, A::Error> {
        let Self(reader, place) = self;
        reader.mark(b'[');
        reader.add(1);
        let mut is_empty = true;
        while let Some(seen) = list.next_element_seed(Value(reader, place))? {
            is_empty &= matches!(seen, Seen::Null | Seen::Empty);
        }
        reader.mark(b']');
        Ok(if is_empty { Seen::Empty } else { Seen::Other })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Seen, A::Error> {
        let Self(reader, place) = self;
        reader.mark(b'{');
        reader.add(1);
        let begin = reader.seen.len();
        let seen = match place {
            Place::Content => block(reader, map, false)?,
            Place::Items => block(reader, map, true)?,
            Place::Tools => tool(reader, map)?,
            Place::Source => source(reader, map)?,
            Place::ImageUrl => each(reader, map, |key| match key {
                "url" => Place::ImageUrl,
                _ => Place::Data,
            })?,
            Place::FileId | Place::Refers(_) => {
                reader.refer(if let Place::Refers(to) = place { to } else { "a document" });
                each(reader, map, |_| Place::Data)?
            }
            Place::ContextManagement => each(reader, map, |_| Place::ContextManagement)?,
            Place::Unknown => each(reader, map, unknown)?,
            _ => each(reader, map, |_| Place::Data)?,
        };
        reader.close(begin)?;
        reader.mark(b'}');
        Ok(seen)
    }
}

/// Returns the place of the value of `key` in a field that is not in the tables.
fn unknown(key: &str) -> Place {
    if names_a_reference(key) { Place::Refers("an unknown field") } else { Place::Unknown }
}

/// Reads a key of an object. The function `F` returns the meaning of the key.
struct Key<'r, 'k, F>(&'r mut Reader<'k>, F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Key<'_, '_, F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<T, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'de, T, F: FnOnce(&str) -> T> Visitor<'de> for Key<'_, '_, F> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<T, E> {
        let Self(reader, meaning) = self;
        reader.key(key);
        reader.text(key);
        Ok(meaning(key))
    }
}

/// Walks through an object. `place` returns the place of a key's value.
fn each<'de, A: MapAccess<'de>>(
    reader: &mut Reader<'_>,
    mut map: A,
    place: impl Fn(&str) -> Place,
) -> Result<Seen, A::Error> {
    while let Some(place) = map.next_key_seed(Key(reader, &place))? {
        map.next_value_seed(Value(reader, place))?;
    }
    Ok(Seen::Other)
}

/// The kind of a key of a block. These kinds show whether the request contains the content of the block or only refers
/// to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Id,
    Role,
    Text,
    No,
}

/// Returns the place of the value of `key` in a block, and the kind of the key.
fn in_block(key: &str) -> (Place, Own) {
    let place = match key {
        "type" => Place::BlockType,
        "source" => Place::Source,
        "image_url" => Place::ImageUrl,
        "file_id" => Place::FileId,
        "file_url" | "file_data" | "file" => Place::Refers("a document"),
        "video_url" => Place::Refers("a video"),
        // The value refers to the audio of an earlier response by id.
        "audio" => Place::Refers("stored audio"),
        "vector_store_ids" | "container_id" => Place::Refers("a store of the provider"),
        // Tools that an item adds in the middle of a conversation.
        "tools" => Place::Tools,
        // The arguments of a tool can be any JSON.
        "input" | "arguments" | "parameters" | "action" | "function" | "custom" => Place::Data,
        _ => Place::Content,
    };
    let own = match key {
        "id" => Own::Id,
        "role" => Own::Role,
        "content" | "encrypted_content" | "text" => Own::Text,
        _ => Own::No,
    };
    (place, own)
}

/// Walks through a block or a message. With `is_item`, the object is an item of a conversation.
fn block<'de, A: MapAccess<'de>>(
    reader: &mut Reader<'_>,
    mut map: A,
    is_item: bool,
) -> Result<Seen, A::Error> {
    let (mut kind, mut source) = (Block::Untyped, None);
    let (mut has_id, mut has_role, mut has_text) = (false, false, false);
    while let Some((place, own)) = map.next_key_seed(Key(reader, in_block))? {
        let seen = map.next_value_seed(Value(reader, place))?;
        match own {
            Own::Id => has_id = seen != Seen::Null,
            Own::Role => has_role = !matches!(seen, Seen::Null | Seen::Empty),
            Own::Text => has_text |= !matches!(seen, Seen::Null | Seen::Empty),
            Own::No => {}
        }
        match seen {
            Seen::Block(block) if place == Place::BlockType => kind = block,
            Seen::Source(kind, data) => source = Some((kind, data)),
            _ => {}
        }
    }
    match (kind, source) {
        (Block::Reference(to), _) => reader.refer(to),
        // The item may have only an `id`. The API then reads the item as a reference to a stored item.
        (Block::Untyped, _) if is_item && !has_role => reader.refer("a stored item"),
        (Block::Reasoning, _) if has_id && !has_text => reader.refer("stored reasoning"),
        (Block::Image, Some((SourceKind::Base64, _))) => reader.add_image(),
        (Block::Image, Some(_)) => {
            reader.add_image();
            reader.refer("an image at another place");
        }
        (_, Some((SourceKind::Text, data))) => reader.add(data),
        (_, Some(_)) => reader.refer("a document"),
        _ => {}
    }
    Ok(if has_text { Seen::Other } else { Seen::Empty })
}

/// Walks through the source of an image or a document.
fn source<'de, A: MapAccess<'de>>(reader: &mut Reader<'_>, mut map: A) -> Result<Seen, A::Error> {
    let (mut kind, mut tokens) = (SourceKind::Unknown, 0_u64);
    let place = |key: &str| match key {
        "type" => Place::SourceType,
        "data" => Place::SourceText,
        "content" => Place::Content,
        "url" | "file_id" => Place::Refers("a document"),
        _ => Place::Data,
    };
    while let Some(place) = map.next_key_seed(Key(reader, place))? {
        let is_coded = place == Place::SourceText && kind == SourceKind::Base64;
        let place = if is_coded { Place::SourceBytes } else { place };
        match map.next_value_seed(Value(reader, place))? {
            Seen::Source(named, _) if place == Place::SourceType => kind = named,
            Seen::Data(data) => tokens = tokens.saturating_add(data),
            _ => {}
        }
    }
    Ok(Seen::Source(kind, tokens))
}

/// Walks through a tool.
fn tool<'de, A: MapAccess<'de>>(reader: &mut Reader<'_>, mut map: A) -> Result<Seen, A::Error> {
    let place = |key: &str| match key {
        "type" => Place::ToolType,
        "tools" => Place::Tools,
        "environment" | "container" => Place::Refers("a container"),
        _ => Place::Data,
    };
    while let Some(place) = map.next_key_seed(Key(reader, place))? {
        if map.next_value_seed(Value(reader, place))? == Seen::HostedTool {
            reader.refer("a tool that the provider runs");
        }
    }
    Ok(Seen::Other)
}

/// Reads the whole request.
pub(super) struct Request<'r, 'k>(pub(super) &'r mut Reader<'k>);

impl<'de> DeserializeSeed<'de> for Request<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Request<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(reader) = self;
        let api = reader.api;
        let meaning = |key: &str| (field(api, key), names_a_reference(key));
        loop {
            reader.is_prompt = false;
            let Some((field, refers)) = map.next_key_seed(Key(reader, meaning))? else { break };
            let Ok(field) = field else { return reader.fail(BAD_SPELLING) };
            reader.is_prompt = matches!(field, Field::Content | Field::Items | Field::Data | Field::Tools);
            let place = match field {
                Field::Model => {
                    map.next_value_seed(Model(reader))?;
                    continue;
                }
                Field::Content => Place::Content,
                Field::Items => Place::Items,
                Field::Tools => Place::Tools,
                Field::ContextManagement => Place::ContextManagement,
                Field::Refers(to) => Place::Refers(to),
                Field::Unknown if refers => Place::Refers("an unknown field"),
                Field::Unknown => Place::Unknown,
                _ => Place::Data,
            };
            let seen = map.next_value_seed(Value(reader, place))?;
            reader.set(field, seen).or_else(|problem| reader.fail(problem))?;
        }
        reader.close(0)
    }
}

/// Reads the model name.
struct Model<'r, 'k>(&'r mut Reader<'k>);

impl<'de> DeserializeSeed<'de> for Model<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        let Self(reader) = self;
        let name: Option<std::borrow::Cow<'de, str>> = match serde::Deserialize::deserialize(json) {
            Ok(name) => name,
            Err(error) => {
                reader.problem = Some(BAD_MODEL);
                return Err(error);
            }
        };
        let Some(name) = name else { return Ok(()) };
        reader.add(count::tokens(&name));
        reader.is_prompt = true;
        reader.compare(&name);
        if fields::has_own_references(&name) {
            reader.refer("a variant of the model with a search");
        }
        let is_plain = name.len() <= MAX_MODEL && name.bytes().all(|byte| byte.is_ascii_graphic());
        reader.request.model = is_plain.then(|| name.into_owned());
        Ok(())
    }
}
