//! Checks a container engine for `bottle doctor`.

use bollard::models::SystemInfo;
use bottle_backend::{BackendError, Check, Finding};
use bottle_host::Host;
use bottle_host::docker_settings::{DockerSettings, DockerTransport};

use super::engine::{Engine, EngineError};
use super::runtime;

/// Queries the engine and returns the findings. Changes nothing.
pub(super) async fn check(host: &Host, settings: Result<DockerSettings, BackendError>) -> Check {
    let checked = async {
        let engine = Engine::connect(host).await?;
        let info = engine.info().await?.clone();
        Ok::<_, EngineError>((engine, info))
    };
    let (engine, info) = match checked.await {
        Ok(checked) => checked,
        Err(error) => return engine_unusable(&error),
    };
    let uses = Some(engine.description());
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return Check { uses, ..settings_invalid(error) },
    };
    if let Some(finding) = unusable_runtime(&settings, &info) {
        return Check { usable: false, uses, findings: vec![finding] };
    }
    Check { usable: true, uses, findings: weaknesses(&engine, &settings, &info) }
}

/// Checks only whether a bottle can be started. The engine takes about ten milliseconds to return its information, so
/// this function requests the information only if a runtime is configured and must be verified.
pub(super) async fn check_use(
    connected: Result<&Engine, EngineError>,
    settings: Result<DockerSettings, BackendError>,
) -> Check {
    let engine = match connected {
        Ok(engine) => engine,
        Err(error) => return engine_unusable(&error),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return settings_invalid(error),
    };
    if settings.runtime.is_none() {
        return Check { usable: true, uses: None, findings: Vec::new() };
    }
    match engine.info().await {
        Ok(info) => {
            let found = unusable_runtime(&settings, info);
            Check { usable: found.is_none(), uses: None, findings: found.into_iter().collect() }
        }
        Err(error) => engine_unusable(&error),
    }
}

fn engine_unusable(error: &EngineError) -> Check {
    unusable(error.to_string(), error.hint().unwrap_or("see the engine's own log"))
}

fn settings_invalid(error: BackendError) -> Check {
    unusable(error.message, error.hint.as_deref().unwrap_or("correct settings.yml"))
}

fn unusable(what: String, fix: &str) -> Check {
    Check { usable: false, uses: None, findings: vec![Finding { what, fix: fix.to_owned() }] }
}

/// Returns why no bottle can use the runtime in the settings. `None` if bottles can use the runtime.
fn unusable_runtime(settings: &DockerSettings, info: &SystemInfo) -> Option<Finding> {
    missing_runtime(settings, info).or_else(|| unusable_transport(settings, info))
}

fn unusable_transport(settings: &DockerSettings, info: &SystemInfo) -> Option<Finding> {
    let runtime = settings.runtime.as_deref();
    let unusable =
        settings.transport == Some(DockerTransport::Socket) && !runtime::shares_sockets(runtime, info);
    let name = runtime.or(info.default_runtime.as_deref()).unwrap_or_default();
    unusable.then(|| Finding {
        what: format!("a container of the runtime {name:?} cannot connect to its sidecars by a socket"),
        fix: "take `docker.transport` out of settings.yml; or, for runsc, add `--host-uds=open` to the engine's \
              arguments for the runtime"
            .to_owned(),
    })
}

fn missing_runtime(settings: &DockerSettings, info: &SystemInfo) -> Option<Finding> {
    let wanted = settings.runtime.as_ref()?;
    let known: Vec<&str> = info.runtimes.iter().flatten().map(|(name, _)| name.as_str()).collect();
    (!known.contains(&wanted.as_str())).then(|| Finding {
        what: format!("the engine has no runtime {wanted:?}; it has {}", known.join(", ")),
        fix: "install it for the engine, or take `docker.runtime` out of settings.yml".to_owned(),
    })
}

/// Lists the limits and isolation features that this engine enforces only weakly or not at all.
fn weaknesses(engine: &Engine, settings: &DockerSettings, info: &SystemInfo) -> Vec<Finding> {
    let limits =
        [(info.memory_limit, "memory"), (info.cpu_cfs_quota, "processors"), (info.pids_limit, "processes")];
    let missing: Vec<&str> =
        limits.iter().filter(|(has, _)| *has == Some(false)).map(|(_, what)| *what).collect();
    let security = info.security_options.iter().flatten().map(String::as_str);
    let seccomp = security.clone().any(|option| option.contains("seccomp"));
    let mut findings = Vec::new();
    let mut found = |what: String, fix: &str| findings.push(Finding { what, fix: fix.to_owned() });
    if !missing.is_empty() {
        found(
            format!("the engine cannot limit {}", missing.join(", ")),
            "boot the machine with the cgroup controllers on (`cgroup_enable=memory`), or use cgroup v2",
        );
    }
    if !seccomp {
        found(
            "the engine has no seccomp: containers may make every system call".to_owned(),
            "use an engine and a kernel with seccomp",
        );
    }
    let transport = runtime::transport(settings, settings.runtime.as_deref(), info);
    if transport == DockerTransport::Network && !engine.isolates_gateways() {
        found(
            format!(
                "{} keeps an interface of the machine on a bottle's network, without an address",
                engine.pong.product()
            ),
            "update the engine to 28 or later, or take `docker.transport` out of settings.yml",
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bollard::models::Runtime;

    use super::*;

    #[test]
    fn a_runtime_that_the_engine_lacks_is_named_with_those_it_has() {
        let info = SystemInfo {
            runtimes: Some(HashMap::from([("runc".to_owned(), Runtime::default())])),
            ..SystemInfo::default()
        };
        let settings = |name: Option<&str>| DockerSettings {
            runtime: name.map(str::to_owned),
            ..DockerSettings::default()
        };
        assert_eq!(missing_runtime(&settings(None), &info), None);
        assert_eq!(missing_runtime(&settings(Some("runc")), &info), None);
        let finding = missing_runtime(&settings(Some("runsc")), &info).expect("a finding");
        assert!(finding.what.contains("runsc") && finding.what.contains("runc"), "{finding:?}");
    }

    #[test]
    fn a_runtime_without_host_sockets_is_refused_with_the_transport_socket() {
        let info = SystemInfo {
            runtimes: Some(HashMap::from([("runsc".to_owned(), Runtime::default())])),
            ..SystemInfo::default()
        };
        let found = |transport| {
            let runtime = Some("runsc".to_owned());
            unusable_runtime(&DockerSettings { transport, runtime, ..DockerSettings::default() }, &info)
        };
        assert!(found(Some(DockerTransport::Socket)).expect("a finding").what.contains("runsc"));
        assert_eq!(found(Some(DockerTransport::Network)), None);
        assert_eq!(found(None), None, "the transport is then network");
    }
}
