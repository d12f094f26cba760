//! Tests the guest as a separate process. The test takes the role of the keeper process.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stderr)] // a skipped test prints the reason

mod bottle;
mod copies;
mod host;
mod outliving;
mod processes;
mod proxy;
mod services;
mod shutdown;
mod stdio;
mod terminals;
mod workspace_files;
