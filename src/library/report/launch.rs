//! The document of a launch that is only shown.

use std::path::Path;

use bottle_backend::Exposed;
use bottle_manifest::resolve::{ResolvedManifest, WeakeningSetting};
use bottle_plan::CopiedDirectory;
use serde::Serialize;

/// The output of `start --dry-run --json`. A later version may add fields, but does not remove or rename any.
#[derive(Debug, Serialize)]
pub(crate) struct DryRun<'a> {
    /// The slug; absent if it would be random.
    pub(crate) slug: Option<&'a str>,
    pub(crate) backend: &'a str,
    pub(crate) command: &'a [String],
    pub(crate) terminal: bool,
    pub(crate) secrets: Vec<SecretUse>,
    pub(crate) exposed: &'a [Exposed],
    /// Sockets and pipes of the machine in these paths, which weaken the isolation (`home_allow_sockets`).
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) sockets: &'a [String],
    /// Images that would be built, pulled or loaded first, and why.
    pub(crate) makes: &'a [String],
    /// A unified diff from the Dockerfile that was last built.
    pub(crate) changed: &'a [String],
    /// Parts of the image that have no effect, or that do not persist.
    pub(crate) notes: &'a [String],
    /// Limits that the backend enforces only approximately.
    pub(crate) limits: &'a [String],
    pub(crate) weaker: Vec<WeakeningSetting>,
    /// The directory that is mounted as the workspace (`--cwd=live`), which weakens the isolation too.
    pub(crate) live: Option<&'a Path>,
    /// The directories that are copied into the workspace, if there are several.
    #[serde(rename = "folders", skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) directories: &'a [CopiedDirectory],
    pub(crate) manifest: &'a ResolvedManifest,
    pub(crate) routes: String,
}

/// A secret that a launch reads.
#[derive(Debug, Serialize)]
pub(crate) struct SecretUse {
    /// What it is for.
    pub(crate) purpose: String,
    /// Where it comes from.
    pub(crate) from: String,
}
