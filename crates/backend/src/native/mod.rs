//! The backends that isolate bottles with the kernel of this machine.
//!
//! On Linux these are the backends `linux` and `smolvm`. On macOS there is none: bottles run in the containers of an engine. The program
//! has one implementation of this module for each system, so that no other module asks which system it runs on.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub use linux::has_program;
#[cfg(target_os = "linux")]
pub(crate) use linux::{after_engine, for_tests, preferred};
#[cfg(target_os = "macos")]
pub use macos::has_program;
#[cfg(target_os = "macos")]
pub(crate) use macos::{after_engine, for_tests, preferred};
