//! macOS has no native backend beside `apple`.

use bottle_backend::Backend;
use bottle_containers::apple::AppleBackend;
use bottle_host::Host;

/// No backend is preferred to a container engine.
pub(super) fn preferred(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// The backend that is used if no container engine can be, or if the user names it. It is not preferred as long as no
/// Mac has run it.
pub(super) fn after_engine(host: &Host) -> Vec<Box<dyn Backend>> {
    vec![Box::new(AppleBackend::new(host))]
}

/// No backend exists only for tests, because the fake one is made of Linux processes.
pub(super) fn for_tests(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// True for each program: every agent runs from an image, which contains its program.
pub fn has_program(_: &Host, _: &str) -> bool {
    true
}
