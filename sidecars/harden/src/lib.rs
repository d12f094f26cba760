//! Drops the privileges of the bundle and its daemons.
//!
//! These processes hold credentials, and parse input from a bottle that may be hostile. Each of them
//! therefore drops all privileges that it does not need before it reads credentials or input. No step can be
//! undone, and threads inherit every step. A process with a single thread must call the steps in this order:
//!
//! ```text
//! reach     open folders that the unprivileged user cannot reach
//! identity  switch to an unprivileged user (if root starts the process and an identity is configured)
//! process   not dumpable, no core file, no new privileges, no capabilities
//! files     Landlock: access to only a few files and folders
//! syscalls  seccomp: no new programs, no access to other processes, no mounts
//!           (filter compiles system call filters; calls contains lists that the backends use too)
//! ```
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

/// A protection that this kernel lacks. The text is a part of a sentence for the user, in lower case.
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
    /// The file rules could not be applied.
    #[error("restrict files")]
    Files(#[from] ::landlock::RulesetError),
    /// A path in the file rules cannot be opened.
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

/// Converts an error of the kernel to one that names the step.
fn step(step: &'static str) -> impl FnOnce(nix::Error) -> HardenError {
    move |source| HardenError::Step { step, source }
}
