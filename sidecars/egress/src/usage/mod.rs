//! Counts the token usage of model responses and stores the records until the keeper process has them on disk.
//!
//! ```text
//! upstream ─► tracker ─► inbound scan ─► bottle
//!                └─ decoded ─► meter ─► record ─► outbox ─► bundle ─► keeper ─► usage/<slug>.jsonl
//!                                                   └─ a file, until the keeper acknowledges the record
//! ```
//! The proxy creates one record for each successful response of a model. The proxy creates the record after it has read
//! the last event and before the bottle receives this event. If the response is interrupted, or if the proxy shuts
//! down, the proxy creates the record at that time. If the client disconnects before the response, the proxy also
//! creates a record, because the provider may still answer the request. No request or response waits for a record. A
//! record settles the tokens that were reserved for its request.
//!
//! A WebSocket of OpenAI's Responses API carries many requests and responses. The proxy creates a record for each
//! response.

mod outbox;
mod tracker;

pub(crate) use outbox::Outbox;
pub(crate) use tracker::{InFlight, MessageProgress, UsageTracker};
