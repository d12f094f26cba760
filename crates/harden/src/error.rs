//! The error type of the steps that drop privileges on Linux.

/// Why a privilege could not be dropped. The message names the step; the error's source is the cause.
#[derive(Debug, thiserror::Error)]
pub enum HardenError {
    /// The kernel refused the operation of a step.
    #[error("{step}")]
    Step {
        /// What the failed step does, for the message.
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
