//! Asks the provider how many tokens a prompt has, if the setting `metering.exact` is on and a budget limits the
//! requests. The answer determines only how many tokens are reserved. The tokens that were used come from the model's
//! response. The proxy sends the question without a reservation and records no usage for it, because counting is free.
//!
//! Anthropic counts a request at `…/messages/count_tokens`, OpenAI at `…/responses/input_tokens`. Both providers accept
//! the fields of a request that belong to the prompt, and reject other fields. If the provider does not answer in time,
//! or its answer is unexpected, the proxy uses its own estimate.

use std::sync::Arc;

use bottle_protocol::usage::Api;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::body;
use super::forward::{self, Outgoing};
use super::head::RequestHead;
use super::permit::Permit;
use crate::bounds;
use crate::egress::Egress;

/// The fields of a request that Anthropic's counter accepts.
const MESSAGES: [&str; 7] =
    ["model", "messages", "system", "tools", "tool_choice", "thinking", "mcp_servers"];

/// The fields of a request that OpenAI's counter accepts.
const RESPONSES: [&str; 11] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "previous_response_id",
    "conversation",
    "reasoning",
    "text",
    "truncation",
];

/// An endpoint at which a provider counts the tokens of a prompt.
pub(super) struct Counter {
    /// The end of the endpoint's path, after the path of the request.
    end: &'static str,
    /// The fields of a request that the endpoint accepts.
    fields: &'static [&'static str],
}

impl Counter {
    /// Returns the counter for requests of this API to `path`. `None` if there is no such endpoint.
    pub(super) fn of(api: Api, path: &str) -> Option<Self> {
        match api {
            Api::Messages if path.ends_with("/messages") => {
                Some(Self { end: "/count_tokens", fields: &MESSAGES })
            }
            Api::Responses if path.ends_with("/responses") => {
                Some(Self { end: "/input_tokens", fields: &RESPONSES })
            }
            Api::Messages | Api::Responses | Api::ChatCompletions => None,
        }
    }
}

/// Returns the tokens of the prompt as the provider counts them. `None` if the provider does not count them.
pub(super) async fn prompt_tokens(
    egress: &Arc<Egress>,
    permit: &Permit<'_>,
    head: &RequestHead,
    Counter { end, fields }: Counter,
    text: &[u8],
) -> Option<u64> {
    let outgoing = Outgoing {
        target: permit.target.clone(),
        method: Method::POST,
        path_and_query: permit.path_and_query_at(&format!("{}{end}", permit.info.path)),
        headers: permit.rewrite.clone().strip(headers(head.headers())).inject(),
        body: body::full(prompt(text, fields)?),
        hints: None,
    };
    let counted = timeout(bounds::COUNT_WITHIN, count(egress, outgoing)).await.ok().flatten();
    if counted.is_none() {
        tracing::debug!(host = permit.host(), "the provider did not count the tokens of a prompt");
    }
    counted
}

async fn count(egress: &Arc<Egress>, outgoing: Outgoing) -> Option<u64> {
    let response = forward::send(&egress.upstream, outgoing).await.ok()?;
    if response.status() != StatusCode::OK {
        return None;
    }
    let mut body = response.into_body();
    let mut answer = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.ok()?;
        answer.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if answer.len() > bounds::COUNT_BYTES {
            return None;
        }
    }
    let answer: Value = serde_json::from_slice(&answer).ok()?;
    answer["input_tokens"].as_u64()
}

/// Returns the part of a request that the provider counts. Returns `None` if the request is not a JSON object, or is
/// too long.
fn prompt(text: &[u8], fields: &[&str]) -> Option<Vec<u8>> {
    if text.len() > bounds::COUNTED_PROMPT {
        return None;
    }
    let mut request: Map<String, Value> = serde_json::from_slice(text).ok()?;
    request.retain(|key, _| fields.contains(&key.as_str()));
    serde_json::to_vec(&request).ok()
}

/// Returns the headers of the request, changed for an unencoded JSON body of another length.
fn headers(of_request: &HeaderMap) -> HeaderMap {
    let mut headers = of_request.clone();
    for name in [CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}
