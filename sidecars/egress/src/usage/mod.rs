//! Counts the token usage of model responses and stores the records until the keeper process has them on disk.
//!
//! ```text
//! upstream ─► tracker ─► inbound scan ─► bottle
//!                └─ decoded ─► meter ─► record ─► outbox ─► bundle ─► keeper ─► usage/<slug>.jsonl
//!                                                   └─ a file, until the keeper acknowledges the record
//! ```
//! Each successful response of a model leads to one record. The proxy creates the record when it has read the last
//! event and before the bottle receives this event, or when the response is interrupted, or when the proxy shuts down.
//! A request whose client disconnects before the response leads to a record too, because the provider may answer it.
//! No request or response waits for a record. A record settles the tokens that were reserved for its request.
//!
//! A WebSocket of OpenAI's Responses API carries many requests and responses; each response leads to a record.

mod outbox;
mod tracker;

pub(crate) use outbox::Outbox;
pub(crate) use tracker::{InFlight, MessageProgress, UsageTracker};
