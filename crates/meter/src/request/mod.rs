//! Reads a request to a model with a strict parser. The result is everything that a budget needs to know before the
//! request is sent.
//!
//! ```text
//! decoded body ─► JSON, no key twice ─► fields of the API ─► blocks, tools, data ─► counts and references
//! ```
//! The body is untrusted, and the provider parses the body too. So the reader rejects a body that the provider could
//! read differently. Two equal keys, another spelling of a field that affects the cost, or a limit that is not a whole
//! number is an error. Content that the request only refers to has no known length. The reader names the reference, and
//! the caller then reserves the whole context of the model.

mod count;
mod fields;
mod walk;

use std::hash::{BuildHasher, Hasher, RandomState};

use bottle_protocol::usage::Api;
use serde::de::DeserializeSeed as _;

use walk::{Reader, Request};

/// The maximum number of responses that one request can ask for. OpenAI rejects a request for more responses.
const MAX_COMPLETIONS: u64 = 128;

/// The maximum tokens that a provider adds to each prompt. The instructions for tools have up to 530 tokens
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview>).
const ADDED: u64 = 600;

/// The parts of a request to a model that affect the number of its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeteredRequest {
    /// The model name, in printable ASCII. `None` if the request names no model, if the name is too long or has other
    /// characters, or if the gateway may use another model.
    pub model: Option<String>,
    /// The output limit of one response. `None` if the request has no limit, or a limit of 0. Some servers read 0 as no
    /// limit.
    pub output: Option<u64>,
    /// The number of responses, at least 1.
    pub completions: u64,
    /// Whether the provider may respond later, outside of the response to this request.
    pub background: bool,
    /// Whether the response is a stream of events.
    pub streams: bool,
    /// An upper estimate of the tokens of the text that the model reads. The budget calibrates this estimate.
    pub text: u64,
    /// An upper estimate of the tokens of the fields that the model is not expected to read.
    pub other: u64,
    /// The maximum number of images: the images in the request and the images that the request refers to.
    pub images: u64,
    /// Describes content that the model reads but that is not in the request. `None` if there is no such content.
    pub reference: Option<&'static str>,
    /// A hash that is equal for two requests with the same prompt, even if their JSON is formatted differently. `None`
    /// if the caller did not ask for the fingerprint.
    pub fingerprint: Option<u64>,
}

/// The reason why a body is not a request that can be metered. The message completes the phrase "a request whose body
/// ...".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotARequest(&'static str);

impl MeteredRequest {
    /// Reads a decoded body. `keys` are the hash keys for the fingerprint and for the check for equal object keys. They
    /// are secret, so the agent cannot predict a hash. `compares` states whether to compute the fingerprint, which
    /// costs a second pass over the text.
    ///
    /// # Errors
    /// [`NotARequest`] if the body is not a JSON object, is nested deeper than 127 levels, has an object with two equal
    /// keys, or has a field whose type differs from the API's documentation.
    pub fn read(api: Api, body: &[u8], keys: &RandomState, compares: bool) -> Result<Self, NotARequest> {
        let mut reader = Reader::new(api, keys, compares);
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = Request(&mut reader).deserialize(&mut json).and_then(|()| json.end());
        match read {
            Ok(()) => Ok(reader.finish()),
            Err(_) => Err(NotARequest(reader.problem.unwrap_or("is not a valid JSON object"))),
        }
    }

    /// Returns an upper estimate of the tokens of the prompt. The estimate excludes images and content that the request
    /// only refers to.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        self.text.saturating_add(self.other).saturating_add(ADDED)
    }
}

#[cfg(test)]
mod tests;
