//! Queries the identity of an engine.

use bollard::models::SystemInfo;
use bottle_backend::EngineIdentity;

use super::engine::{Engine, EngineError};

/// Returns the identity of this engine.
///
/// Docker reports an id that stays the same. Since 23.0 the id is stored in the data directory; in earlier versions,
/// all engines of a machine share one id. Podman reports a new id with each answer, so the host name of the engine is
/// used instead of the id.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn query(engine: &Engine) -> Result<EngineIdentity, EngineError> {
    Ok(identity(engine.info().await?.clone(), &engine.pong.server, &engine.endpoint.address()))
}

fn identity(info: SystemInfo, server: &str, address: &str) -> EngineIdentity {
    let host = info.name.unwrap_or_default();
    let own = info.id.filter(|id| !id.is_empty() && !server.to_lowercase().contains("libpod"));
    EngineIdentity {
        id: own.unwrap_or(host),
        data: info.docker_root_dir.unwrap_or_default(),
        address: address.to_owned(),
        select: format!("DOCKER_HOST={address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_the_same_at_every_address_and_differs_by_id_or_data() {
        let of = |id: &str, data: &str, server: &str, address: &str| {
            let info = SystemInfo {
                id: Some(id.to_owned()),
                name: Some("here".to_owned()),
                docker_root_dir: Some(data.to_owned()),
                ..SystemInfo::default()
            };
            identity(info, server, address)
        };
        let docker = "Docker/20.10.24 (linux)";
        let one = of("A", "/var/lib/docker", docker, "unix:///a");
        assert!(one.is_same(&of("A", "/var/lib/docker", docker, "unix:///b")));
        assert!(!one.is_same(&of("A", "/elsewhere", docker, "unix:///a")));
        assert!(!one.is_same(&of("B", "/var/lib/docker", docker, "unix:///a")));
        assert_eq!(one.to_string(), "unix:///a (id A, data in /var/lib/docker)");
        assert_eq!(one.select, "DOCKER_HOST=unix:///a");
        // Podman reports a new id with each answer.
        let podman = |id| of(id, "/var/lib/containers", "Libpod/4.3.1 (linux)", "unix:///p");
        assert!(podman("1").is_same(&podman("2")));
        assert!(of("", "/x", docker, "unix:///a").is_same(&of("", "/x", docker, "unix:///b")));
    }
}
