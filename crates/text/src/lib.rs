//! Safe reading and display of text that users and agents wrote. The functions read neither files nor the clock.
//!
//! ```text
//! yaml      strict, bounded YAML reader and writer with positions
//! terminal  filters agent output before it reaches the user's terminal
//! suggest   suggests the nearest known word for a mistyped word
//! ```

pub mod suggest;
pub mod terminal;
pub mod yaml;
