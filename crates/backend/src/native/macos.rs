//! macOS has no native backend beside `apple`.

use bottle_host::Host;

use crate::Backend;
use crate::apple::AppleBackend;

/// No backend is preferred to a container engine.
pub(crate) fn preferred(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// The backend that is used if no container engine can be, or if the user names it. It is not preferred as long as no
/// Mac has run it.
pub(crate) fn after_engine(host: &Host) -> Vec<Box<dyn Backend>> {
    vec![Box::new(AppleBackend::new(host))]
}

/// No backend exists only for tests, because the fake one is made of Linux processes.
pub(crate) fn for_tests(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// True for each program: every agent runs from an image, which contains its program.
pub fn has_program(_: &Host, _: &str) -> bool {
    true
}
