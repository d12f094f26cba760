//! The content of `bottle/bottle.json`. The file has a format version.

use bottle_backend::portable_image::RootKind;
use bottle_policy::names::{Name, Slug};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::bad_archive::BadArchive;
use super::entry_names::METADATA;

/// The version of the format that this program writes. The program refuses newer versions.
pub const FORMAT: u32 = 1;

/// The maximum number of canaries in an archive. Further canaries are ignored.
const MAX_CANARIES: usize = 64;

/// Describes the exported bottle. The metadata contains no secret and grants no permission: an importer's manifests
/// decide what the new bottle may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The [`FORMAT`] of the archive.
    pub format: u32,
    /// The version of the program that wrote the archive.
    pub program: String,
    /// The bottle's slug on the machine of the exporter.
    pub slug: Slug,
    /// The snapshot's name.
    #[serde(default)]
    pub name: Option<Name>,
    /// The value of `--label`.
    #[serde(default)]
    pub label: Option<String>,
    /// The agent manifest's name.
    pub agent: Name,
    /// The names of the bottle manifests.
    pub bottles: Vec<Name>,
    /// The backend on which the files were made.
    pub backend: String,
    /// Which files of the bottle the archive contains.
    pub root: RootKind,
    /// The path of the agent's home in these files.
    pub home: String,
    /// The time at which the files were captured.
    pub made_at: Timestamp,
    /// The rules whose findings the exporter accepted.
    #[serde(default)]
    pub accepted: Vec<String>,
    /// The canaries that the files contain. The exporter accepted these canaries as findings. They grant no access, and
    /// the importer's proxy blocks them. The list is empty if the exporter accepted no canary.
    #[serde(default)]
    pub canaries: Vec<String>,
}

impl Metadata {
    /// Parses the file, and checks the version first.
    ///
    /// # Errors
    /// Returns [`BadArchive`] if a newer version wrote the metadata, or the metadata is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadArchive> {
        let damaged = |why: String| BadArchive::Refused(format!("its entry {METADATA:?} is damaged: {why}"));
        let value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format > u64::from(FORMAT) => return Err(BadArchive::Newer(format)),
            Some(1..) => {}
            _ => return Err(damaged("it has no version".to_owned())),
        }
        let mut metadata: Self = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
        metadata.canaries.truncate(MAX_CANARIES);
        Ok(metadata)
    }
}
