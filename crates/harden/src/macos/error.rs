//! The error of the steps on macOS.

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
}
