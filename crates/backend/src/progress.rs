//! Progress reports of long operations.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The amount that was copied so far, into a snapshot of a bottle or from the working directory into a bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Copied {
    /// The number of files visited, if the backend counts them.
    pub files: u64,
    /// The number of bytes copied.
    pub bytes: u64,
}

/// The progress of an image build: one line, safe to print on a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The name of the image that is being built (`the image for claude`).
    pub subject: String,
    /// One line of output.
    pub line: String,
    /// Whether the line starts a new build stage. Otherwise it is output of the current stage.
    pub starts_stage: bool,
}

/// Receives the progress reports of an operation. Reports may come from any thread and at any rate.
#[derive(Clone)]
pub struct ProgressSink<T = Copied>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> ProgressSink<T> {
    /// Creates a sink that calls `report` for each progress report.
    pub fn new(report: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Creates a sink that discards all reports.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(|_| ())
    }

    /// Reports progress.
    pub fn report(&self, progress: T) {
        (self.0)(progress);
    }
}

impl<T> fmt::Debug for ProgressSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressSink")
    }
}
