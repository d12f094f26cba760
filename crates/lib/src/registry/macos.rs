//! macOS has no native backend other than `apple`.

use bottle_backend::Backend;
use bottle_containers::apple::AppleBackend;
use bottle_host::Host;

/// Returns no backend, because no backend is preferred to a container engine.
pub(super) fn preferred(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// The backend that is used if no container engine is usable, or if the user names it. It is not preferred to a
/// container engine, because it has not yet run on a Mac.
pub(super) fn after_engine(host: &Host) -> Vec<Box<dyn Backend>> {
    vec![Box::new(AppleBackend::new(host))]
}

/// Returns no backend. The fake backend, which is only for tests, consists of Linux processes.
pub(super) fn for_tests(_: &Host) -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// Returns true for every program, because every agent runs from an image that contains the agent's program.
pub fn has_program(_: &Host, _: &str) -> bool {
    true
}
