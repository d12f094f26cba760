//! The inputs and results of a backend that exports or imports the files of a bottle.

use std::io;
use std::path::Path;

use bottle_plan::ImageSource;
use bottle_policy::names::Slug;
use serde::{Deserialize, Serialize};

use super::layers::LayerStore;
use super::oci::{ImageConfig, write_image};
use crate::image::saved::Digest;
use crate::prepared::Prepared;
use crate::progress::ProgressSink;
use crate::snapshot::Snapshot;

/// Which files of a bottle an archive contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootKind {
    /// A complete root file system.
    Complete,
    /// Only the agent's home and the workspace. The bottle used the system directories of its machine.
    Home,
}

/// The input of [`crate::Snapshots::export`].
pub struct Export<'a> {
    /// The snapshot whose files are exported.
    pub snapshot: &'a Snapshot,
    /// The backend's name for the image on which the bottle was first started, if it is known. The layers of that image
    /// are not the bottle's own layers.
    pub base: Option<&'a str>,
    /// A private directory for temporary files, on the disk of `$BOTTLE_HOME`.
    pub scratch: &'a Path,
    /// Receives the layers.
    pub layers: LayerStore,
}

/// The files of a snapshot as an image.
pub struct ExportedImage {
    /// The layers.
    pub layers: LayerStore,
    /// The image's configuration.
    pub config: ImageConfig,
    /// Which files of a bottle the image contains.
    pub root: RootKind,
    /// The path of the agent's home directory in the image. The path is absolute.
    pub home: String,
}

impl ExportedImage {
    /// Adds the JSON files of the image to its blobs. Returns the OCI index, and the digests of all blobs. Blocks.
    ///
    /// # Errors
    /// When a blob cannot be written.
    pub fn finish(&self) -> io::Result<(String, Vec<Digest>)> {
        let (index, json) = write_image(&self.layers, &self.config)?;
        let mut blobs = json.to_vec();
        for layer in self.layers.layers() {
            // Equal layers share a blob.
            if !blobs.contains(&layer.stored) {
                blobs.push(layer.stored);
            }
        }
        Ok((index, blobs))
    }
}

/// The input of [`crate::Snapshots::import`].
pub struct Import<'a> {
    /// The slug of the new bottle. No other bottle has this slug.
    pub slug: &'a Slug,
    /// The directory of the archive's OCI layout. The caller has verified the digests of the layout's blobs.
    pub layout: &'a Path,
    /// Which files of a bottle the image contains.
    pub root: RootKind,
    /// The prepared inputs of the new bottle. With [`RootKind::Home`], the backend adds the files to the new bottle's
    /// image, if the bottle has an image.
    pub prepared: &'a Prepared,
    /// Receives the progress.
    pub progress: ProgressSink,
}

/// The result of an import.
#[derive(Debug)]
pub struct Imported {
    /// The new bottle's complete, durable snapshot.
    pub snapshot: Snapshot,
    /// The image that the new bottle uses instead of the image in its manifest.
    pub image: Option<ImageSource>,
}
