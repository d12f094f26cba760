//! Replaces the Landlock restriction, which macOS does not have.

pub use crate::files::Files;
use crate::{HardenError, MissingProtection};

impl Files {
    /// Reports that macOS has no Landlock.
    ///
    /// # Errors
    /// None on macOS.
    pub fn restrict(&self) -> Result<Option<MissingProtection>, HardenError> {
        Ok(Some(MissingProtection("macOS has no landlock: files are not restricted".into())))
    }
}
