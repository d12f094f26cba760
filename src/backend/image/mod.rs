//! What an image says, read the same way on every backend.
//!
//! - `account`: who the agent is in it
//! - `config`: what of its configuration holds in a bottle
//! - `local`: what lies at a path of `$BOTTLE_HOME`, and the name that follows from it
//! - `building`: one making at a time

pub(crate) mod account;
pub(crate) mod building;
pub(crate) mod config;
pub(crate) mod hash;
pub(crate) mod local;
