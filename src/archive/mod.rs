//! Files in and out of a bottle, as tar streams with its guest.
//!
//! - `pack`: files of the host into an archive
//! - `send`: files of the host on their way in
//! - `receive`: a stream from inside on its way to the thread that reads it
//! - `room`: how much of a disk one may take
//! - `unpack`: what it holds, onto the user's disk

mod pack;
mod receive;
mod room;
mod send;
mod unpack;

pub(crate) use pack::{append, append_all};
pub(crate) use receive::{ReceiveError, receive};
pub(crate) use room::Room;
pub(crate) use send::{SendError, send, stream};
pub(crate) use unpack::{Rules, unpack};
