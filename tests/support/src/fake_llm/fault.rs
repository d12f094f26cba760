//! Faults that the fake model injects: an error status, a slow stream, an interrupted stream.

use std::time::Duration;

/// A fault at a step of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The step at which the fault occurs (0 is the first call). `None` means every step.
    pub step: Option<usize>,
    /// How many times the fault occurs in total, so that later retries succeed. The server counts the faults, because
    /// the history in a request does not show them.
    pub times: usize,
    /// The kind of the fault.
    pub kind: FaultKind,
}

/// The kind of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// The response has this status, and an error body in the request's format.
    Status(u16),
    /// Every chunk of a stream is delayed by this time. Without a stream, the response is delayed once.
    Delay(Duration),
    /// A stream is interrupted after this number of chunks. A response without a stream is interrupted at its
    /// start.
    Cut {
        /// The number of chunks that are sent before the interruption.
        after: usize,
    },
}
