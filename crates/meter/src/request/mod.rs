//! Reads a request to a model, strictly and once: everything that a budget needs to know before the request is sent.
//!
//! ```text
//! decoded body ─► JSON, no key twice ─► fields of the API ─► blocks, tools, data ─► counts and references
//! ```
//! The body is untrusted, and the provider reads it too. So nothing may have two meanings. Two equal keys, another
//! spelling of a field that affects the cost, or a limit that is no whole number is an error. Content that the request
//! only refers to has no known length; the reader names the reference, and the caller reserves the whole context of the
//! model.

mod count;
mod fields;
mod walk;

use std::hash::{BuildHasher, Hasher, RandomState};

use bottle_protocol::usage::Api;
use serde::de::DeserializeSeed as _;

use walk::{Reader, Request};

/// The maximum number of responses that one request can ask for. OpenAI rejects more.
const MAX_COMPLETIONS: u64 = 128;

/// The tokens that a provider adds to each prompt: the instructions for tools have up to 530
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview>).
const ADDED: u64 = 600;

/// A request to a model, as far as it matters for its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeteredRequest {
    /// The model name, in printable ASCII. `None` if there is none, or if the gateway may use another model.
    pub model: Option<String>,
    /// The output limit of one response. `None` if the request has no limit, or 0, which some servers read as no limit.
    pub output: Option<u64>,
    /// The number of responses, at least 1.
    pub completions: u64,
    /// Whether the provider may respond later, outside of this exchange.
    pub background: bool,
    /// Whether the response is a stream of events.
    pub streams: bool,
    /// The tokens of the text that the model reads, an upper estimate. The basis of a calibration.
    pub text: u64,
    /// The tokens of fields that the model should not read.
    pub other: u64,
    /// The maximum number of images: those in the request, and those that it refers to.
    pub images: u64,
    /// Something that the model reads but that is not in the request, if there is any.
    pub reference: Option<&'static str>,
    /// A number that is equal for two requests with the same prompt, however they are written. `None` if it was not
    /// wanted.
    pub fingerprint: Option<u64>,
}

/// Why a body is no request that can be metered. The text continues "a request whose body".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotARequest(&'static str);

impl MeteredRequest {
    /// Reads a decoded body. `keys` makes the fingerprint, and the check for equal keys, unpredictable for the agent.
    /// `compares` states whether the fingerprint is wanted, which costs a second pass over the text.
    ///
    /// # Errors
    /// [`NotARequest`] if the body is no JSON object, is nested deeper than 127 levels, has a key twice, or has a field
    /// of another type than the API documents.
    pub fn read(api: Api, body: &[u8], keys: &RandomState, compares: bool) -> Result<Self, NotARequest> {
        let mut reader = Reader::new(api, keys, compares);
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = Request(&mut reader).deserialize(&mut json).and_then(|()| json.end());
        match read {
            Ok(()) => Ok(reader.finish()),
            Err(_) => Err(NotARequest(reader.problem.unwrap_or("is not a valid JSON object"))),
        }
    }

    /// The tokens of the prompt, an upper estimate, without images and without content that the request only refers to.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        self.text.saturating_add(self.other).saturating_add(ADDED)
    }
}

#[cfg(test)]
mod tests;
