//! JSON read as it comes: the scalars near its root, whatever lies between them.
//!
//! Nothing is kept but the way to where it is, so an answer of any length costs the same memory. It reads what
//! is written well and makes nothing of the rest; it never fails, because nothing depends on it but numbers.

/// Values deeper than this are passed over.
const DEPTH: usize = 5;
/// The longest key that is told from others.
const KEY: usize = 32;
/// The longest text that is told; the names of models are shorter.
const TEXT: usize = 256;

/// A value that is no object and no array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar<'t> {
    /// A string as it is written, without its quotes.
    Text(&'t [u8]),
    /// A number, or `true`, `false`, `null`.
    Word(&'t [u8]),
}

/// The way from the root to a value: keys, and an empty one for every array.
pub(crate) struct JsonPath<'r>(&'r [Level]);

impl JsonPath<'_> {
    /// Whether it is this one.
    pub(crate) fn is(&self, keys: &[&str]) -> bool {
        self.0.len() == keys.len() && self.0.iter().zip(keys).all(|(level, key)| level.key == key.as_bytes())
    }

    /// The way that goes on behind these keys, when it begins with them.
    pub(crate) fn below(&self, keys: &[&str]) -> Option<Self> {
        let (first, rest) = self.0.split_at_checked(keys.len())?;
        JsonPath(first).is(keys).then_some(Self(rest))
    }
}

/// An object or array that is open.
#[derive(Debug, Default)]
struct Level {
    array: bool,
    /// The next string is a key.
    at_key: bool,
    /// The last key; longer ones than are told apart are empty, as in arrays.
    key: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Between,
    /// In a string; `escaped`: the next byte belongs to a backslash.
    Text {
        escaped: bool,
    },
    Word,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    state: State,
    /// Objects and arrays that are open.
    depth: usize,
    levels: Vec<Level>,
    /// What of a string or word is there.
    held: Vec<u8>,
    too_long: bool,
    ended: bool,
}

/// Takes a scalar.
pub(crate) type Found<'f> = &'f mut dyn FnMut(&JsonPath<'_>, Scalar<'_>);

impl Reader {
    /// Whether the value is whole.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads the next piece.
    pub(crate) fn feed(&mut self, mut text: &[u8], found: Found<'_>) {
        while !text.is_empty() && !self.ended {
            let used = match self.state {
                State::Between => self.between(text),
                State::Text { escaped } => self.text(text, escaped, found),
                State::Word => self.word(text, found),
            };
            text = &text[used..];
        }
    }

    /// Bytes used: one, or none where a word begins with it.
    fn between(&mut self, text: &[u8]) -> usize {
        match text[0] {
            b'{' => self.open(false),
            b'[' => self.open(true),
            b'}' | b']' => self.close(),
            b'"' => self.begin(State::Text { escaped: false }),
            b',' => {
                if let Some(level) = self.here() {
                    level.at_key = !level.array;
                }
            }
            b':' => {
                if let Some(level) = self.here() {
                    level.at_key = false;
                }
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                self.begin(State::Word);
                return 0;
            }
        }
        1
    }

    fn begin(&mut self, state: State) {
        self.state = state;
        self.held.clear();
        self.too_long = false;
    }

    fn open(&mut self, array: bool) {
        self.depth = self.depth.saturating_add(1);
        if self.depth <= DEPTH {
            self.levels.truncate(self.depth - 1);
            self.levels.push(Level { array, at_key: !array, key: Vec::new() });
        }
    }

    fn close(&mut self) {
        let Some(depth) = self.depth.checked_sub(1) else { return };
        self.depth = depth;
        if depth < DEPTH {
            self.levels.truncate(depth);
        }
        self.ended = depth == 0;
    }

    /// The open object or array, unless it is too deep.
    fn here(&mut self) -> Option<&mut Level> {
        let level = self.levels.last_mut()?;
        (self.depth <= DEPTH).then_some(level)
    }

    fn text(&mut self, text: &[u8], escaped: bool, found: Found<'_>) -> usize {
        if escaped {
            self.hold(&text[..1]);
            self.state = State::Text { escaped: false };
            return 1;
        }
        let Some(at) = memchr::memchr2(b'"', b'\\', text) else {
            self.hold(text);
            return text.len();
        };
        if text[at] == b'\\' {
            self.hold(&text[..=at]);
            self.state = State::Text { escaped: true };
        } else {
            self.hold(&text[..at]);
            self.state = State::Between;
            self.text_ended(found);
        }
        at + 1
    }

    fn text_ended(&mut self, found: Found<'_>) {
        if self.depth > DEPTH {
            return;
        }
        let (held, too_long) = (&self.held, self.too_long);
        match self.levels.last_mut() {
            Some(level) if level.at_key => {
                level.key.clear();
                if !too_long && held.len() <= KEY {
                    level.key.extend_from_slice(held);
                }
            }
            Some(_) if !too_long => found(&JsonPath(&self.levels), Scalar::Text(held)),
            _ => {}
        }
    }

    fn word(&mut self, text: &[u8], found: Found<'_>) -> usize {
        let ends =
            |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' | b':' | b'"');
        let Some(at) = text.iter().position(ends) else {
            self.hold(text);
            return text.len();
        };
        self.hold(&text[..at]);
        self.state = State::Between;
        if self.depth <= DEPTH && !self.levels.is_empty() && !self.too_long {
            found(&JsonPath(&self.levels), Scalar::Word(&self.held));
        }
        at
    }

    fn hold(&mut self, text: &[u8]) {
        if self.depth > DEPTH || self.held.len() + text.len() > TEXT {
            self.too_long = true;
        } else {
            self.held.extend_from_slice(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut reader = Reader::default();
        let mut all = Vec::new();
        for piece in pieces {
            reader.feed(piece, &mut |way, scalar| {
                let keys: Vec<_> = way.0.iter().map(|level| String::from_utf8_lossy(&level.key)).collect();
                let value = match scalar {
                    Scalar::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
                    Scalar::Word(word) => String::from_utf8_lossy(word).into_owned(),
                };
                all.push(format!("{}={value}", keys.join(".")));
            });
        }
        (all, reader.has_ended())
    }

    #[test]
    fn scalars_are_told_with_the_way_to_them() {
        for (text, scalars) in [
            (
                r#"{"a":1,"b":{"c":"x","d":[true,{"e":null}]},"f":-2.5}"#,
                "a=1 b.c='x' b.d.=true b.d..e=null f=-2.5",
            ),
            (r#" { "a" : { } , "b" : [ ] , "c" : "" } "#, "c=''"),
            (r#"{"a":"\"}{\\","b":2}"#, r#"a='\"}{\\' b=2"#),
            (r#"{"a":{"b":{"c":{"d":{"e":{"deep":1},"f":2}}}},"g":3}"#, "a.b.c.d.f=2 g=3"),
            (r#"[{"a":1},2]"#, ".a=1 =2"),
            (r#"{"usage":"{\"usage\":{\"input\":9}}"}"#, r#"usage='{\"usage\":{\"input\":9}}'"#),
        ] {
            let (told, ended) = read(&[text.as_bytes()]);
            assert_eq!(told.join(" "), scalars, "{text}");
            assert!(ended, "{text}");
        }
    }

    #[test]
    fn what_is_long_or_deep_is_passed_over_and_costs_nothing() {
        let long = "x".repeat(1 << 20);
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!(r#"{{"{long}":1,"a":"{long}","b":{deep},"c":{long},"d":4}}"#);
        let (told, ended) = read(&[text.as_bytes()]);
        assert_eq!((told.join(" ").as_str(), ended), ("=1 d=4", true));
    }

    #[test]
    fn what_is_no_json_does_nothing() {
        for text in ["", "}", "]]}{", ":::", "\"", "{\"a\" \"b\"", "<html>", "{,:}", "nul", "{\"a\":tr"] {
            let (told, _) = read(&[text.as_bytes()]);
            assert!(told.len() <= 2, "{text}: {told:?}");
        }
    }

    proptest! {
        #[test]
        fn the_same_wherever_the_borders_fall(
            text in r#"[\[\]{}",:\\ a-c0-9\n]{0,120}"#, size in 1_usize..9,
        ) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(read(&pieces), read(&[text.as_bytes()]));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&[&bytes]);
        }
    }
}
