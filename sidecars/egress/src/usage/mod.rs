//! Counts the token usage of model responses and stores the records until the keeper has them on disk.
//!
//! ```text
//! upstream ─► tracker ─► inbound scan ─► bottle
//!                └─ decoded ─► meter ─► record ─► outbox ─► bundle ─► keeper ─► usage/<slug>.jsonl
//!                                                   └─ a file, until the keeper acknowledges the record
//! ```
//! A response makes one record: when its last event is read and before the bottle receives it, or when it breaks off,
//! or when the proxy shuts down. Nothing waits for any of this.

mod outbox;
mod tracker;

pub(crate) use outbox::Outbox;
pub(crate) use tracker::UsageTracker;
