//! Interprets images the same way on every backend.
//!
//! - `account`: the agent's user account
//! - `config`: the parts of the configuration that apply in a bottle
//! - `local`: images in `$BOTTLE_HOME`, and the hash of their metadata
//! - `saved`: saved images, with their layers
//! - `build_lock`: allows only one build of an image at a time

pub mod account;
pub mod build_lock;
pub mod config;
pub mod hash;
pub mod local;
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "only backends that exist on Linux unpack images"))]
pub mod saved;
