//! Takes rights away from the bottle's own processes: the bundle and its daemons.
//!
//! They hold credentials and parse what a hostile bottle sends, so that each gives up, before it reads
//! the first byte of either, whatever its job does not need. Every step is final and is inherited by
//! threads; call them from the only thread, in this order:
//!
//! ```text
//! reach     hold open what is out of reach after that
//! identity  become an unprivileged user (when started as root and told whom)
//! process   not dumpable, no core, no new privileges, no capabilities
//! files     Landlock: a few files to read, a few folders to write
//! syscalls  seccomp: no new program, no look into other processes, no mounts
//!           (filter makes the program of such a list, and calls has what lists share, for the backends' too)
//! ```
//! A step that the kernel lacks is reported as a [`MissingProtection`] and not an error; a step that fails on a
//! kernel that has it is an error, and the process does not go on.
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

/// A protection that this kernel does not give, as a lower-case fragment for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProtection(pub String);

/// A right could not be taken away.
#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    /// The kernel refused a step.
    #[error("{step}: {source}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// What the kernel says.
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
    /// The filter of system calls could not be made or applied.
    #[error("filter system calls: {0}")]
    Filter(#[from] seccompiler::Error),
}

impl From<seccompiler::BackendError> for HardenError {
    fn from(error: seccompiler::BackendError) -> Self {
        Self::Filter(error.into())
    }
}

/// Attaches the step's name to what the kernel said.
fn step(step: &'static str) -> impl FnOnce(nix::Error) -> HardenError {
    move |source| HardenError::Step { step, source }
}
