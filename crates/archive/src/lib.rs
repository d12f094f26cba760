//! Copies files into and out of a bottle, as tar streams to and from its guest.
//!
//! - `pack`: adds host files to an archive
//! - `send`: streams an archive into a bottle
//! - `receive`: streams an archive out of a bottle
//! - `disk_budget`: limits the disk space of an extraction
//! - `unpack`: extracts an untrusted archive onto the user's disk

mod disk_budget;
mod pack;
mod receive;
mod send;
mod unpack;

pub use disk_budget::DiskBudget;
#[cfg(target_os = "linux")]
pub use disk_budget::full;
pub use pack::{append, append_all};
pub use receive::{ReceiveError, receive};
pub use send::{SendError, send, stream};
pub use unpack::{Rules, unpack};
