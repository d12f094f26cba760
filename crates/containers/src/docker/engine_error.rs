//! The errors of a container engine, and their messages with hints.

use std::path::PathBuf;

use bollard::errors::Error as Bollard;
use bottle_backend::{BackendError, BackendErrorKind};

/// The hint if the disk is full.
pub(super) const FREE_SPACE_HINT: &str =
    "free space where the engine keeps its data; `docker system df` shows";

/// The hint if an object was removed during the operation.
pub(super) const REMOVED_HINT: &str = "something else on this engine removed it meanwhile; try again";

/// The hint if a container of a bottle is missing.
pub(super) const PART_REMOVED_HINT: &str =
    "something else on this engine removed or ended it; `bottle cleanup` removes what is left";

/// An error of a container engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EngineError {
    /// No process listens on the engine's socket.
    #[error("no container engine answers at {}: {cause}", socket.display())]
    Absent {
        /// The path of the engine's socket.
        socket: PathBuf,
        /// The system error of the connection attempt.
        cause: String,
    },
    /// This user may not access the engine's socket.
    #[error("this user may not access the container engine at {}", .0.display())]
    Denied(PathBuf),
    /// `DOCKER_HOST` or the user's context names an engine that does not listen on a unix socket.
    #[error("{named_by} is {address:?}, but only an engine behind a unix socket is supported")]
    NotUnixSocket {
        /// The setting that names the engine.
        named_by: String,
        /// The engine's address.
        address: String,
    },
    /// The user's context does not exist or cannot be read.
    #[error("the docker context {name:?} cannot be used: {cause}")]
    NoContext {
        /// The name of the context.
        name: String,
        /// Why the context cannot be used.
        cause: String,
    },
    /// The engine is too old.
    #[error("the container engine is too old: {0}")]
    TooOld(String),
    /// The engine does not run Linux containers.
    #[error("the container engine runs {0} containers, not Linux ones")]
    NotLinux(String),
    /// The engine closed the connection during a call.
    #[error("the container engine closed the connection: {0}")]
    Disconnected(String),
    /// The engine did not answer in time.
    #[error("the container engine did not answer in time")]
    TimedOut,
    /// The engine refused the call.
    #[error("{message}")]
    Refused {
        /// The HTTP status of the engine's answer.
        status: u16,
        /// The engine's error message.
        message: String,
    },
}

impl EngineError {
    /// Whether the error says that the object does not exist. If a container is removed during the request, Podman 4.3
    /// reports a server error (500).
    pub(super) fn is_missing(&self) -> bool {
        match self {
            Self::Refused { status: 404, .. } => true,
            Self::Refused { status: 500, message } => message.ends_with("no such container"),
            _ => false,
        }
    }

    /// Whether this user has no usable engine, because the engine is absent, inaccessible or unsupported. The user then
    /// has no resources on the engine.
    pub(super) fn is_unusable(&self) -> bool {
        match self {
            Self::Absent { .. }
            | Self::Denied(_)
            | Self::NotUnixSocket { .. }
            | Self::NoContext { .. }
            | Self::TooOld(_)
            | Self::NotLinux(_) => true,
            Self::Disconnected(_) | Self::TimedOut | Self::Refused { .. } => false,
        }
    }

    /// Whether the error says that a subnet overlaps with another network.
    pub(super) fn is_subnet_overlap(&self) -> bool {
        // Two parts of the engine detect the overlap, with different messages. Newer versions use "conflicts".
        ["Pool overlaps", "overlapping IPv4", "conflicts with network"]
            .iter()
            .any(|reason| self.contains(reason))
    }

    /// Whether the engine refused the call with a message that contains `reason`.
    pub(super) fn contains(&self, reason: &str) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains(reason))
    }

    /// Converts the error into a [`BackendError`] for an action (`start the agent's container`).
    pub(super) fn during(self, doing: &str) -> BackendError {
        let hint = self.hint().map(str::to_owned);
        let error = match self.is_unusable() {
            true => BackendError::new(BackendErrorKind::Unavailable, self.to_string()),
            false => BackendError::failed(format!("cannot {doing}")).because(self),
        };
        BackendError { hint, ..error }
    }

    /// Returns the user's next step.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Absent { .. } => Some(
                "install Docker 20.10 or later and start it (`sudo systemctl start docker`); an engine \
                 elsewhere is named by DOCKER_HOST=unix:///path",
            ),
            Self::Denied(_) => {
                Some("`sudo usermod -aG docker \"$USER\"`, then log in again; or run a rootless engine")
            }
            Self::NotUnixSocket { named_by, .. } if named_by == "DOCKER_HOST" => {
                Some("unset DOCKER_HOST, or set it to unix:///path/of/the/socket")
            }
            Self::NotUnixSocket { .. } | Self::NoContext { .. } => Some(
                "select another context (`docker context use default`), or set DOCKER_HOST=unix:///path/of/the/socket",
            ),
            Self::TooOld(_) => Some("update the engine to Docker 20.10 or later, or Podman 4.3 or later"),
            Self::NotLinux(_) => Some("switch the engine to Linux containers"),
            Self::Disconnected(_) => {
                Some("see the engine's own log (`journalctl -u docker`), start it, try again")
            }
            Self::TimedOut => Some("see whether the engine is busy (`docker info`), and try again"),
            Self::Refused { .. } => self.hint_of_refusal(),
        }
    }

    fn hint_of_refusal(&self) -> Option<&'static str> {
        let hints = [
            ("no space left on device", FREE_SPACE_HINT),
            ("is already in use by container", "`bottle cleanup` removes what an earlier launch left"),
            ("already exists", "`bottle cleanup` removes what an earlier launch left"),
            (
                "unknown or invalid runtime",
                "`docker info` lists the engine's runtimes; set `docker.runtime` to one",
            ),
            ("No such image", "start again: the image was removed in the meantime and is built anew"),
        ];
        hints.iter().find(|(reason, _)| self.contains(reason)).map(|(_, hint)| *hint)
    }
}

impl From<Bollard> for EngineError {
    fn from(error: Bollard) -> Self {
        match error {
            Bollard::DockerResponseServerError { status_code, message } => {
                Self::Refused { status: status_code, message: message.trim().to_owned() }
            }
            Bollard::RequestTimeoutError => Self::TimedOut,
            Bollard::DockerStreamError { error } => Self::Refused { status: 500, message: error },
            Bollard::SocketNotFoundError(path) => {
                Self::Absent { socket: path.into(), cause: "no such file".to_owned() }
            }
            other => {
                // The innermost cause is the most specific cause. The outer errors contain only "client error".
                let mut cause: &dyn std::error::Error = &other;
                while let Some(inner) = cause.source() {
                    cause = inner;
                }
                Self::Disconnected(cause.to_string())
            }
        }
    }
}
