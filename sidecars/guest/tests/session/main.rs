//! Tests the guest as a process, with the test as its keeper.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stderr)] // a skipped test says so aloud

mod bottle;
mod copies;
mod host;
mod processes;
mod proxy;
mod shutdown;
mod stdio;
mod terminals;
