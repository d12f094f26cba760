//! The JSON output of the commands for snapshots and archives.

use bottle_backend::Snapshot;
use bottle_backend::portable_image::RootKind;
use jiff::Timestamp;
use serde::Serialize;

/// The output of `bottle commit --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Committed {
    #[serde(flatten)]
    pub(crate) snapshot: Snapshot,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
    /// The command that starts a bottle from the snapshot.
    pub(crate) resume: String,
    /// The command that exports the snapshot for use on another machine.
    pub(crate) moved_by: Option<String>,
}

/// The output of `bottle export --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Exported {
    pub(crate) slug: String,
    /// The name of the exported snapshot; absent when the bottle was exported as it was.
    pub(crate) name: Option<String>,
    pub(crate) file: String,
    /// The size of the archive.
    pub(crate) bytes: u64,
    /// `complete` for a root file system; `home` for only the agent's home and the workspace.
    pub(crate) root: RootKind,
    /// The public key that signed the archive; absent when it is not signed.
    pub(crate) key: Option<String>,
    /// The rules whose findings were accepted.
    pub(crate) accepted: Vec<String>,
    /// The accepted findings.
    pub(crate) found: Vec<FoundSecret>,
}

/// A finding of the secret scanner in a bottle's files.
#[derive(Debug, Serialize)]
pub(crate) struct FoundSecret {
    pub(crate) rule: String,
    pub(crate) path: String,
    /// The kind of credential, without its value.
    pub(crate) preview: String,
}

/// The output of `bottle import --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Imported {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    pub(crate) agent: String,
    pub(crate) bottles: Vec<String>,
    pub(crate) backend: String,
    /// As in the output of `bottle export --json`.
    pub(crate) root: RootKind,
    /// The bottle's slug on the machine of the exporter.
    pub(crate) exported_from: String,
    pub(crate) made_at: Timestamp,
    /// The rules whose findings the exporter accepted.
    pub(crate) accepted: Vec<String>,
    pub(crate) signature: SignedBy,
    /// The command that starts the bottle.
    pub(crate) resume: String,
}

/// The signature of an archive.
#[derive(Debug, Serialize)]
pub(crate) struct SignedBy {
    /// `none`; `own` for the key of this home; `known` for a key in `settings.yml`; `unknown`.
    pub(crate) status: &'static str,
    pub(crate) key: Option<String>,
    /// The key's name in `settings.yml`.
    pub(crate) name: Option<String>,
}

/// An element of the array that `bottle list snapshots --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ListedSnapshot {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) backend: String,
    /// The address of the engine that has the snapshot, if the backend has an engine.
    pub(crate) engine: Option<String>,
    pub(crate) reference: String,
    /// The name that the user gave it, if any.
    pub(crate) name: Option<String>,
    /// The reference of the snapshot that it continues. That one may have been removed.
    pub(crate) parent: Option<String>,
    pub(crate) made_at: Timestamp,
    pub(crate) bytes: Option<u64>,
    /// `ready`; `gone` when the snapshot was removed by other means; `elsewhere` when it is on another
    /// engine, or its engine does not answer; `unknown` when the backend did not answer; `unnamed` when the snapshot's
    /// bottle has no record.
    pub(crate) status: &'static str,
}
