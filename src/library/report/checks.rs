//! The JSON output of the commands that check manifests, backends and the isolation.

use bottle_backend::Check;
use bottle_contract::session::guest::{Attempt, Reach};
use bottle_keeper::launch::isolation::{Control, JudgedAttempt};
use serde::Serialize;

/// An element of the array that `bottle list agents --json` and `bottle list bottles --json` print.
#[derive(Debug, Serialize)]
pub(crate) struct NamedManifest {
    pub(crate) name: String,
    /// Where the file comes from.
    pub(crate) from: &'static str,
    pub(crate) file: String,
    /// If this file shadows another of the same name: where the shadowed file comes from.
    pub(crate) replaces: Option<&'static str>,
}

/// An element of the array that `bottle doctor --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct BackendHealth {
    pub(crate) backend: &'static str,
    #[serde(flatten)]
    pub(crate) check: Check,
}

/// An element of the array that `bottle probe --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ProbeAttempt {
    pub(crate) target: String,
    pub(crate) via: String,
    pub(crate) result: Reach,
    /// What the probe observed.
    pub(crate) seen: String,
    /// Whether the same target answers a connection from outside the bottle: `answered`, `not-needed`,
    /// `missing`.
    pub(crate) control: Control,
}

impl From<&JudgedAttempt> for ProbeAttempt {
    fn from(tried: &JudgedAttempt) -> Self {
        let Attempt { target, via, result, seen, .. } = tried.attempt.clone();
        Self { target, via, result, seen, control: tried.control }
    }
}
