//! Writes the JSON files of an archive's OCI layout: the configuration, the manifest and the index.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};

use super::layers::{Layer, LayerStore};
use crate::image::saved::{Digest, architecture};

/// The content of the file `oci-layout`.
pub const LAYOUT: &str = "{\"imageLayoutVersion\":\"1.0.0\"}\n";

/// The parts of an image's configuration that a bottle uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    /// The agent's user, as `uid:gid` or a name.
    pub user: String,
    /// The environment variables, as `NAME=value`.
    pub env: Vec<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

impl ImageConfig {
    /// Returns the configuration of an image with these layers, as JSON.
    pub fn json(&self, layers: &[Layer]) -> Value {
        let contents: Vec<String> = layers.iter().map(|layer| layer.content.to_string()).collect();
        let mut config = json!({"User": self.user, "Env": self.env, "Cmd": ["/bin/sh"]});
        if !self.labels.is_empty() {
            config["Labels"] = json!(self.labels);
        }
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": contents},
        })
    }
}

/// Adds the configuration and the manifest of an image to the blobs of its layers. Returns the index, and the digests
/// of the configuration and the manifest.
///
/// # Errors
/// When a blob cannot be written.
pub(super) fn write_image(store: &LayerStore, config: &ImageConfig) -> io::Result<(String, [Digest; 2])> {
    let (config, config_size) = blob(store, &config.json(store.layers()))?;
    let layers: Vec<Value> = store
        .layers()
        .iter()
        .map(|layer| {
            json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": layer.stored.to_string(),
                "size": layer.size,
            })
        })
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config.to_string(),
            "size": config_size,
        },
        "layers": layers,
    });
    let (manifest, manifest_size) = blob(store, &manifest)?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest.to_string(),
            "size": manifest_size,
            "platform": {"architecture": architecture(), "os": "linux"},
        }],
    });
    Ok((format!("{index}\n"), [manifest, config]))
}

fn blob(store: &LayerStore, content: &Value) -> io::Result<(Digest, usize)> {
    let text = content.to_string();
    Ok((store.add_blob(text.as_bytes())?, text.len()))
}
