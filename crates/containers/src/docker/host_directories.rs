//! Mounts directories of this machine in containers, and decides whether an engine's containers can see these
//! directories unchanged. The module has no side effects.

use std::fmt;

use bollard::models::{Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, SystemInfo};

use super::engine::Engine;
use super::runtime::own_kernel;

/// Why containers cannot see a directory of this machine with its real owners and permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The engine has another kernel than this process, so the engine is on another machine or in a virtual machine.
    OtherMachine,
    /// The engine is Podman.
    Podman,
    /// The engine does not run as root.
    Rootless,
    /// The engine maps the user ids of containers to other ids.
    MappedIds,
    /// The engine lets containers see only files with the containers' label.
    Labels,
    /// Containers of this runtime have a kernel of their own.
    OwnKernel(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherMachine => f.write_str("the container engine runs on another or a virtual machine"),
            Self::Podman => f.write_str("the container engine is Podman"),
            Self::Rootless => f.write_str("the container engine does not run as root"),
            Self::MappedIds => f.write_str("the container engine maps user ids (`userns-remap`)"),
            Self::Labels => f.write_str("the container engine labels files (SELinux)"),
            Self::OwnKernel(runtime) => {
                write!(f, "the container runtime {runtime} has a kernel of its own")
            }
        }
    }
}

/// Returns why the containers of this engine and this runtime cannot see directories of this machine. If `runtime` is
/// `None`, the containers use the engine's default runtime.
///
/// The answer is a guess from the engine's report. For example, this process can run in a container with the engine's
/// socket. This process then has the engine's kernel, but sees other directories.
pub(super) fn obstacle(engine: &Engine, info: &SystemInfo, runtime: Option<&str>) -> Option<Obstacle> {
    if engine.podman_socket().is_some() {
        return Some(Obstacle::Podman);
    }
    on_docker(info, &rustix::system::uname().release().to_string_lossy(), runtime)
}

fn on_docker(info: &SystemInfo, kernel: &str, runtime: Option<&str>) -> Option<Obstacle> {
    let is_secured_by = |name: &str| {
        let option = format!("name={name}");
        info.security_options.iter().flatten().any(|found| found.split(',').any(|part| part == option))
    };
    if info.kernel_version.as_deref() != Some(kernel) {
        return Some(Obstacle::OtherMachine);
    }
    if is_secured_by("rootless") {
        return Some(Obstacle::Rootless);
    }
    if is_secured_by("userns") {
        return Some(Obstacle::MappedIds);
    }
    if is_secured_by("selinux") {
        return Some(Obstacle::Labels);
    }
    own_kernel(runtime, info).map(|name| Obstacle::OwnKernel(name.to_owned()))
}

/// Mounts the directory at this path of the container. A file system that is mounted below the directory is not
/// visible. A later mount on the host is not visible in the container, and a later mount in the container is not
/// visible on the host.
pub(super) fn bind_mount(directory: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(directory.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bollard::models::Runtime;

    use super::*;

    #[test]
    fn only_a_root_engine_on_this_kernel_sees_directories_as_they_are() {
        let info = |kernel: &str, security: &[&str]| SystemInfo {
            kernel_version: Some(kernel.to_owned()),
            security_options: Some(security.iter().map(|option| (*option).to_owned()).collect()),
            runtimes: Some(HashMap::from([("runc".to_owned(), Runtime::default())])),
            default_runtime: Some("runc".to_owned()),
            ..SystemInfo::default()
        };
        let seccomp = "name=seccomp,profile=default";
        for (kernel, security, runtime, expected) in [
            ("6.1.0", &[seccomp, "name=cgroupns"][..], None, None),
            ("6.1.0", &["name=apparmor", seccomp], Some("runc"), None),
            ("6.6.12-linuxkit", &[seccomp], None, Some(Obstacle::OtherMachine)),
            ("6.1.0", &[seccomp, "name=rootless"], None, Some(Obstacle::Rootless)),
            ("6.1.0", &[seccomp, "name=userns"], None, Some(Obstacle::MappedIds)),
            ("6.1.0", &["name=selinux", seccomp], None, Some(Obstacle::Labels)),
            ("6.1.0", &[seccomp], Some("runsc"), Some(Obstacle::OwnKernel("runsc".to_owned()))),
        ] {
            assert_eq!(
                on_docker(&info(kernel, security), "6.1.0", runtime),
                expected,
                "{security:?} {runtime:?}"
            );
        }
        assert_eq!(on_docker(&SystemInfo::default(), "6.1.0", None), Some(Obstacle::OtherMachine));
    }
}
