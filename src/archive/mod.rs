//! Files in and out of a bottle, as tar streams with its guest.
//!
//! - `send`: files of the host on their way in
//! - `receive`: a stream from inside on its way to the thread that reads it
//! - `unpack`: what it holds, onto the person's disk

mod receive;
mod send;
mod unpack;

pub(crate) use receive::{ReceiveError, receive};
pub(crate) use send::{SendError, send, stream};
pub(crate) use unpack::{Rules, unpack};
