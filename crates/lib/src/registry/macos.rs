//! macOS has no native backend other than `apple`.

use bottle_backend::Backend;
use bottle_containers::apple::AppleBackend;
use bottle_host::Host;

/// No backend is preferred to a container engine.
pub(super) fn preferred(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// The backend that is used if no container engine is usable, or if the user names it. It is not preferred because it
/// has not yet run on a Mac.
pub(super) fn after_engine(host: &Host) -> Vec<Box<dyn Backend>> {
    vec![Box::new(AppleBackend::new(host))]
}

/// No backend is only for tests, because the fake backend consists of Linux processes.
pub(super) fn for_tests(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// Always true, because every agent runs from an image, which contains the agent's program.
pub fn has_program(_: &Host, _: &str) -> bool {
    true
}
