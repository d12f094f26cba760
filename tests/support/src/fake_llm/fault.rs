//! Injected faults: an error status, a slow stream, an interrupted stream.

use std::time::Duration;

/// One thing that goes wrong at one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The step of the script it happens at (0 is the first call); `None`: at every step.
    pub step: Option<usize>,
    /// How often it happens in total; later retries succeed. The server counts it, because the request's history does
    /// not show it.
    pub times: usize,
    /// What happens.
    pub kind: FaultKind,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// This status with an error body of the format.
    Status(u16),
    /// This wait before every chunk of a stream (before the whole answer otherwise).
    Delay(Duration),
    /// The stream breaks off after so many chunks; an answer that is not streamed breaks off at once.
    Cut {
        /// Chunks sent before.
        after: usize,
    },
}
