//! The JSON output of the commands that check manifests, backends and the isolation.

use bottle_backend::Check;
use bottle_keeper::launch::isolation::{Control, JudgedAttempt};
use bottle_protocol::session::guest::{Attempt, Reach};
use serde::Serialize;

/// An element of the array that `bottle list agents --json` and `bottle list bottles --json` print.
#[derive(Debug, Serialize)]
pub struct NamedManifest {
    /// The name, without `.md`.
    pub name: String,
    /// Where the file comes from: `shipped`, `yours` or `this project`.
    pub from: &'static str,
    /// The path of the file.
    pub file: String,
    /// If this file shadows another file of the same name: where the shadowed file comes from.
    pub replaces: Option<&'static str>,
}

/// An element of the array that `bottle doctor --json` prints.
#[derive(Debug, Serialize)]
pub struct BackendHealth {
    /// The name of the backend.
    pub backend: &'static str,
    /// The result of the check.
    #[serde(flatten)]
    pub check: Check,
}

/// An element of the array that `bottle probe --json` prints.
#[derive(Debug, Serialize)]
pub struct ProbeAttempt {
    /// The target that the probe tried to reach.
    pub target: String,
    /// How the probe tried to reach the target, such as `tcp 198.51.100.1:443`.
    pub via: String,
    /// Whether the probe reached the target.
    pub result: Reach,
    /// What the probe observed.
    pub seen: String,
    /// Whether the same target answers a connection from outside the bottle: `answered`, `not-needed`,
    /// `missing`.
    pub control: Control,
}

impl From<&JudgedAttempt> for ProbeAttempt {
    fn from(tried: &JudgedAttempt) -> Self {
        let Attempt { target, via, result, seen, .. } = tried.attempt.clone();
        Self { target, via, result, seen, control: tried.control }
    }
}
