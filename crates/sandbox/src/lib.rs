//! The backends that isolate bottles with the kernel of this machine. They exist only on Linux.
//!
//! - `linux`: namespaces · `smolvm`: virtual machines that contain the sandbox of `linux` · `fake`: no isolation, only
//!   in test builds
//! - `local`: the code that these backends share. Their sidecars are processes of this machine, and the files of their
//!   bottles are in directories of this machine.
//! - `guest_entry`: the process that becomes pid 1 · `guest_spec`: the data that a backend passes to this process

#![cfg(target_os = "linux")]

#[cfg(feature = "test-parts")]
pub mod fake;
pub mod guest_entry;
mod guest_spec;
pub mod linux;
pub mod local;
pub mod smolvm;
