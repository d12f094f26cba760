//! Drops privileges of the bottle's own processes: the bundle and its daemons.
//!
//! These processes have credentials and parse input of a hostile bottle. So each drops every privilege
//! that it does not need, before it reads either. Every step is final and inherited by threads. Call the
//! steps from a single-threaded process, in this order:
//!
//! ```text
//! reach     open folders that the later user cannot reach
//! identity  switch to an unprivileged user (if root starts the process and an identity is configured)
//! process   not dumpable, no core file, no new privileges, no capabilities
//! files     Landlock: a few files to read, a few folders to write
//! syscalls  seccomp: no new programs, no access to other processes, no mounts
//!           (filter compiles a list of calls; calls has lists that the backends use too)
//! ```
//! A protection that the kernel lacks is a [`MissingProtection`], not an error. A step that fails on a
//! kernel that supports it is an error, and the process must exit.
//!
//! This is not the bottle's sandbox: that belongs to the backend.

pub mod calls;
pub mod files;
pub mod filter;
pub mod identity;
pub mod process;
pub mod reach;
pub mod syscalls;

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "a skipped test says why")]
mod tests;

/// A protection that this kernel lacks, as a lower-case fragment for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProtection(pub String);

/// Dropping a privilege failed.
#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    /// The kernel refused a step.
    #[error("{step}: {source}")]
    Step {
        /// The step.
        step: &'static str,
        /// The kernel's error.
        source: nix::Error,
    },
    /// Capabilities could not be dropped.
    #[error("drop capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// The file rules could not be applied.
    #[error("restrict files: {0}")]
    Files(#[from] landlock::RulesetError),
    /// A path of the file rules cannot be opened.
    #[error("restrict files: {0}")]
    Path(#[from] landlock::PathFdError),
    /// The system call filter could not be compiled or applied.
    #[error("filter system calls: {0}")]
    Filter(#[from] seccompiler::Error),
}

impl From<seccompiler::BackendError> for HardenError {
    fn from(error: seccompiler::BackendError) -> Self {
        Self::Filter(error.into())
    }
}

/// Adds the step's name to the kernel's error.
fn step(step: &'static str) -> impl FnOnce(nix::Error) -> HardenError {
    move |source| HardenError::Step { step, source }
}
