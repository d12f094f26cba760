//! Adds the name of the failed setup step to a system error.

use std::io;
use std::path::Path;

use crate::local::spawn_ipc::{SetupFailure, SetupPart};

/// Adds the name of the failed step to a system error.
pub(crate) trait Step<T> {
    /// Describes the failure as `cannot {what}: …`.
    fn step(self, what: &str) -> Result<T, SetupFailure>;

    /// Describes the failure as `cannot {verb} {path}: …`.
    fn step_at(self, verb: &str, path: &Path) -> Result<T, SetupFailure>;

    /// Like [`Step::step`], for a `part` of the setup. Failures of this part have specific fixes.
    fn step_of(self, part: SetupPart, what: &str) -> Result<T, SetupFailure>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Result<T, SetupFailure> {
        self.map_err(|error| SetupFailure::new(what, error))
    }

    fn step_at(self, verb: &str, path: &Path) -> Result<T, SetupFailure> {
        self.map_err(|error| SetupFailure::new(format!("{verb} {}", path.display()), error))
    }

    fn step_of(self, part: SetupPart, what: &str) -> Result<T, SetupFailure> {
        self.step(what).map_err(|failure| SetupFailure { part, ..failure })
    }
}
