//! Lists the backends by name. A bottle's record stores the backend's name, so that resume and cleanup can find the
//! backend. The backends other than the container engine depend on the operating system: the modules `linux` and
//! `macos` list them.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

use bottle_backend::Backend;
use bottle_containers::docker::DockerBackend;
use bottle_host::Host;

#[cfg(target_os = "linux")]
use self::linux as native;
#[cfg(target_os = "macos")]
use self::macos as native;

pub use self::native::has_program;

/// Returns every backend of this build, the preferred backend first. In a test build, the fake backend is last. The
/// fake backend is used only if it is selected by name.
#[must_use]
pub fn all(host: &Host) -> Vec<Box<dyn Backend>> {
    let mut all = native::preferred(host);
    all.push(Box::new(DockerBackend::new(host)));
    all.extend(native::after_engine(host));
    all.extend(native::for_tests(host));
    all
}

/// Returns the backend of this name. `None` if this build contains no backend of this name.
#[must_use]
pub fn by_name(host: &Host, name: &str) -> Option<Box<dyn Backend>> {
    all(host).into_iter().find(|backend| backend.name() == name)
}

/// Returns the backends to choose from if the user names no backend, the preferred backend first.
#[must_use]
pub fn choosable(host: &Host) -> Vec<Box<dyn Backend>> {
    all(host).into_iter().filter(|backend| backend.capabilities().isolates).collect()
}
