//! Lists the backends by name. A bottle's record stores the backend's name, so that resume and cleanup can find the
//! backend. The backends other than the container engine depend on the system: `linux` and `macos` list them.

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

/// Every backend of this build, the preferred one first. In a test build, the fake backend is last. It runs only when
/// it is selected by name.
#[must_use]
pub fn all(host: &Host) -> Vec<Box<dyn Backend>> {
    let mut all = native::preferred(host);
    all.push(Box::new(DockerBackend::new(host)));
    all.extend(native::after_engine(host));
    all.extend(native::for_tests(host));
    all
}

/// The backend of this name. `None` if this build has none.
#[must_use]
pub fn by_name(host: &Host, name: &str) -> Option<Box<dyn Backend>> {
    all(host).into_iter().find(|backend| backend.name() == name)
}

/// The backends to choose from when the user names none, the preferred one first.
#[must_use]
pub fn choosable(host: &Host) -> Vec<Box<dyn Backend>> {
    all(host).into_iter().filter(|backend| backend.capabilities().isolates).collect()
}
