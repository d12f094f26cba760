//! What the dashboards show and do.
//!
//! - `gather`: reads the records, the ledger, the queue and the logs
//! - `model`: the shown data as plain values, and values computed from it; `words`: numbers and times in words
//! - `action`: what the user can do

pub mod action;
pub mod gather;
pub mod model;
#[cfg(any(test, feature = "test-parts"))]
pub mod sample;
pub mod words;
