//! Reads token usage from a model's response while it streams.
//!
//! ```text
//!                    ┌─ events ─► data of each event ─┐
//! decoded response ──┤                                ├─► json ─► scalars ─► numbers, model, end
//!                    └─ one object ───────────────────┘
//! ```
//! This crate performs no I/O. A response may have any length and arrive in pieces of any size: memory use is constant,
//! and the result does not depend on the pieces. The input is untrusted, so negative, malformed and implausible numbers
//! are ignored. If a response reports no input or output count, the meter uses an estimate, so that every model
//! response has both counts.

mod events;
mod json;
mod models;
mod request;

use bottle_protocol::usage::{Api, Tokens};
use events::{Events, Piece};
use json::{JsonPath, Reader, Scalar};

pub use models::Limits;
pub use request::{MeteredRequest, NotARequest};

/// The largest plausible token count: a thousand times the longest context of a model. Larger numbers are
/// ignored.
const MAX_TOKENS: u64 = 1_000_000_000;
/// The longest accepted model name, in bytes. A longer name is ignored.
const MAX_MODEL: usize = 128;

/// The number of bytes of text per token in an estimate. Most texts have fewer tokens than this estimate.
const BYTES_PER_TOKEN: u64 = 3;

/// Estimates the number of tokens of a text from its length in bytes, rounded up.
#[must_use]
pub fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN).min(MAX_TOKENS)
}

/// The usage of one response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The model name, in printable ASCII.
    pub model: Option<String>,
    /// The token counts. `input` and `output` are present.
    pub tokens: Tokens,
    /// Whether the response was interrupted.
    pub interrupted: bool,
    /// Whether a count is an estimate, or the response reported an implausible count.
    pub estimated: bool,
}

/// The maximum usage of a response. The meter uses these values in place of counts that are missing or not final.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expected {
    /// The tokens of the prompt.
    pub prompt: u64,
    /// Whether the provider may add tokens to the prompt after the beginning of the response has reported the tokens of
    /// the prompt.
    pub may_grow: bool,
    /// The tokens of the output. `None` if no tokens were reserved for the output. The meter then estimates the output
    /// from the received text.
    pub output: Option<u64>,
}

/// Reads the usage of one response.
#[derive(Debug)]
pub struct Meter {
    api: Api,
    text: Text,
    progress: Progress,
}

/// The format of the response body.
#[derive(Debug)]
enum Text {
    /// The format is unknown because no content has arrived yet.
    Unknown,
    Whole(Reader),
    Events {
        events: Events,
        data: Reader,
        word: Vec<u8>,
    },
}

/// The values read so far.
#[derive(Debug, Default)]
struct Progress {
    model: Option<String>,
    tokens: Tokens,
    /// The sums of the counts in `usage.iterations` of the current event or body. An iteration can be a compaction,
    /// which the top-level counts do not include. Used for Messages only.
    iterations: Tokens,
    /// Whether the body is a response of the API, and not other content at the same URL path.
    known: bool,
    /// Whether the current event is the last event of the response.
    last: bool,
    /// The number of bytes of the model's text so far.
    output_bytes: u64,
    /// Whether a reported count was malformed or implausible.
    implausible: bool,
    /// Whether a choice has finished. Used for Chat Completions only.
    finished: bool,
    /// Whether an event reported an error. Used for Responses only.
    failed: bool,
    /// Whether an event so far contained a `stop_reason`. Used for Messages only.
    stopped: bool,
    /// Whether an event after which the counts cover the whole response has ended. Used for Messages only.
    counted: bool,
    ended: bool,
}

/// The data of the last event in a Chat Completions stream.
const DONE: &[u8] = b"[DONE]";

impl Meter {
    /// Creates a meter for a response of `api`. `streams` states whether the response headers announce
    /// server-sent events.
    #[must_use]
    pub fn new(api: Api, streams: bool) -> Self {
        Self { api, text: Text::Unknown, progress: Progress { known: streams, ..Progress::default() } }
    }

    /// Reads the next piece of the decoded body.
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
        let (api, progress) = (self.api, &mut self.progress);
        match &mut self.text {
            Text::Unknown => {}
            Text::Whole(reader) => {
                // In a response that is a single JSON object, nearly all bytes are the model's text.
                progress.output_bytes += piece.len() as u64;
                reader.feed(piece, &mut |path, scalar| progress.whole(api, path, scalar));
                progress.ended |= reader.has_ended();
            }
            Text::Events { events, data, word } => events.feed(piece, &mut |piece| {
                if progress.ended {
                    return;
                }
                match piece {
                    Piece::Data(text) => {
                        let room = (DONE.len() + 1).saturating_sub(word.len());
                        word.extend_from_slice(&text[..text.len().min(room)]);
                        data.feed(text, &mut |path, scalar| progress.event(api, path, scalar));
                    }
                    Piece::End => {
                        progress.add_up();
                        progress.ended = progress.last || word == DONE;
                        progress.counted |= progress.stopped;
                        *data = Reader::default();
                        word.clear();
                    }
                }
            }),
        }
    }

    /// Reads the next event of a response that arrives as WebSocket messages. `event` is the whole message.
    pub fn feed_message(&mut self, event: &[u8]) {
        let (api, progress) = (self.api, &mut self.progress);
        if progress.ended {
            return;
        }
        let mut reader = Reader::default();
        reader.feed(event, &mut |path, scalar| progress.event(api, path, scalar));
        progress.add_up();
        progress.ended = progress.last && reader.has_ended();
    }

    /// Whether the provider sent an error and no part of a response. The request then used no tokens.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.progress.failed && !self.progress.known
    }

    /// Whether an event of the response reported an error.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.progress.failed
    }

    /// Whether the usage is complete, so that later input cannot change it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.progress.ended
    }

    /// Returns the usage, or `None` if the body is not a model response. `whole` states whether the transport
    /// delivered the complete body.
    ///
    /// If an interrupted body might have become a model response, the meter treats the body as a model response.
    /// Otherwise an agent could avoid being metered by disconnecting early.
    #[must_use]
    pub fn finish(mut self, whole: bool, expected: Expected) -> Option<Reading> {
        self.progress.add_up();
        let Progress {
            model,
            mut tokens,
            known,
            last,
            output_bytes,
            implausible,
            finished,
            counted,
            ended,
            ..
        } = self.progress;
        // The last event is complete, but the empty line that should follow the event is missing.
        let unspaced = last && matches!(&self.text, Text::Events { data, .. } if data.has_ended());
        let interrupted = !(ended || whole && (finished || unspaced));
        let undecided = !ended && !whole && matches!(self.text, Text::Unknown | Text::Whole(_));
        if !known && !undecided {
            return None;
        }
        let is_proven = |count: Option<u64>| count.is_some() && (counted || !interrupted);
        let (input, output) = (is_proven(tokens.input), is_proven(tokens.output));
        let estimated = interrupted || implausible || !input || !output;
        if !input {
            let reported = tokens.input.unwrap_or(0);
            // The beginning of a response reports the tokens of the prompt. This count is final unless the provider may
            // add tokens to the prompt later.
            let unproven = if reported == 0 || expected.may_grow { expected.prompt } else { 0 };
            tokens.input = Some(reported.max(unproven).max(1));
        }
        if !output {
            // If a response is interrupted, its reported output count covers only the beginning of the response.
            let unproven = expected.output.unwrap_or(0).max(estimate(output_bytes));
            tokens.output = tokens.output.max(Some(unproven));
        }
        Some(Reading { model, tokens, interrupted, estimated })
    }
}

impl Progress {
    /// Handles a scalar of a response that is a single JSON object.
    fn whole(&mut self, api: Api, path: &JsonPath<'_>, scalar: Scalar<'_>) {
        let kind = match api {
            Api::Messages => "type",
            Api::ChatCompletions | Api::Responses => "object",
        };
        let expected: &[u8] = match api {
            Api::Messages => b"message",
            Api::ChatCompletions => b"chat.completion",
            Api::Responses => b"response",
        };
        if path.is(&[kind])
            && let Scalar::Text(text) = scalar
        {
            self.known |= text.starts_with(expected);
        }
        self.common(api, path, scalar);
    }

    /// Handles a scalar of a server-sent event.
    fn event(&mut self, api: Api, path: &JsonPath<'_>, scalar: Scalar<'_>) {
        if is_text(api, path) {
            self.output_bytes += scalar.length();
        }
        match (api, scalar) {
            (Api::Messages, Scalar::Text(kind)) if path.is(&["type"]) => {
                self.known |= kind == b"message_start";
                self.last = kind == b"message_stop";
            }
            (Api::Messages, Scalar::Text(_)) if path.is(&["delta", "stop_reason"]) => self.stopped = true,
            (Api::Responses, Scalar::Text(kind)) if path.is(&["type"]) => {
                self.known |= kind.starts_with(b"response.");
                self.failed |= kind == b"error";
                self.last =
                    matches!(kind, b"response.completed" | b"response.incomplete" | b"response.failed");
            }
            (Api::ChatCompletions, Scalar::Text(kind)) if path.is(&["object"]) => {
                self.known |= kind.starts_with(b"chat.completion");
            }
            (Api::ChatCompletions, Scalar::Text(_)) if path.is(&["choices", "", "finish_reason"]) => {
                self.finished = true;
            }
            _ => {}
        }
        let inner = match api {
            Api::Messages => path.below(&["message"]),
            Api::Responses => path.below(&["response"]),
            Api::ChatCompletions => None,
        };
        self.common(api, inner.as_ref().unwrap_or(path), scalar);
    }

    /// Handles a scalar in a field that both single objects and events contain.
    fn common(&mut self, api: Api, path: &JsonPath<'_>, scalar: Scalar<'_>) {
        match scalar {
            Scalar::Long(_) => {}
            Scalar::Text(text) if path.is(&["model"]) => self.model = model(text).or(self.model.take()),
            Scalar::Word(word) => {
                let Some(path) = path.below(&["usage"]) else { return };
                let iteration = path.below(&["iterations", ""]).filter(|_| api == Api::Messages);
                let tokens = if iteration.is_some() { &mut self.iterations } else { &mut self.tokens };
                let Some(count) = count_at(tokens, api, iteration.as_ref().unwrap_or(&path)) else { return };
                if let Some(number) = number(word) {
                    let so_far = count.unwrap_or(0);
                    // The counts of a later event include those of earlier events, so the largest count is used.
                    *count = Some(if iteration.is_some() {
                        so_far.saturating_add(number)
                    } else {
                        so_far.max(number)
                    });
                    self.known = true;
                } else if word != b"null" {
                    self.implausible = true;
                }
            }
            Scalar::Text(_) => {}
        }
    }

    /// Raises the counts to the sums of the iterations. Called at the end of each event and of the body. The iterations
    /// in one event cover the whole response so far.
    fn add_up(&mut self) {
        let Tokens { input, output, cached, cache_written } = std::mem::take(&mut self.iterations);
        let all = &mut self.tokens;
        all.input = all.input.max(input);
        all.output = all.output.max(output);
        all.cached = all.cached.max(cached);
        all.cache_written = all.cache_written.max(cache_written);
    }
}

/// Returns the field of `tokens` for a path below `usage`, or below an iteration in `usage`.
fn count_at<'t>(tokens: &'t mut Tokens, api: Api, path: &JsonPath<'_>) -> Option<&'t mut Option<u64>> {
    let Tokens { input, output, cached, cache_written } = tokens;
    let counts: &[(&[&str], _)] = match api {
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
    let (_, count) = counts.iter().find(|(keys, _)| path.is(keys))?;
    [input, output, cached, cache_written].into_iter().nth(*count)
}

/// Whether the value at this path of an event is a part of the model's text, or of the arguments of a tool call.
fn is_text(api: Api, path: &JsonPath<'_>) -> bool {
    match api {
        Api::Messages => path
            .below(&["delta"])
            .is_some_and(|rest| ["text", "thinking", "partial_json"].iter().any(|key| rest.is(&[key]))),
        Api::Responses => path.is(&["delta"]),
        Api::ChatCompletions => path.below(&["choices", "", "delta"]).is_some_and(|rest| {
            ["content", "reasoning", "reasoning_content", "refusal"].iter().any(|key| rest.is(&[key]))
                || rest.is(&["tool_calls", "", "function", "arguments"])
        }),
    }
}

/// Parses a number. Returns `None` if it is malformed or implausible.
fn number(word: &[u8]) -> Option<u64> {
    if !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok().filter(|number| *number <= MAX_TOKENS)
}

/// Returns the model name in printable ASCII, or `None` if it is empty or too long.
fn model(written: &[u8]) -> Option<String> {
    let quoted = [b"\"", written, b"\""].concat();
    let name: String = serde_json::from_slice(&quoted).ok()?;
    let plain = |character: char| if character.is_ascii_graphic() { character } else { '?' };
    let name: String = name.chars().map(plain).collect();
    (!name.is_empty() && name.len() <= MAX_MODEL).then_some(name)
}
