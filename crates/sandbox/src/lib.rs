//! The backends that isolate bottles with the kernel of this machine. They exist only on Linux.
//!
//! - `linux`: namespaces · `smolvm`: virtual machines that contain the sandbox of `linux` · `fake`: no isolation, only
//!   in test builds
//! - `local`: the code that they share, because their sidecars are processes of this machine, and their files are in
//!   its directories
//! - `guest_entry`: the process that becomes pid 1 · `guest_spec`: what a backend passes to it

#![cfg(target_os = "linux")]

#[cfg(feature = "test-parts")]
pub mod fake;
pub mod guest_entry;
mod guest_spec;
pub mod linux;
pub mod local;
pub mod smolvm;
