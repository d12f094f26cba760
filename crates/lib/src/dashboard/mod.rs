//! What the dashboards show and do.
//!
//! - `gather`: reads the records, the ledger, the queue and the logs
//! - `model`: what is shown, as plain data, and what follows from it; `words`: numbers and times in words
//! - `action`: what the user can do

pub mod action;
pub mod gather;
pub mod model;
#[cfg(any(test, feature = "test-parts"))]
pub mod sample;
pub mod words;
