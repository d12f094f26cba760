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

pub(crate) use disk_budget::DiskBudget;
#[cfg(target_os = "linux")]
pub(crate) use disk_budget::full;
pub(crate) use pack::{append, append_all};
pub(crate) use receive::{ReceiveError, receive};
pub(crate) use send::{SendError, send, stream};
pub(crate) use unpack::{Rules, unpack};
