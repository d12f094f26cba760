//! What the user ordered for requests to models.

use bottle_host::budget::Policy;

/// What the user ordered with `bottle budget stop`, until `bottle budget continue`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    #[default]
    None,
    /// Requests to models wait, and the bottle is paused.
    Pause,
    /// Requests to models are denied.
    Cutoff,
}

impl Order {
    /// The order in a bottle's record.
    pub(crate) fn recorded(policy: Option<Policy>) -> Self {
        match policy {
            Some(Policy::Pause) => Self::Pause,
            Some(Policy::Cutoff) => Self::Cutoff,
            // The bottle ends already.
            Some(Policy::Freeze | Policy::Kill) | None => Self::None,
        }
    }
}
