//! Services: programs that the guest starts before the agent, checks for readiness, and starts again.
//!
//! Each run of a service is a process with the service's name, so the requests for processes also read its output,
//! write to its input and signal it.

use std::net::SocketAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::process::ProcessName;
use super::program::{Exit, Process};

/// The maximum number of services of a bottle.
pub const SERVICES_MAX: usize = 32;

/// A service to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name, which no other service that runs has.
    pub name: ProcessName,
    /// Its program.
    pub process: Process,
    /// When it is ready.
    pub readiness: Readiness,
    /// The time between two checks of its readiness, in milliseconds.
    pub interval_ms: u64,
    /// The time limit for one check, in milliseconds.
    pub timeout_ms: u64,
    /// The time in which it must become ready, in milliseconds.
    pub start_period_ms: u64,
    /// Whether it is started again when it ends.
    pub restart: Restart,
}

/// How to find out that a service is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Readiness {
    /// It is ready as soon as it runs.
    Started,
    /// A `GET` request gets a response with a status from 200 to 399.
    Http(HttpCheck),
    /// A TCP connection to one of these addresses inside the bottle is accepted.
    Tcp(Vec<SocketAddr>),
    /// This path exists in the bottle. A relative path starts at the workspace.
    File(String),
    /// This program exits with code 0.
    Command(Vec<String>),
}

/// A request that checks the readiness of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpCheck {
    /// The addresses inside the bottle, which are tried in order.
    pub addresses: Vec<SocketAddr>,
    /// The value of the field `Host`.
    pub host: String,
    /// The path with its query.
    pub path: String,
}

/// Whether a service that ended is started again, after a delay that grows from half a second to half a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// It is not.
    #[default]
    No,
    /// It is, unless it exited with code 0.
    OnFailure,
    /// It always is.
    Always,
}

impl Restart {
    /// Whether a service that ended in this way is started again.
    #[must_use]
    pub fn restarts(self, exit: Exit) -> bool {
        match self {
            Self::No => false,
            Self::OnFailure => exit != Exit::Code(0),
            Self::Always => true,
        }
    }
}

/// The state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceState {
    /// It runs, and is not ready.
    Starting,
    /// It runs, and was ready.
    Ready,
    /// It ended, and is started again soon.
    Restarting,
    /// It ended by itself, and is not started again.
    Exited,
    /// It could not be started, ended before it was ready, or was not ready in time. It is not started again.
    Failed,
    /// It was stopped on request.
    Stopped,
}

impl ServiceState {
    /// The name in lists.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Restarting => "restarting",
            Self::Exited => "exited",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    /// Whether the guest has ended its work on the service.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Exited | Self::Failed | Self::Stopped)
    }
}

/// A service and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceInfo {
    /// Its name.
    pub name: ProcessName,
    /// Its state.
    pub state: ServiceState,
    /// The process of its last run.
    pub process: Option<ProcessName>,
    /// When it was last ready.
    pub ready_at: Option<Timestamp>,
    /// How often it was started again.
    pub restarts: u64,
    /// How its last run ended.
    pub exit: Option<Exit>,
    /// Why it failed or is started again: a fragment that begins in lower case.
    pub why: Option<String>,
}

/// A service to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopService {
    /// Its name.
    pub name: ProcessName,
    /// The time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_decides_by_the_exit() {
        for (restart, clean, failed, killed) in [
            (Restart::No, false, false, false),
            (Restart::OnFailure, false, true, true),
            (Restart::Always, true, true, true),
        ] {
            let restarts = [Exit::Code(0), Exit::Code(3), Exit::Signal(9)].map(|exit| restart.restarts(exit));
            assert_eq!(restarts, [clean, failed, killed], "{restart:?}");
        }
    }
}
