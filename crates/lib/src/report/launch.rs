//! The document of a dry run of a launch.

use std::path::Path;

use bottle_backend::Exposed;
use bottle_manifest::resolve::{ResolvedManifest, WeakeningSetting};
use bottle_plan::CopiedDirectory;
use serde::Serialize;

/// The output of `start --dry-run --json`. A later version may add fields, but does not remove or rename any field.
#[derive(Debug, Serialize)]
pub struct DryRun<'a> {
    /// The slug of the bottle. Absent if the slug would be random.
    pub slug: Option<&'a str>,
    /// The name of the backend.
    pub backend: &'a str,
    /// The command of the agent.
    pub command: &'a [String],
    /// Whether the agent gets a terminal.
    pub terminal: bool,
    /// The secrets that the launch reads.
    pub secrets: Vec<SecretUse>,
    /// The paths of this machine that the bottle can read or write.
    pub exposed: &'a [Exposed],
    /// The machine's sockets and pipes below the paths in `exposed`. Such sockets and pipes weaken the isolation
    /// (`home_allow_sockets`).
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub sockets: &'a [String],
    /// Images that would be built, pulled or loaded first, and why.
    pub makes: &'a [String],
    /// How the Dockerfile changed since it was last built, as a unified diff.
    pub changed: &'a [String],
    /// Parts of the image that have no effect, or that do not persist.
    pub notes: &'a [String],
    /// Limits that the backend enforces only approximately.
    pub limits: &'a [String],
    /// The settings that weaken the isolation.
    pub weaker: Vec<WeakeningSetting>,
    /// The directory that is mounted as the workspace (`--cwd=live`). Such a mount weakens the isolation too.
    pub live: Option<&'a Path>,
    /// The directories that are copied into the workspace, if there are several.
    #[serde(rename = "folders", skip_serializing_if = "<[_]>::is_empty")]
    pub directories: &'a [CopiedDirectory],
    /// The resolved manifest.
    pub manifest: &'a ResolvedManifest,
    /// The routes, in the YAML form of `egress.routes`.
    pub routes: String,
}

/// A secret that a launch reads.
#[derive(Debug, Serialize)]
pub struct SecretUse {
    /// The purpose of the secret.
    pub purpose: String,
    /// The source of the secret.
    pub from: String,
}
