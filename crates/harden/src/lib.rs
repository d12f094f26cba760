//! Drops the privileges of the bundle and its daemons.
//!
//! The bundle and its daemons hold credentials, and parse input from a bottle that may be hostile. Each of these
//! processes therefore drops all privileges that it does not need before it reads credentials or input. Each module of
//! this list implements one step. No step can be undone, and new threads inherit every step. Call the steps in the
//! order of the list, before the process starts a second thread:
//!
//! ```text
//! directory_access    open directories that the unprivileged user cannot reach
//! identity         switch to an unprivileged user (if root starts the process and an identity is configured)
//! process          not dumpable, no core file, no new privileges, no capabilities
//! landlock         Landlock: access to only a few files and directories
//! daemon_syscalls  seccomp: no new programs, no access to other processes, no mounts
//! ```
//! `child_limits` limits the resources of the programs that a daemon starts. `seccomp_filter` compiles system call
//! filters. `unneeded_syscalls` contains lists of system calls, which the backends use for their filters too.
//!
//! The list describes Linux, where the sidecars of every bottle run. On macOS the keeper calls `process`. A step for
//! which macOS has no counterpart reports a [`MissingProtection`], fails, or does nothing.
//!
//! If the kernel lacks a protection, the step returns a [`MissingProtection`] and no error. If the kernel supports the
//! step but the step fails, the step returns an error, and the process must exit.
//!
//! This crate does not implement the bottle's sandbox. The backend implements it.

mod files;
mod user;

#[cfg(target_os = "linux")]
pub mod child_limits;
#[cfg(target_os = "linux")]
pub mod daemon_syscalls;
#[cfg(target_os = "linux")]
pub mod directory_access;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
pub mod identity;
#[cfg(target_os = "linux")]
pub mod landlock;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod seccomp_filter;
#[cfg(target_os = "linux")]
pub mod unneeded_syscalls;

#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
pub use macos::{daemon_syscalls, directory_access, error, identity, landlock, process};

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::print_stderr, reason = "a skipped test says why")]
mod tests;

pub use error::HardenError;

/// A protection that this kernel lacks. The text is a sentence fragment that begins in lower case and says what is
/// missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProtection(pub String);

/// Converts an error of the kernel to a [`HardenError`] that names the failed step.
fn step(step: &'static str) -> impl FnOnce(nix::Error) -> HardenError {
    move |source| HardenError::Step { step, source }
}
