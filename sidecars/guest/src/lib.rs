//! Pid 1 of every bottle.

pub mod forward;
pub mod probe;
pub mod resolver;
