//! Services: programs that the guest starts before the agent, checks for readiness, and restarts.
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
    /// The name of the service, which no other running service has.
    pub name: ProcessName,
    /// The program of the service.
    pub process: Process,
    /// The condition under which the service is ready.
    pub readiness: Readiness,
    /// The time between two readiness checks, in milliseconds.
    pub interval_ms: u64,
    /// The time limit for one check, in milliseconds.
    pub timeout_ms: u64,
    /// The time limit for the service to become ready, in milliseconds.
    pub start_period_ms: u64,
    /// Whether the guest restarts the service when it ends.
    pub restart: Restart,
}

/// How to check that a service is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Readiness {
    /// The service is ready as soon as it runs.
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

/// Whether a service that ended is restarted. The delay before a restart grows from half a second to half a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// The service is not restarted.
    #[default]
    No,
    /// The service is restarted unless it exited with code 0.
    OnFailure,
    /// The service is always restarted.
    Always,
}

impl Restart {
    /// Whether a service that ended in this way is restarted.
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
    /// The service runs, but is not ready yet.
    Starting,
    /// The service runs, and has become ready.
    Ready,
    /// The service ended, and the guest will restart it soon.
    Restarting,
    /// The service ended by itself, and the guest does not restart it.
    Exited,
    /// The service could not be started, ended before it was ready, or was not ready in time. The guest does not
    /// restart it.
    Failed,
    /// The service was stopped on request.
    Stopped,
}

impl ServiceState {
    /// The name of the state in lists.
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

    /// Whether the state is final: the guest will not restart the service by itself.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Exited | Self::Failed | Self::Stopped)
    }
}

/// A service and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceInfo {
    /// The name of the service.
    pub name: ProcessName,
    /// The state of the service.
    pub state: ServiceState,
    /// The process of the service's last run.
    pub process: Option<ProcessName>,
    /// The time at which the service was last ready.
    pub ready_at: Option<Timestamp>,
    /// The number of restarts.
    pub restarts: u64,
    /// How the service's last run ended.
    pub exit: Option<Exit>,
    /// Why the service failed or is restarted, as a lower-case fragment.
    pub why: Option<String>,
}

/// A service to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopService {
    /// The name of the service.
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
