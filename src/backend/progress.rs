//! How far something is that takes its time, told to whoever shows it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// How far a copy is: a freeze, or that of the working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Copied {
    /// Files looked at, where they are counted.
    pub files: u64,
    /// Bytes that had to be copied.
    pub bytes: u64,
}

/// How far the making of an image is: one line, harmless to a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is being made (`the image for claude`).
    pub of: String,
    /// What is said of it.
    pub line: String,
    /// Whether something begins with it; otherwise it is a line of what that prints.
    pub begins: bool,
}

/// Is told how far something is, from any thread, as often as whoever does it likes.
#[derive(Clone)]
pub struct ProgressSink<T = Copied>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> ProgressSink<T> {
    /// Tells this function.
    pub fn new(tell: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells nobody.
    #[must_use]
    pub fn nobody() -> Self {
        Self::new(|_| ())
    }

    /// Says how far it is.
    pub fn tell(&self, far: T) {
        (self.0)(far);
    }
}

impl<T> fmt::Debug for ProgressSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressSink")
    }
}
