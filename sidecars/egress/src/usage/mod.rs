//! What answers of models cost: counted as they pass, kept until the keeper has it on disk.
//!
//! ```text
//! upstream ─► counted ─► judged ─► bottle
//!                └─ decoded ─► meter ─► record ─► outbox ─► bundle ─► keeper ─► usage/<slug>.jsonl
//!                                                   └─ a file, until the keeper says that it is written
//! ```
//! An answer makes one record: when its last event is read and before the bottle has it, or when it breaks off,
//! or when the proxy ends. Nothing waits for any of this.

mod counted;
mod outbox;

pub(crate) use counted::Counting;
pub(crate) use outbox::Outbox;
