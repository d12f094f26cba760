//! The connection to an engine, and everything that can go wrong with it in a user's words.
//!
//! Every call has a deadline. Requests carry no version: an engine then takes them as its newest, and what
//! differs between versions is asked of [`Engine::api`].

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error as Bollard;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::ping::{Pong, ping};
use crate::backend::{BackendError, BackendErrorKind};
use crate::host::Host;

/// The oldest engine that is spoken to: 20.10.
const OLDEST_API: u32 = 41;

/// How long one call may take. Starting a container on a busy disk is the slowest of them.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// What the user does about a disk that is full.
pub(super) const FREE_SPACE: &str = "free space where the engine keeps its data; `docker system df` shows";

/// What the user does about something that was there a moment ago.
pub(super) const REMOVED: &str = "something else on this engine removed it meanwhile; try again";

/// What the user does about a bottle of which a part is not there any more.
pub(super) const LEFT: &str =
    "something else on this engine removed or ended it; `bottle cleanup` removes what is left";

/// An engine that answered.
#[derive(Debug)]
pub(super) struct Engine {
    docker: Docker,
    /// What it said of itself.
    pub(super) pong: Pong,
}

/// Why an engine did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EngineError {
    /// Nothing listens.
    #[error("no container engine answers at {}: {cause}", socket.display())]
    Absent {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The socket is not open to this user.
    #[error("this user may not speak to the container engine at {}", .0.display())]
    Denied(PathBuf),
    /// The user's environment names an engine elsewhere.
    #[error("DOCKER_HOST is {0:?}, and only an engine behind a unix socket is spoken to")]
    Elsewhere(String),
    /// It is too old.
    #[error("the container engine is too old: {0}")]
    TooOld(String),
    /// Its containers are no Linux ones.
    #[error("the container engine runs {0} containers, not Linux ones")]
    NotLinux(String),
    /// The connection ended in the middle of a call.
    #[error("the container engine went away: {0}")]
    Gone(String),
    /// No answer in time.
    #[error("the container engine did not answer in time")]
    Late,
    /// It said no.
    #[error("{message}")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// Its words.
        message: String,
    },
}

impl Engine {
    /// The engine that the user's environment names, else the first one that is here.
    ///
    /// # Errors
    /// [`EngineError`] when there is none, or none that can be used.
    pub(super) async fn connect(host: &Host) -> Result<Self, EngineError> {
        let socket = socket(host)?;
        let pong = ping(&socket).await.map_err(|error| unreachable(&socket, &error))?;
        let pong = suited(pong)?;
        let path = socket.to_string_lossy();
        let docker = Docker::connect_with_unix(&path, ANSWERS_WITHIN.as_secs(), API_DEFAULT_VERSION)?;
        Ok(Self { docker, pong })
    }

    /// The client, for calls within [`Engine::ask`].
    pub(super) fn docker(&self) -> &Docker {
        &self.docker
    }

    /// Whether its internal networks can do without any address of the host's (28.0).
    pub(super) fn isolates_gateways(&self) -> bool {
        self.pong.api >= 48
    }

    /// Waits for a call, answer and all, within the deadline.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, Bollard>>,
    ) -> Result<T, EngineError> {
        self.ask_within(ANSWERS_WITHIN, call).await
    }

    /// The same, for a call that may take longer.
    ///
    /// # Errors
    /// As [`Engine::ask`].
    pub(super) async fn ask_within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Bollard>>,
    ) -> Result<T, EngineError> {
        // The client's own deadline ends with the answer's head.
        tokio::time::timeout(limit, call).await.map_err(|_| EngineError::Late)?.map_err(EngineError::from)
    }
}

impl EngineError {
    /// Whether what was asked about is not there.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether this user has no engine to work with, so that nothing of theirs can be on one: none is here, it
    /// is closed to them, or it is none that bottles run on.
    pub(super) fn is_no_engine(&self) -> bool {
        match self {
            Self::Absent { .. }
            | Self::Denied(_)
            | Self::Elsewhere(_)
            | Self::TooOld(_)
            | Self::NotLinux(_) => true,
            Self::Gone(_) | Self::Late | Self::Refused { .. } => false,
        }
    }

    /// Whether a network's addresses are another one's already.
    pub(super) fn overlaps(&self) -> bool {
        // Two places of the engine find it, each in words of its own; newer ones say "conflicts".
        ["Pool overlaps", "overlapping IPv4", "conflicts with network"].iter().any(|words| self.says(words))
    }

    /// Whether a refusal has these words.
    pub(super) fn says(&self, words: &str) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains(words))
    }

    /// The error of a backend, for something that was being done (`start the agent's container`).
    pub(super) fn during(self, doing: &str) -> BackendError {
        let kind = match self.is_no_engine() {
            true => BackendErrorKind::Unavailable,
            false => BackendErrorKind::Failed,
        };
        let message = match kind {
            BackendErrorKind::Unavailable => self.to_string(),
            _ => format!("cannot {doing}: {self}"),
        };
        BackendError { kind, message, hint: self.hint().map(str::to_owned) }
    }

    /// What the user does next.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Absent { .. } => Some(
                "install Docker 20.10 or later and start it (`sudo systemctl start docker`); an engine \
                 elsewhere is named by DOCKER_HOST=unix:///path",
            ),
            Self::Denied(_) => {
                Some("`sudo usermod -aG docker \"$USER\"`, then log in again; or run a rootless engine")
            }
            Self::Elsewhere(_) => Some("unset DOCKER_HOST, or set it to unix:///path/of/the/socket"),
            Self::TooOld(_) => Some("update the engine to Docker 20.10 or later"),
            Self::NotLinux(_) => Some("switch the engine to Linux containers"),
            Self::Gone(_) => Some("see the engine's own log (`journalctl -u docker`), start it, try again"),
            Self::Late => Some("see whether the engine is busy (`docker info`), and try again"),
            Self::Refused { .. } => self.hint_of_refusal(),
        }
    }

    fn hint_of_refusal(&self) -> Option<&'static str> {
        let hints = [
            ("no space left on device", FREE_SPACE),
            ("is already in use by container", "`bottle cleanup` removes what an earlier launch left"),
            ("already exists", "`bottle cleanup` removes what an earlier launch left"),
            (
                "unknown or invalid runtime",
                "`docker info` lists the engine's runtimes; set `docker.runtime` to one",
            ),
            ("No such image", "start again: the image was removed in the meantime and is built anew"),
        ];
        hints.iter().find(|(words, _)| self.says(words)).map(|(_, hint)| *hint)
    }
}

/// Where the engine is, by the user's environment.
fn socket(host: &Host) -> Result<PathBuf, EngineError> {
    if let Some(named) = host.var("DOCKER_HOST") {
        let path = named.strip_prefix("unix://").filter(|path| path.starts_with('/'));
        return path.map(PathBuf::from).ok_or_else(|| EngineError::Elsewhere(named.to_owned()));
    }
    let system = PathBuf::from("/var/run/docker.sock");
    let rootless = host.var("XDG_RUNTIME_DIR").map(|folder| Path::new(folder).join("docker.sock"));
    let desktop = host.user_home.join(".docker/run/docker.sock");
    let mut places = std::iter::once(system.clone()).chain(rootless).chain([desktop]);
    Ok(places.find(|place| place.exists()).unwrap_or(system))
}

fn unreachable(socket: &Path, error: &io::Error) -> EngineError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => EngineError::Denied(socket.to_owned()),
        io::ErrorKind::TimedOut => EngineError::Late,
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            EngineError::Absent { socket: socket.to_owned(), cause: error.to_string() }
        }
        _ => EngineError::Gone(error.to_string()),
    }
}

fn suited(pong: Pong) -> Result<Pong, EngineError> {
    if pong.api < OLDEST_API {
        let words =
            format!("{} speaks version 1.{} of the API, and 1.{OLDEST_API} is needed", pong.server, pong.api);
        return Err(EngineError::TooOld(words));
    }
    match pong.os.as_str() {
        "linux" | "" => Ok(pong),
        other => Err(EngineError::NotLinux(other.to_owned())),
    }
}

impl From<Bollard> for EngineError {
    fn from(error: Bollard) -> Self {
        match error {
            Bollard::DockerResponseServerError { status_code, message } => {
                Self::Refused { status: status_code, message: message.trim().to_owned() }
            }
            Bollard::RequestTimeoutError => Self::Late,
            Bollard::DockerStreamError { error } => Self::Refused { status: 500, message: error },
            Bollard::SocketNotFoundError(path) => {
                Self::Absent { socket: path.into(), cause: "no such file".to_owned() }
            }
            other => {
                // The first cause says most: the layers above it say "client error".
                let mut cause: &dyn std::error::Error = &other;
                while let Some(inner) = cause.source() {
                    cause = inner;
                }
                Self::Gone(cause.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
    fn the_environment_names_the_engine_and_only_a_socket_will_do() {
        let nowhere = Path::new("/nonexistent");
        let named = |value| socket(&host(&[("DOCKER_HOST", value)], nowhere));
        assert_eq!(named("unix:///run/x.sock"), Ok("/run/x.sock".into()));
        for other in ["tcp://127.0.0.1:2375", "ssh://host", "unix://x", "/run/x.sock"] {
            let error = named(other).expect_err(other);
            assert!(error.to_string().contains(other) && error.hint().is_some(), "{error}");
        }
    }

    #[test]
    fn an_engine_must_be_new_enough_and_run_linux() {
        let pong = |api, os: &str| Pong { api, os: os.to_owned(), server: "Docker/19.03.1".to_owned() };
        assert!(suited(pong(41, "linux")).is_ok());
        let error = suited(pong(40, "linux")).expect_err("too old").during("x");
        assert_eq!(error.kind, BackendErrorKind::Unavailable);
        assert!(error.message.contains("Docker/19.03.1") && error.message.contains("1.41"), "{error}");
        assert!(suited(pong(45, "windows")).is_err());
    }

    #[tokio::test]
    async fn no_engine_is_told_from_one_that_is_silent_and_one_that_is_closed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("docker.sock");
        let address = format!("unix://{}", path.display());
        let at = host(&[("DOCKER_HOST", &address)], folder.path());
        let error = Engine::connect(&at).await.expect_err("nothing there");
        assert!(error.is_no_engine() && error.to_string().contains("docker.sock"), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(Engine::connect(&at).await.expect_err("nobody listens").is_no_engine());
        assert!(
            unreachable(&path, &io::ErrorKind::PermissionDenied.into())
                .hint()
                .expect("hint")
                .contains("docker")
        );
    }

    #[test]
    fn a_refusal_says_what_was_tried_and_what_to_do() {
        let refused = |message: &str| EngineError::Refused { status: 500, message: message.to_owned() };
        let full = refused("write /x: no space left on device").during("make a container");
        assert_eq!(full.message, "cannot make a container: write /x: no space left on device");
        assert!(full.hint.expect("hint").contains("free space"));
        assert!(refused("Pool overlaps with other one on this address space").overlaps());
        assert!(
            refused("cannot create network x: conflicts with network y: networks have overlapping IPv4")
                .overlaps()
        );
        assert!(!refused("no such network").overlaps());
    }
}
