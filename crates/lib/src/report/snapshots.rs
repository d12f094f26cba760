//! The JSON output of the commands for snapshots and archives.

use bottle_backend::Snapshot;
use bottle_backend::portable_image::{ContentFinding, RootKind};
use jiff::Timestamp;
use serde::Serialize;

/// The output of `bottle commit --json`.
#[derive(Debug, Serialize)]
pub struct Committed {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The command that starts a bottle from the snapshot.
    pub resume: String,
    /// The command that exports the snapshot for use on another machine.
    pub moved_by: Option<String>,
}

/// The output of `bottle export --json`.
#[derive(Debug, Serialize)]
pub struct Exported {
    /// The slug of the bottle.
    pub slug: String,
    /// The name of the exported snapshot. Absent when the bottle's current state was exported.
    pub name: Option<String>,
    /// The path of the archive.
    pub file: String,
    /// The size of the archive in bytes.
    pub bytes: u64,
    /// `complete` for a root file system; `home` for only the agent's home and the workspace.
    pub root: RootKind,
    /// The public key that signed the archive. Absent when the archive is not signed.
    pub key: Option<String>,
    /// The rules whose findings were accepted.
    pub accepted: Vec<String>,
    /// The accepted findings.
    pub found: Vec<FoundSecret>,
}

/// A finding of the secret scanner in a bottle's files.
#[derive(Debug, Serialize)]
pub struct FoundSecret {
    /// The name of the scanner rule.
    pub rule: String,
    /// The path of the file inside the bottle.
    pub path: String,
    /// The kind of credential, without its value.
    pub preview: String,
}

impl From<&ContentFinding> for FoundSecret {
    fn from(ContentFinding { rule, path, preview }: &ContentFinding) -> Self {
        Self { rule: rule.clone(), path: path.clone(), preview: preview.clone() }
    }
}

/// The output of `bottle import --json`.
#[derive(Debug, Serialize)]
pub struct Imported {
    /// The slug of the new bottle.
    pub slug: String,
    /// The label of the bottle, if it has one.
    pub label: Option<String>,
    /// The name of the bottle's agent manifest.
    pub agent: String,
    /// The bottle manifests that were chosen, in order.
    pub bottles: Vec<String>,
    /// The name of the bottle's backend.
    pub backend: String,
    /// `complete` or `home`, as in the output of `bottle export --json`.
    pub root: RootKind,
    /// The bottle's slug on the machine of the exporter.
    pub exported_from: String,
    /// When the exporter made the archive.
    pub made_at: Timestamp,
    /// The rules whose findings the exporter accepted.
    pub accepted: Vec<String>,
    /// Who signed the archive.
    pub signature: SignedBy,
    /// The command that starts the bottle.
    pub resume: String,
}

/// The signature of an archive.
#[derive(Debug, Serialize)]
pub struct SignedBy {
    /// `none` without a signature, `own` for the key of this `$BOTTLE_HOME`, `known` for a key in `settings.yml`, or
    /// `unknown` for any other key.
    pub status: &'static str,
    /// The public key. `None` without a signature.
    pub key: Option<String>,
    /// The key's name in `settings.yml`.
    pub name: Option<String>,
}

/// An element of the array that `bottle list snapshots --json` prints.
#[derive(Debug, Serialize)]
pub struct ListedSnapshot {
    /// The slug of the bottle.
    pub slug: String,
    /// The label of the bottle, if it has one.
    pub label: Option<String>,
    /// The name of the agent manifest; absent without a record of the bottle.
    pub agent: Option<String>,
    /// The name of the backend that holds the snapshot.
    pub backend: String,
    /// The address of the engine that holds the snapshot, if the backend has an engine.
    pub engine: Option<String>,
    /// The reference by which other commands name the snapshot.
    pub reference: String,
    /// The name that the user gave the snapshot, if any.
    pub name: Option<String>,
    /// The reference of the earlier snapshot on which this snapshot is based. The earlier snapshot may have been
    /// removed.
    pub parent: Option<String>,
    /// When the snapshot was made.
    pub made_at: Timestamp,
    /// The size of the snapshot in bytes, if the backend knows it.
    pub bytes: Option<u64>,
    /// `ready`; `gone` when the snapshot was removed by other means; `elsewhere` when it is on another
    /// engine, or its engine does not answer; `unknown` when the backend did not answer; `unnamed` when the snapshot's
    /// bottle has no record.
    pub status: &'static str,
}
