//! The backends on Linux other than the container engine, in their order of preference.

use bottle_backend::Backend;
use bottle_containers::apple::AppleBackend;
use bottle_host::Host;
use bottle_sandbox::linux::{LinuxBackend, program};
use bottle_sandbox::smolvm::SmolvmBackend;

/// The backends that are preferred to a container engine.
pub(super) fn preferred(host: &Host) -> Vec<Box<dyn Backend>> {
    vec![Box::new(LinuxBackend::new(host))]
}

/// The backends that are used if no container engine is usable, or if the user names them.
pub(super) fn after_engine(host: &Host) -> Vec<Box<dyn Backend>> {
    vec![Box::new(SmolvmBackend::new(host)), Box::new(AppleBackend::new(host))]
}

/// The backends that only test builds contain.
pub(super) fn for_tests(host: &Host) -> Vec<Box<dyn Backend>> {
    #[cfg(feature = "test-parts")]
    return vec![Box::new(bottle_sandbox::fake::FakeBackend::new(host))];
    #[cfg(not(feature = "test-parts"))]
    {
        let _ = host;
        Vec::new()
    }
}

/// Whether the native backend finds a program of this name or path.
pub fn has_program(host: &Host, name: &str) -> bool {
    program::is_available(host, name)
}
