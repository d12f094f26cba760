//! The guest as a process, driven over its socket as a keeper would.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stderr)] // a skipped test says so aloud

mod bottle;
mod copies;
mod end;
mod host;
mod processes;
mod proxy;
mod stdio;
mod terminals;
