//! The error type of the steps that drop privileges on macOS.

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
}
