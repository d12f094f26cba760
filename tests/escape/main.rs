//! Attacks that must fail, on whole launches.
//!
//! ```text
//! everywhere   the places of a machine and its engine where a secret could lie, searched again and again
//! secrets      a launch with secrets, looked for in all of them while it runs
//! ```

mod everywhere;
mod secrets;
