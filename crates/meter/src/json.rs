//! A streaming JSON reader that reports the scalars near the root.
//!
//! The reader stores only the path to the current position, so its memory use does not depend on the length of the
//! body. The reader never fails: malformed input only causes missing or wrong scalars.

/// The deepest level of nesting at which scalars are reported. Deeper values are skipped.
const MAX_DEPTH: usize = 7;
/// The longest key that is compared, in bytes. A longer key matches no path.
const MAX_KEY: usize = 32;
/// The longest string, number or word that the reader buffers, in bytes. If a string is longer, the reader reports only
/// its length ([`Scalar::Long`]). The reader skips longer numbers and words. Model names are shorter.
const MAX_TEXT: usize = 256;

/// A value that is neither an object nor an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar<'t> {
    /// A string as written, without its quotes.
    Text(&'t [u8]),
    /// A number as written, or `true`, `false`, `null`.
    Word(&'t [u8]),
    /// The length of a string that is too long to be reported, in bytes.
    Long(usize),
}

impl Scalar<'_> {
    /// The number of bytes of the value as written, without quotes.
    pub(crate) fn length(self) -> u64 {
        match self {
            Self::Text(text) | Self::Word(text) => text.len() as u64,
            Self::Long(length) => length as u64,
        }
    }
}

/// The path from the root to a value: one key for each object, and an empty key for each array.
pub(crate) struct JsonPath<'r>(&'r [Level]);

impl JsonPath<'_> {
    /// Whether the path consists of exactly `keys`.
    pub(crate) fn is(&self, keys: &[&str]) -> bool {
        self.0.len() == keys.len() && self.0.iter().zip(keys).all(|(level, key)| level.key == key.as_bytes())
    }

    /// Returns the rest of the path after `keys`, if the path begins with them.
    pub(crate) fn below(&self, keys: &[&str]) -> Option<Self> {
        let (first, rest) = self.0.split_at_checked(keys.len())?;
        JsonPath(first).is(keys).then_some(Self(rest))
    }
}

/// An open object or array.
#[derive(Debug, Default)]
struct Level {
    array: bool,
    /// Whether the next string is a key.
    at_key: bool,
    /// The last key that was read. Empty in arrays and for keys longer than [`MAX_KEY`].
    key: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Between,
    /// Inside a string. `escaped` states whether the previous byte was a backslash.
    Text {
        escaped: bool,
    },
    Word,
}

/// A streaming JSON reader.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    state: State,
    /// The number of open objects and arrays.
    depth: usize,
    levels: Vec<Level>,
    /// The part of the current string or word that was read so far.
    buffered: Vec<u8>,
    /// The length of the current string or word so far, which may exceed [`MAX_TEXT`].
    length: usize,
    too_long: bool,
    ended: bool,
}

/// A callback that receives a scalar and its path.
pub(crate) type Found<'f> = &'f mut dyn FnMut(&JsonPath<'_>, Scalar<'_>);

impl Reader {
    /// Whether the root value is complete.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads the next piece of the JSON text.
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

    /// Reads one byte between values. Returns the number of bytes consumed: one, or zero if a word begins.
    fn between(&mut self, text: &[u8]) -> usize {
        match text[0] {
            b'{' => self.open(false),
            b'[' => self.open(true),
            b'}' | b']' => self.close(),
            b'"' => self.begin(State::Text { escaped: false }),
            b',' => {
                if let Some(level) = self.current() {
                    level.at_key = !level.array;
                }
            }
            b':' => {
                if let Some(level) = self.current() {
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
        self.buffered.clear();
        self.length = 0;
        self.too_long = false;
    }

    fn open(&mut self, array: bool) {
        self.depth = self.depth.saturating_add(1);
        if self.depth <= MAX_DEPTH {
            self.levels.truncate(self.depth - 1);
            self.levels.push(Level { array, at_key: !array, key: Vec::new() });
        }
    }

    fn close(&mut self) {
        let Some(depth) = self.depth.checked_sub(1) else { return };
        self.depth = depth;
        if depth < MAX_DEPTH {
            self.levels.truncate(depth);
        }
        self.ended = depth == 0;
    }

    /// Returns the innermost open object or array. Returns `None` if it is deeper than [`MAX_DEPTH`].
    fn current(&mut self) -> Option<&mut Level> {
        let level = self.levels.last_mut()?;
        (self.depth <= MAX_DEPTH).then_some(level)
    }

    fn text(&mut self, text: &[u8], escaped: bool, found: Found<'_>) -> usize {
        if escaped {
            self.buffer(&text[..1]);
            self.state = State::Text { escaped: false };
            return 1;
        }
        let Some(at) = memchr::memchr2(b'"', b'\\', text) else {
            self.buffer(text);
            return text.len();
        };
        if text[at] == b'\\' {
            self.buffer(&text[..=at]);
            self.state = State::Text { escaped: true };
        } else {
            self.buffer(&text[..at]);
            self.state = State::Between;
            self.text_ended(found);
        }
        at + 1
    }

    fn text_ended(&mut self, found: Found<'_>) {
        if self.depth > MAX_DEPTH {
            return;
        }
        let (buffered, too_long) = (&self.buffered, self.too_long);
        match self.levels.last_mut() {
            Some(level) if level.at_key => {
                level.key.clear();
                if !too_long && buffered.len() <= MAX_KEY {
                    level.key.extend_from_slice(buffered);
                }
            }
            Some(_) if too_long => found(&JsonPath(&self.levels), Scalar::Long(self.length)),
            Some(_) => found(&JsonPath(&self.levels), Scalar::Text(buffered)),
            None => {}
        }
    }

    fn word(&mut self, text: &[u8], found: Found<'_>) -> usize {
        let ends =
            |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' | b':' | b'"');
        let Some(at) = text.iter().position(ends) else {
            self.buffer(text);
            return text.len();
        };
        self.buffer(&text[..at]);
        self.state = State::Between;
        if self.depth <= MAX_DEPTH && !self.levels.is_empty() && !self.too_long {
            found(&JsonPath(&self.levels), Scalar::Word(&self.buffered));
        }
        at
    }

    fn buffer(&mut self, text: &[u8]) {
        self.length = self.length.saturating_add(text.len());
        if self.depth > MAX_DEPTH || self.buffered.len() + text.len() > MAX_TEXT {
            self.too_long = true;
        } else {
            self.buffered.extend_from_slice(text);
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
            reader.feed(piece, &mut |path, scalar| {
                let keys: Vec<_> = path.0.iter().map(|level| String::from_utf8_lossy(&level.key)).collect();
                let value = match scalar {
                    Scalar::Text(text) => format!("'{}'", String::from_utf8_lossy(text)),
                    Scalar::Word(word) => String::from_utf8_lossy(word).into_owned(),
                    Scalar::Long(length) => format!("long:{length}"),
                };
                all.push(format!("{}={value}", keys.join(".")));
            });
        }
        (all, reader.has_ended())
    }

    #[test]
    fn reports_scalars_with_their_paths() {
        for (text, scalars) in [
            (
                r#"{"a":1,"b":{"c":"x","d":[true,{"e":null}]},"f":-2.5}"#,
                "a=1 b.c='x' b.d.=true b.d..e=null f=-2.5",
            ),
            (r#" { "a" : { } , "b" : [ ] , "c" : "" } "#, "c=''"),
            (r#"{"a":"\"}{\\","b":2}"#, r#"a='\"}{\\' b=2"#),
            (r#"{"a":{"b":{"c":{"d":{"e":{"f":{"g":{"deep":1},"h":2}}}}}},"i":3}"#, "a.b.c.d.e.f.h=2 i=3"),
            (r#"[{"a":1},2]"#, ".a=1 =2"),
            (r#"{"usage":"{\"usage\":{\"input\":9}}"}"#, r#"usage='{\"usage\":{\"input\":9}}'"#),
        ] {
            let (scalars_seen, ended) = read(&[text.as_bytes()]);
            assert_eq!(scalars_seen.join(" "), scalars, "{text}");
            assert!(ended, "{text}");
        }
    }

    #[test]
    fn skips_long_and_deep_values() {
        let long = "x".repeat(1 << 20);
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!(r#"{{"{long}":1,"a":"{long}","b":{deep},"c":{long},"d":4}}"#);
        let (scalars_seen, ended) = read(&[text.as_bytes()]);
        assert_eq!((scalars_seen.join(" ").as_str(), ended), ("=1 a=long:1048576 d=4", true));
    }

    #[test]
    fn tolerates_malformed_input() {
        for text in ["", "}", "]]}{", ":::", "\"", "{\"a\" \"b\"", "<html>", "{,:}", "nul", "{\"a\":tr"] {
            let (scalars_seen, _) = read(&[text.as_bytes()]);
            assert!(scalars_seen.len() <= 2, "{text}: {scalars_seen:?}");
        }
    }

    proptest! {
        #[test]
        fn splitting_the_input_makes_no_difference(
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
