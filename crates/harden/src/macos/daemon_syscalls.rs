//! Replaces the system call filter, which macOS does not have.

use crate::{HardenError, MissingProtection};

/// Reports that macOS cannot filter system calls.
///
/// # Errors
/// None on macOS.
pub fn restrict() -> Result<Option<MissingProtection>, HardenError> {
    Ok(Some(MissingProtection("macOS has no system-call filter".into())))
}

/// Reports, like [`restrict`], that macOS cannot filter system calls.
///
/// # Errors
/// None on macOS.
pub fn restrict_but_programs() -> Result<Option<MissingProtection>, HardenError> {
    restrict()
}
