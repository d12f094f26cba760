//! Token usage, read from a model's answer as it passes.
//!
//! ```text
//!                    ┌─ events ─► data of each event ─┐
//! decoded answer ────┤                                ├─► json ─► scalars ─► numbers, model, end
//!                    └─ one object ───────────────────┘
//! ```
//! Pure: bytes in, numbers out. An answer may be of any length and cut into any pieces; memory stays the same and
//! so does what is read. It is hostile: a number that is negative, broken or beyond reason is not taken.

mod events;
mod json;

use bottle_contract::usage::{Api, Tokens};
use events::{Events, Piece};
use json::{JsonPath, Reader, Scalar};

/// The most tokens that one answer can have to do with; a thousand times the longest contexts.
const MOST: u64 = 1_000_000_000;
/// The longest name of a model.
const MODEL: usize = 128;

/// What an answer said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The model, in plain characters.
    pub model: Option<String>,
    /// The numbers.
    pub tokens: Tokens,
    /// Whether it broke off.
    pub interrupted: bool,
}

/// Reads one answer.
#[derive(Debug)]
pub struct Meter {
    api: Api,
    text: Text,
    noted: Noted,
}

/// How the answer is written.
#[derive(Debug)]
enum Text {
    /// Nothing of it has come.
    Unknown,
    Whole(Reader),
    Events {
        events: Events,
        data: Reader,
        word: Vec<u8>,
    },
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Noted {
    model: Option<String>,
    tokens: Tokens,
    /// It is an answer of the API, and not something else from the same path.
    known: bool,
    /// The event under way is the last one.
    last: bool,
    /// A choice was brought to its end, in Chat Completions.
    finished: bool,
    ended: bool,
}

/// What a stream of Chat Completions ends with.
const DONE: &[u8] = b"[DONE]";

impl Meter {
    /// For an answer of this API; `streams`: its headers say that it comes as events.
    #[must_use]
    pub fn new(api: Api, streams: bool) -> Self {
        Self { api, text: Text::Unknown, noted: Noted { known: streams, ..Noted::default() } }
    }

    /// Reads the next piece, decoded.
    pub fn feed(&mut self, mut piece: &[u8]) {
        if let Text::Unknown = self.text {
            let Some(at) = piece.iter().position(|byte| !byte.is_ascii_whitespace()) else { return };
            piece = &piece[at..];
            self.text = if piece[0] == b'{' {
                Text::Whole(Reader::default())
            } else {
                Text::Events { events: Events::default(), data: Reader::default(), word: Vec::new() }
            };
        }
        let (api, noted) = (self.api, &mut self.noted);
        match &mut self.text {
            Text::Unknown => {}
            Text::Whole(reader) => {
                reader.feed(piece, &mut |way, scalar| noted.whole(api, way, scalar));
                noted.ended |= reader.has_ended();
            }
            Text::Events { events, data, word } => events.feed(piece, &mut |piece| {
                if noted.ended {
                    return;
                }
                match piece {
                    Piece::Data(text) => {
                        let room = (DONE.len() + 1).saturating_sub(word.len());
                        word.extend_from_slice(&text[..text.len().min(room)]);
                        data.feed(text, &mut |way, scalar| noted.event(api, way, scalar));
                    }
                    Piece::End => {
                        noted.ended = noted.last || word == DONE;
                        *data = Reader::default();
                        word.clear();
                    }
                }
            }),
        }
    }

    /// Whether all is read that there is to read: what may still come changes nothing.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.noted.ended
    }

    /// What was read; none when it was no answer of a model. `whole`: its transport says that all of it came.
    #[must_use]
    pub fn finish(self, whole: bool) -> Option<Reading> {
        let Noted { model, tokens, known, last, finished, ended } = self.noted;
        // An event that lacks nothing but the empty line behind it.
        let unspaced = last && matches!(&self.text, Text::Events { data, .. } if data.has_ended());
        let interrupted = !(ended || whole && (finished || unspaced));
        known.then_some(Reading { model, tokens, interrupted })
    }
}

impl Noted {
    /// A scalar of an answer that comes as one object.
    fn whole(&mut self, api: Api, way: &JsonPath<'_>, scalar: Scalar<'_>) {
        let kind = match api {
            Api::Messages => "type",
            Api::ChatCompletions | Api::Responses => "object",
        };
        let expected: &[u8] = match api {
            Api::Messages => b"message",
            Api::ChatCompletions => b"chat.completion",
            Api::Responses => b"response",
        };
        if way.is(&[kind])
            && let Scalar::Text(text) = scalar
        {
            self.known |= text.starts_with(expected);
        }
        self.common(api, way, scalar);
    }

    /// A scalar of an event.
    fn event(&mut self, api: Api, way: &JsonPath<'_>, scalar: Scalar<'_>) {
        match (api, scalar) {
            (Api::Messages, Scalar::Text(kind)) if way.is(&["type"]) => {
                self.known |= kind == b"message_start";
                self.last = kind == b"message_stop";
            }
            (Api::Responses, Scalar::Text(kind)) if way.is(&["type"]) => {
                self.known |= kind.starts_with(b"response.");
                self.last =
                    matches!(kind, b"response.completed" | b"response.incomplete" | b"response.failed");
            }
            (Api::ChatCompletions, Scalar::Text(kind)) if way.is(&["object"]) => {
                self.known |= kind.starts_with(b"chat.completion");
            }
            (Api::ChatCompletions, Scalar::Text(_)) if way.is(&["choices", "", "finish_reason"]) => {
                self.finished = true;
            }
            _ => {}
        }
        let inner = match api {
            Api::Messages => way.below(&["message"]),
            Api::Responses => way.below(&["response"]),
            Api::ChatCompletions => None,
        };
        self.common(api, inner.as_ref().unwrap_or(way), scalar);
    }

    /// What stands in an answer wherever it stands whole.
    fn common(&mut self, api: Api, way: &JsonPath<'_>, scalar: Scalar<'_>) {
        match scalar {
            Scalar::Text(text) if way.is(&["model"]) => self.model = model(text).or(self.model.take()),
            Scalar::Word(word) => {
                let Some(way) = way.below(&["usage"]) else { return };
                let Some(place) = self.tokens_at(api, &way) else { return };
                if let Some(number) = number(word) {
                    // What is told again is told of all until there.
                    *place = Some(place.unwrap_or(0).max(number));
                    self.known = true;
                }
            }
            Scalar::Text(_) => {}
        }
    }

    /// Where a number of `usage` belongs.
    fn tokens_at(&mut self, api: Api, way: &JsonPath<'_>) -> Option<&mut Option<u64>> {
        let Tokens { input, output, cached, cache_written } = &mut self.tokens;
        let places: &[(&[&str], _)] = match api {
            Api::Messages => &[
                (&["input_tokens"], 0),
                (&["output_tokens"], 1),
                (&["cache_read_input_tokens"], 2),
                (&["cache_creation_input_tokens"], 3),
            ],
            Api::ChatCompletions => &[
                (&["prompt_tokens"], 0),
                (&["completion_tokens"], 1),
                (&["prompt_tokens_details", "cached_tokens"], 2),
                (&["prompt_tokens_details", "cache_write_tokens"], 3),
            ],
            Api::Responses => &[
                (&["input_tokens"], 0),
                (&["output_tokens"], 1),
                (&["input_tokens_details", "cached_tokens"], 2),
                (&["input_tokens_details", "cache_write_tokens"], 3),
            ],
        };
        let (_, place) = places.iter().find(|(keys, _)| way.is(keys))?;
        [input, output, cached, cache_written].into_iter().nth(*place)
    }
}

/// A count that can be meant.
fn number(word: &[u8]) -> Option<u64> {
    if !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok().filter(|number| *number <= MOST)
}

/// The name in plain characters; none when it is none or too long.
fn model(written: &[u8]) -> Option<String> {
    let quoted = [b"\"", written, b"\""].concat();
    let name: String = serde_json::from_slice(&quoted).ok()?;
    let plain = |character: char| if character.is_ascii_graphic() { character } else { '?' };
    let name: String = name.chars().map(plain).collect();
    (!name.is_empty() && name.len() <= MODEL).then_some(name)
}
