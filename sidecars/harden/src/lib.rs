//! Drops the privileges of the bundle and its daemons.
//!
//! The bundle and its daemons hold credentials, and parse input from a bottle that may be hostile. Each of
//! them therefore drops all privileges that it does not need before it reads credentials or input. No step
//! can be undone, and threads inherit every step. Call the steps in this order, before the process starts a
//! second thread:
//!
//! ```text
//! folder_access    open folders that the unprivileged user cannot reach
//! identity         switch to an unprivileged user (if root starts the process and an identity is configured)
//! process          not dumpable, no core file, no new privileges, no capabilities
//! landlock         Landlock: access to only a few files and folders
//! daemon_syscalls  seccomp: no new programs, no access to other processes, no mounts
//! ```
//! `seccomp_filter` compiles system call filters. `unneeded_syscalls` contains lists of system calls that the
//! backends use too.
//!
//! If the kernel lacks a protection, the step returns a [`MissingProtection`] and no error. If a step fails
//! although the kernel supports it, it returns an error, and the process must exit.
//!
//! This crate is not the bottle's sandbox, which the backend implements.

pub mod daemon_syscalls;
pub mod folder_access;
pub mod identity;
pub mod landlock;
pub mod process;
pub mod seccomp_filter;
pub mod unneeded_syscalls;

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "a skipped test says why")]
mod tests;

/// A protection that this kernel lacks. The text describes what is missing, as a part of a sentence that
/// begins in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProtection(pub String);

/// Why a privilege could not be dropped. The message names the step; the source has the cause.
#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    /// The kernel refused a step.
    #[error("{step}")]
    Step {
        /// What the step does.
        step: &'static str,
        /// The kernel's error.
        source: nix::Error,
    },
    /// The capabilities could not be dropped.
    #[error("drop capabilities")]
    Capabilities(#[from] caps::errors::CapsError),
    /// The Landlock rules could not be applied.
    #[error("restrict files")]
    Files(#[from] ::landlock::RulesetError),
    /// A path in the Landlock rules cannot be opened.
    #[error("restrict files")]
    Path(#[from] ::landlock::PathFdError),
    /// The system call filter could not be compiled or applied.
    #[error("filter system calls")]
    Filter(#[from] seccompiler::Error),
}

impl From<seccompiler::BackendError> for HardenError {
    fn from(error: seccompiler::BackendError) -> Self {
        Self::Filter(error.into())
    }
}

/// Converts an error of the kernel to a [`HardenError`] that names the failed step.
fn step(step: &'static str) -> impl FnOnce(nix::Error) -> HardenError {
    move |source| HardenError::Step { step, source }
}
