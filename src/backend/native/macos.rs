//! macOS has no native backend.

use crate::backend::Backend;
use crate::host::Host;

/// No backend is preferred to a container engine.
pub(crate) fn preferred(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// No further backend exists.
pub(crate) fn after_engine(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// No backend exists only for tests, because the fake one is made of Linux processes.
pub(crate) fn for_tests(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// True for each program: every agent runs from an image, which contains its program.
pub(crate) fn has_program(_: &Host, _: &str) -> bool {
    true
}
