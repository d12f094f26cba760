//! Parses a saved image, which is the output of `docker save` (`manifest.json`) or an OCI layout (`index.json`). The
//! digest of the image's configuration is the image's id. The configuration contains the digest of each layer's
//! content.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::bad_image::BadImage;
use super::container::Container;
use crate::image::config::Config;

/// The size limit of a JSON file of an image in bytes. Manifests and configurations are smaller. An image with a larger
/// file is refused.
const JSON_MAX: u64 = 4 << 20;

/// The maximum nesting depth of OCI image indexes. An image with more deeply nested indexes is refused.
const NESTED_MAX: usize = 3;

/// The maximum number of layers. Engines create images with fewer layers. An image with more layers is refused.
const LAYERS_MAX: usize = 512;

/// The operating system in an index entry that is not an image.
const UNKNOWN: &str = "unknown";

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the digest of the bytes that the hasher has read.
    pub fn from_hasher(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// Parses `sha256:` followed by 64 hexadecimal digits.
    fn parse(text: &str) -> Result<Self, BadImage> {
        let digits = text.strip_prefix("sha256:");
        let hash = digits.and_then(Self::from_hex);
        hash.ok_or_else(|| BadImage::refused(format!("is damaged: {text:?} is not a SHA-256 digest")))
    }

    /// Parses 64 hexadecimal digits. Returns `None` for any other text.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let mut hash = [0; 32];
        hex::decode_to_slice(digits, &mut hash).ok().map(|()| Self(hash))
    }

    /// Returns the hexadecimal digits without the prefix `sha256:`.
    pub fn digits(&self) -> String {
        hex::encode(self.0)
    }

    /// Returns the path of the blob with this digest in an OCI layout.
    pub fn blob(&self) -> String {
        format!("blobs/sha256/{}", self.digits())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.digits())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One layer of an image.
#[derive(Debug)]
pub struct Layer {
    /// The layer's file name in the saved image.
    pub name: String,
    /// The digest of the stored bytes, if known. The stored bytes may be compressed.
    pub stored: Option<Digest>,
    /// The digest of the decompressed content, which is a tar archive.
    pub content: Digest,
}

/// A saved image.
#[derive(Debug)]
pub struct Saved {
    /// The digest of the configuration, which is the image's id.
    pub id: Digest,
    /// The parts of the configuration that `bottle` uses.
    pub config: Config,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
}

impl Saved {
    /// Reads the manifest and the configuration for a machine of this processor architecture. Does not read the layers.
    ///
    /// # Errors
    /// When the image is damaged or for another kind of machine, or when `container` contains no image or several
    /// images.
    pub fn read(container: &Container, architecture: &str) -> Result<Self, BadImage> {
        let found = match container.read("manifest.json", JSON_MAX)? {
            Some(list) => parse_docker_save(container, &list)?,
            None => parse_oci_layout(container, architecture)?,
        };
        let RawImage { architecture: own, os, config, rootfs } = json(&found.config, "its configuration")?;
        let config = Config { os, architecture: own, ..config.unwrap_or_default().into() };
        config.expect_for(architecture, "this machine").map_err(BadImage::Refused)?;
        if rootfs.diff_ids.len() != found.layers.len() {
            let (listed, named) = (found.layers.len(), rootfs.diff_ids.len());
            return Err(BadImage::refused(format!(
                "is damaged: it lists {listed} layers, but its configuration {named}"
            )));
        }
        if found.layers.len() > LAYERS_MAX {
            return Err(BadImage::refused(format!("has more than {LAYERS_MAX} layers")));
        }
        let layers =
            found.layers.into_iter().zip(&rootfs.diff_ids).map(|((name, stored), content)| {
                Ok(Layer { name, stored, content: Digest::parse(content)? })
            });
        Ok(Self {
            id: Digest::from_bytes(&found.config),
            config,
            layers: layers.collect::<Result<_, BadImage>>()?,
        })
    }
}

/// The configuration and the layers of an image.
struct Parts {
    config: Vec<u8>,
    layers: Vec<(String, Option<Digest>)>,
}

/// Reads `manifest.json`, which has one entry for each image.
fn parse_docker_save(container: &Container, list: &[u8]) -> Result<Parts, BadImage> {
    let mut images: Vec<EngineImage> = json(list, "manifest.json")?;
    let image = match images.len() {
        1 => images.remove(0),
        count => return Err(not_one_image(count)),
    };
    let config = container.read(&image.config, JSON_MAX)?.ok_or_else(|| missing(&image.config))?;
    // In both forms of `docker save`, the file name of the configuration contains the configuration's digest.
    let named = image.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
    if let Some(named) = Digest::from_hex(named) {
        expect(named, &config, &image.config)?;
    }
    let layers = image.layers.into_iter().map(|name| {
        let stored = name.strip_prefix("blobs/sha256/").and_then(Digest::from_hex);
        (name, stored)
    });
    Ok(Parts { config, layers: layers.collect() })
}

/// Reads `index.json`. The index lists images, or further indexes that contain one image for each platform.
fn parse_oci_layout(container: &Container, architecture: &str) -> Result<Parts, BadImage> {
    let index = container.read("index.json", JSON_MAX)?.ok_or_else(|| missing("index.json"))?;
    let mut found = Vec::new();
    collect(container, &index, NESTED_MAX, &mut found)?;
    let own = |entry: &Entry| entry.platform.as_ref().is_none_or(|platform| platform.is_for(architecture));
    let kinds: Vec<String> =
        found.iter().filter_map(|entry| entry.platform.as_ref()).map(|p| p.architecture.clone()).collect();
    let any = !found.is_empty();
    let mut matching: Vec<Entry> = found.into_iter().filter(own).collect();
    matching.dedup_by(|a, b| a.digest == b.digest);
    let entry = match matching.len() {
        1 => matching.remove(0),
        0 if any => {
            let kinds = kinds.join(", ");
            return Err(BadImage::refused(format!("is for {kinds}, not for this machine ({architecture})")));
        }
        count => return Err(not_one_image(count)),
    };
    let manifest: Manifest = json(&blob(container, &entry.digest)?, "its manifest")?;
    let config = blob(container, &manifest.config.digest)?;
    let layers = manifest.layers.iter().map(|layer| {
        let digest = Digest::parse(&layer.digest)?;
        Ok((digest.blob(), Some(digest)))
    });
    Ok(Parts { config, layers: layers.collect::<Result<_, BadImage>>()? })
}

fn collect(
    container: &Container,
    index: &[u8],
    nested: usize,
    found: &mut Vec<Entry>,
) -> Result<(), BadImage> {
    let index: Index = json(index, "its index")?;
    for entry in index.manifests {
        // An entry for an unknown platform is not an image. For example, the entry may describe how an image was built.
        if entry.platform.as_ref().is_some_and(|platform| platform.os == UNKNOWN) {
            continue;
        }
        if !entry.is_index() {
            found.push(entry);
        } else if nested == 0 {
            return Err(BadImage::refused("is damaged: its image lists are nested too deeply"));
        } else {
            collect(container, &blob(container, &entry.digest)?, nested - 1, found)?;
        }
    }
    Ok(())
}

/// Reads a small blob of an OCI layout and verifies its digest.
fn blob(container: &Container, digest: &str) -> Result<Vec<u8>, BadImage> {
    let digest = Digest::parse(digest)?;
    let name = digest.blob();
    let bytes = container.read(&name, JSON_MAX)?.ok_or_else(|| missing(&name))?;
    expect(digest, &bytes, &name)?;
    Ok(bytes)
}

fn expect(digest: Digest, bytes: &[u8], name: &str) -> Result<(), BadImage> {
    let actual = Digest::from_bytes(bytes);
    if actual == digest {
        return Ok(());
    }
    Err(BadImage::refused(format!("is damaged: {name:?} is {actual}, expected {digest}")))
}

pub(crate) fn missing(name: &str) -> BadImage {
    BadImage::refused(format!("is incomplete: {name:?} is missing"))
}

fn not_one_image(count: usize) -> BadImage {
    BadImage::Refused(match count {
        0 => "contains no image".to_owned(),
        count => format!("contains {count} images instead of one"),
    })
}

fn json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, BadImage> {
    serde_json::from_slice(bytes)
        .map_err(|error| BadImage::refused(format!("is damaged: {what} cannot be read: {error}")))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EngineImage {
    config: String,
    #[serde(default)]
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
}

impl Entry {
    fn is_index(&self) -> bool {
        self.media_type.ends_with(".index.v1+json") || self.media_type.ends_with(".manifest.list.v2+json")
    }
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

impl Platform {
    fn is_for(&self, architecture: &str) -> bool {
        (self.os.is_empty() || self.os == "linux")
            && (self.architecture.is_empty() || self.architecture == architecture)
    }
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

#[derive(Deserialize)]
struct RawImage {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<RawConfig>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    volumes: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    on_build: Option<Vec<String>>,
    healthcheck: Option<Healthcheck>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Healthcheck {
    test: Option<Vec<String>>,
}

impl From<RawConfig> for Config {
    fn from(raw: RawConfig) -> Self {
        Self {
            user: raw.user.unwrap_or_default(),
            env: raw.env.unwrap_or_default(),
            volumes: raw.volumes.unwrap_or_default().into_keys().collect(),
            entrypoint: raw.entrypoint.is_some_and(|words| !words.is_empty()),
            healthcheck: raw.healthcheck.and_then(|check| check.test).unwrap_or_default(),
            labels: raw.labels.unwrap_or_default(),
            on_build: raw.on_build.is_some_and(|steps| !steps.is_empty()),
            ..Self::default()
        }
    }
}
