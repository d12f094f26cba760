//! Connects to a container engine.
//!
//! Every call through [`Engine::call`] has a deadline. The path of a request names no API version, so the engine uses
//! its newest version. [`Pong::api`] contains that version.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use bollard::errors::Error as Bollard;
use bollard::models::{ContainerInspectResponse, ContainerSummary, SystemInfo};
use bollard::query_parameters::{InspectContainerOptionsBuilder, ListContainersOptionsBuilder};
use bollard::{API_DEFAULT_VERSION, Docker};
use bottle_host::Host;
use tokio::sync::OnceCell;

use super::endpoint::{self, Endpoint};
pub(super) use super::engine_error::{EngineError, FREE_SPACE_HINT, PART_REMOVED_HINT, REMOVED_HINT};
use super::ping::{Pong, ping};
use super::podman;

/// The minor version of the oldest supported API: 1.41, of Docker Engine 20.10.
const OLDEST_API: u32 = 41;

/// The oldest supported version of Podman.
const OLDEST_PODMAN: (u32, u32) = (4, 3);

/// Time limit of a call for which the caller gives no other limit. The slowest of these calls starts a container while
/// the disk is busy.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A connection to an engine.
#[derive(Debug)]
pub(super) struct Engine {
    docker: Docker,
    /// The engine's answer to the ping.
    pub(super) pong: Pong,
    /// Where the engine listens, and why this place was chosen.
    pub(super) endpoint: Endpoint,
    info: OnceCell<SystemInfo>,
}

impl Engine {
    /// Connects to the engine that the user's `docker` command uses. Otherwise connects to the first engine that
    /// answers at a known place.
    ///
    /// # Errors
    /// [`EngineError`] when there is no usable engine. If several places were tried, returns the error of the first
    /// place.
    pub(super) async fn connect(host: &Host) -> Result<Self, EngineError> {
        let mut first = None;
        for endpoint in endpoint::candidates(host)? {
            match Self::connect_to(endpoint).await {
                // A product that is not running may have left its socket.
                Err(error @ (EngineError::Absent { .. } | EngineError::Denied(_))) => {
                    first.get_or_insert(error);
                }
                connected => return connected,
            }
        }
        Err(first.unwrap_or(EngineError::TimedOut))
    }

    async fn connect_to(endpoint: Endpoint) -> Result<Self, EngineError> {
        let socket = &endpoint.socket;
        let pong = ping(socket).await.map_err(|error| unreachable(socket, &error))?;
        let pong = check_version(pong)?;
        let path = socket.to_string_lossy();
        let docker = Docker::connect_with_unix(&path, ANSWERS_WITHIN.as_secs(), API_DEFAULT_VERSION)?;
        Ok(Self { docker, pong, endpoint, info: OnceCell::new() })
    }

    /// Returns the address of the first engine that [`Engine::connect`] would try. `None` if the user's configuration
    /// names an engine that is not supported.
    pub(super) fn address_for(host: &Host) -> Option<String> {
        endpoint::candidates(host).ok()?.first().map(Endpoint::address)
    }

    /// Returns the API client, for calls inside [`Engine::call`].
    pub(super) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// Returns the engine's information about itself: its runtimes, limits and security options. The information is
    /// requested only once, because the engine takes about ten milliseconds to collect it.
    ///
    /// # Errors
    /// The errors of [`Engine::call`].
    pub(super) async fn info(&self) -> Result<&SystemInfo, EngineError> {
        self.info.get_or_try_init(|| self.call(self.docker.info())).await
    }

    /// Returns, for the user, the engine's product and version, its socket, and why this socket was chosen.
    pub(super) fn description(&self) -> String {
        let Endpoint { source, socket } = &self.endpoint;
        format!("{} at {} ({source})", self.pong.product(), socket.display())
    }

    /// Returns the engine's socket if the engine is Podman. Some requests to Podman differ from the requests to Docker.
    pub(super) fn podman_socket(&self) -> Option<&Path> {
        self.pong.podman().map(|_| self.endpoint.socket.as_path())
    }

    /// Inspects a container.
    ///
    /// # Errors
    /// The errors of [`Engine::call`].
    pub(super) async fn inspect_container(&self, id: &str) -> Result<ContainerInspectResponse, EngineError> {
        self.inspect(id, false).await
    }

    /// Measures the writable layer of a container in bytes. `None` if the container does not exist.
    ///
    /// # Errors
    /// The errors of [`Engine::call`].
    pub(super) async fn writable_size(&self, id: &str) -> Result<Option<u64>, EngineError> {
        match self.inspect(id, true).await {
            Err(error) if error.is_missing() => Ok(None),
            found => Ok(found?.size_rw.and_then(|bytes| u64::try_from(bytes).ok())),
        }
    }

    async fn inspect(&self, id: &str, with_size: bool) -> Result<ContainerInspectResponse, EngineError> {
        let options = InspectContainerOptionsBuilder::new().size(with_size).build();
        match self.podman_socket() {
            Some(socket) => self.own_request(podman::inspect(socket, id, with_size)).await,
            None => self.call(self.docker.inspect_container(id, Some(options))).await,
        }
    }

    /// Lists the containers, running or not, that these filters select.
    ///
    /// # Errors
    /// The errors of [`Engine::call`].
    pub(super) async fn list_containers(
        &self,
        filters: HashMap<String, Vec<String>>,
    ) -> Result<Vec<ContainerSummary>, EngineError> {
        if let Some(socket) = self.podman_socket() {
            return self.own_request(podman::list(socket, &filters)).await;
        }
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        self.call(self.docker.list_containers(Some(options))).await
    }

    /// Like [`Engine::call`], for a request that the client library does not support.
    async fn own_request<T>(
        &self,
        request: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        tokio::time::timeout(ANSWERS_WITHIN, request).await.map_err(|_| EngineError::TimedOut)?
    }

    /// Whether the engine supports internal networks without an address of the host, which are called isolated gateways
    /// (since 28.0).
    pub(super) fn isolates_gateways(&self) -> bool {
        self.pong.api >= 48
    }

    /// Waits for a call and its complete answer, up to the deadline.
    ///
    /// # Errors
    /// [`EngineError`] of the call, or [`EngineError::TimedOut`].
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Bollard>>,
    ) -> Result<T, EngineError> {
        self.call_within(ANSWERS_WITHIN, call).await
    }

    /// Like [`Engine::call`], for a call about one object. `None` if the object does not exist.
    ///
    /// # Errors
    /// The errors of [`Engine::call`].
    pub(super) async fn call_if_there<T>(
        &self,
        call: impl Future<Output = Result<T, Bollard>>,
    ) -> Result<Option<T>, EngineError> {
        match self.call(call).await {
            Err(error) if error.is_missing() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Like [`Engine::call`], with a given time limit.
    ///
    /// # Errors
    /// The errors of [`Engine::call`].
    pub(super) async fn call_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Bollard>>,
    ) -> Result<T, EngineError> {
        // The timeout of the client library covers only the head of the response.
        tokio::time::timeout(limit, call).await.map_err(|_| EngineError::TimedOut)?.map_err(EngineError::from)
    }
}

fn unreachable(socket: &Path, error: &io::Error) -> EngineError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => EngineError::Denied(socket.to_owned()),
        io::ErrorKind::TimedOut => EngineError::TimedOut,
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            EngineError::Absent { socket: socket.to_owned(), cause: error.to_string() }
        }
        _ => EngineError::Disconnected(error.to_string()),
    }
}

fn check_version(pong: Pong) -> Result<Pong, EngineError> {
    if pong.api < OLDEST_API {
        let reason =
            format!("{} has version 1.{} of the API, and 1.{OLDEST_API} is needed", pong.product(), pong.api);
        return Err(EngineError::TooOld(reason));
    }
    if pong.podman().is_some_and(|version| version < OLDEST_PODMAN) {
        let (major, minor) = OLDEST_PODMAN;
        return Err(EngineError::TooOld(format!("{}, and Podman {major}.{minor} is needed", pong.product())));
    }
    match pong.os.as_str() {
        "linux" | "" => Ok(pong),
        other => Err(EngineError::NotLinux(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bottle_backend::BackendErrorKind;

    use super::*;

    fn host(env: &[(&str, &str)], user_home: &Path) -> Host {
        Host {
            env: env
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect::<BTreeMap<_, _>>(),
            cwd: "/".into(),
            home: "/home".into(),
            user_home: user_home.to_owned(),
            runtime: "/run".into(),
            program: "/bottle".into(),
        }
    }

    #[test]
    fn an_engine_must_be_new_enough_and_run_linux() {
        let pong = |api, os: &str| Pong { api, os: os.to_owned(), server: "Docker/19.03.1".to_owned() };
        assert!(check_version(pong(41, "linux")).is_ok());
        let error = check_version(pong(40, "linux")).expect_err("too old").during("x");
        assert_eq!(error.kind, BackendErrorKind::Unavailable);
        assert!(error.message.contains("Docker 19.03.1") && error.message.contains("1.41"), "{error}");
        assert!(check_version(pong(45, "windows")).is_err());
        let podman =
            |version: &str| Pong { server: format!("Libpod/{version} (linux)"), ..pong(41, "linux") };
        assert!(check_version(podman("4.3.1")).is_ok() && check_version(podman("5.0.0")).is_ok());
        let error = check_version(podman("3.4.4")).expect_err("too old");
        assert!(error.to_string().contains("Podman 3.4.4, and Podman 4.3 is needed"), "{error}");
    }

    #[tokio::test]
    async fn distinguishes_an_absent_engine_from_an_inaccessible_one() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("docker.sock");
        let address = format!("unix://{}", path.display());
        let at = host(&[("DOCKER_HOST", &address)], directory.path());
        let error = Engine::connect(&at).await.expect_err("nothing there");
        assert!(error.is_unusable() && error.to_string().contains("docker.sock"), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        // A child process that another test forks also holds the listener until it executes its program.
        while std::os::unix::net::UnixStream::connect(&path).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Engine::connect(&at).await.expect_err("nobody listens").is_unusable());
        assert!(
            unreachable(&path, &io::ErrorKind::PermissionDenied.into())
                .hint()
                .expect("hint")
                .contains("docker")
        );
    }

    #[test]
    fn a_refusal_names_the_action_and_a_hint() {
        let refused = |message: &str| EngineError::Refused { status: 500, message: message.to_owned() };
        let full = refused("write /x: no space left on device").during("make a container");
        assert_eq!(full.one_line(), "cannot make a container: write /x: no space left on device");
        assert!(full.hint.expect("hint").contains("free space"));
        assert!(refused("Pool overlaps with other one on this address space").is_subnet_overlap());
        assert!(
            refused("cannot create network x: conflicts with network y: networks have overlapping IPv4")
                .is_subnet_overlap()
        );
        assert!(!refused("no such network").is_subnet_overlap());
    }
}
