//! The data and the actions of the dashboards.
//!
//! - `gather`: reads the records, the ledger, the queue and the logs
//! - `model`: the shown data as plain values, and functions that compute values from the data
//! - `words`: numbers and times in words
//! - `action`: the actions of the user

pub mod action;
pub mod gather;
pub mod model;
#[cfg(any(test, feature = "test-parts"))]
pub mod sample;
pub mod words;
