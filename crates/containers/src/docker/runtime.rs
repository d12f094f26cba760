//! Chooses the container runtime of the agent's container, and the transport that this runtime supports. The module has
//! no side effects.

use bollard::models::{Runtime, SystemInfo};
use bottle_host::docker_settings::{DockerSettings, DockerTransport};

/// The runtimes that give a container a kernel of its own. Without one of the arguments [`HOST_SOCKETS`], such a
/// container cannot connect to a unix socket on which a process outside the container listens.
const OWN_KERNEL: [&str; 3] = ["runsc", "kata", "krun"];

/// The arguments of runsc (gVisor) that allow a container to connect to the sockets of other containers. The first
/// argument is from releases before 2023.
const HOST_SOCKETS: [&str; 4] =
    ["--fsgofer-host-uds", "--fsgofer-host-uds=true", "--host-uds=open", "--host-uds=all"];

/// The runtime that `docker.runtime: auto` prefers to the engine's default runtime: gVisor.
const PREFERRED: &str = "runsc";

/// Returns the preferred runtime, which is tried before the engine's default runtime. `None` if the settings name a
/// runtime, or if the engine lacks the preferred runtime. The preferred runtime must share sockets, because a trial has
/// no network. A trial therefore does not show whether a bottle that needs a network works.
pub(super) fn preferred(settings: &DockerSettings, info: &SystemInfo) -> Option<&'static str> {
    let runtimes = info.runtimes.as_ref()?;
    let default = info.default_runtime.as_deref();
    let is_isolated = default.is_some_and(|name| has_own_kernel(name, runtimes.get(name)));
    let suits = runtimes.contains_key(PREFERRED) && shares_sockets(Some(PREFERRED), info);
    (settings.runtime.is_none() && suits && !is_isolated).then_some(PREFERRED)
}

/// Returns the transport of a bottle whose container uses this runtime. This is the transport in the settings, or
/// otherwise `socket` if the runtime supports it. If `runtime` is `None`, the container uses the engine's default
/// runtime.
pub(super) fn transport(
    settings: &DockerSettings,
    runtime: Option<&str>,
    info: &SystemInfo,
) -> DockerTransport {
    settings.transport.unwrap_or_else(|| match shares_sockets(runtime, info) {
        true => DockerTransport::Socket,
        false => DockerTransport::Network,
    })
}

/// Whether a container of this runtime can connect to a socket of the bundle's container.
pub(super) fn shares_sockets(runtime: Option<&str>, info: &SystemInfo) -> bool {
    let Some(name) = runtime.or(info.default_runtime.as_deref()) else { return true };
    let known = info.runtimes.as_ref().and_then(|runtimes| runtimes.get(name));
    !has_own_kernel(name, known) || known.is_some_and(opens_host_sockets)
}

/// Returns the runtime, if its containers have a kernel of their own. If `runtime` is `None`, the containers use the
/// engine's default runtime.
pub(super) fn own_kernel<'a>(runtime: Option<&'a str>, info: &'a SystemInfo) -> Option<&'a str> {
    let name = runtime.or(info.default_runtime.as_deref())?;
    let known = info.runtimes.as_ref().and_then(|runtimes| runtimes.get(name));
    has_own_kernel(name, known).then_some(name)
}

fn has_own_kernel(name: &str, runtime: Option<&Runtime>) -> bool {
    let program = runtime.and_then(|runtime| runtime.path.as_deref()).unwrap_or_default();
    OWN_KERNEL.iter().any(|own| name.contains(own) || program.contains(own))
}

fn opens_host_sockets(runtime: &Runtime) -> bool {
    let arguments = runtime.runtime_args.iter().flatten();
    arguments.map(|argument| argument.trim()).any(|argument| HOST_SOCKETS.contains(&argument))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn info(runtimes: &[(&str, &str, &[&str])]) -> SystemInfo {
        let runtime = |path: &str, arguments: &[&str]| Runtime {
            path: Some(path.to_owned()),
            runtime_args: Some(arguments.iter().map(|argument| (*argument).to_owned()).collect()),
            status: None,
        };
        let runtimes: HashMap<_, _> = runtimes
            .iter()
            .map(|(name, path, arguments)| ((*name).to_owned(), runtime(path, arguments)))
            .collect();
        SystemInfo {
            default_runtime: runtimes.contains_key("default").then(|| "default".to_owned()),
            runtimes: Some(runtimes),
            ..SystemInfo::default()
        }
    }

    #[test]
    fn the_transport_is_socket_unless_the_runtime_shares_no_sockets() {
        use DockerTransport::{Network, Socket};
        let engine = info(&[
            ("runc", "runc", &[]),
            ("runsc", "/usr/bin/runsc", &[]),
            ("gvisor", "/usr/bin/runsc", &["--platform=kvm"]),
            ("runsc-uds", "/usr/bin/runsc", &["--host-uds=open"]),
            ("runsc-old", "/usr/bin/runsc", &["--fsgofer-host-uds"]),
            ("runsc-create", "/usr/bin/runsc", &["--host-uds=create"]),
            ("kata-qemu", "", &[]),
        ]);
        let settings = |transport| DockerSettings { transport, ..DockerSettings::default() };
        for (runtime, chosen) in [
            (None, Socket),
            (Some("runc"), Socket),
            (Some("crun"), Socket),
            (Some("runsc"), Network),
            (Some("gvisor"), Network),
            (Some("runsc-uds"), Socket),
            (Some("runsc-old"), Socket),
            (Some("runsc-create"), Network),
            (Some("kata-qemu"), Network),
            (Some("io.containerd.kata.v2"), Network),
        ] {
            assert_eq!(transport(&settings(None), runtime, &engine), chosen, "{runtime:?}");
            for set in [Socket, Network] {
                assert_eq!(transport(&settings(Some(set)), runtime, &engine), set, "{runtime:?}");
            }
        }
        let named = DockerSettings { runtime: Some("runc".to_owned()), ..DockerSettings::default() };
        let suitable = info(&[("runc", "runc", &[]), ("runsc", "/usr/bin/runsc", &["--host-uds=open"])]);
        assert_eq!(preferred(&settings(None), &suitable), Some("runsc"));
        assert_eq!(preferred(&named, &suitable), None, "the settings name one");
        assert_eq!(preferred(&settings(None), &engine), None, "it shares no sockets");
        assert_eq!(preferred(&settings(None), &info(&[("runc", "runc", &[])])), None, "the engine has none");
        let by_default = info(&[("default", "/usr/bin/runsc", &[])]);
        assert_eq!(transport(&settings(None), None, &by_default), Network, "the engine's default runtime");
        let both =
            info(&[("default", "/usr/bin/runsc", &[]), ("runsc", "/usr/bin/runsc", &["--host-uds=open"])]);
        assert_eq!(preferred(&settings(None), &both), None, "the default is as isolated");
    }
}
