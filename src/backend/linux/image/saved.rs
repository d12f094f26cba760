//! What a saved image says of itself: as `docker save` writes it (`manifest.json`), or as an OCI layout
//! (`index.json`). Its configuration is named by its digest, and names the digest of each layer's content.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::BadImage;
use super::container::Container;
use crate::backend::image::config::Config;

/// Longer than any list of layers or configuration.
const JSON_MAX: u64 = 4 << 20;

/// Lists of images in lists of images.
const NESTED_MAX: usize = 3;

/// More layers than any engine makes.
const LAYERS_MAX: usize = 512;

/// What a list says of an entry that is no image.
const UNKNOWN: &str = "unknown";

/// The SHA-256 of something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn finished(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// `sha256:` and 64 digits.
    fn parse(text: &str) -> Result<Self, BadImage> {
        let digits = text.strip_prefix("sha256:");
        let hash = digits.and_then(Self::of_digits);
        hash.ok_or_else(|| BadImage::refused(format!("is damaged: {text:?} is no SHA-256 digest")))
    }

    fn of_digits(digits: &str) -> Option<Self> {
        let mut hash = [0; 32];
        hex::decode_to_slice(digits, &mut hash).ok().map(|()| Self(hash))
    }

    /// The digits alone.
    pub(super) fn digits(&self) -> String {
        hex::encode(self.0)
    }

    /// Where an OCI layout has what this names.
    fn blob(&self) -> String {
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
pub(super) struct Layer {
    /// Its name in the container.
    pub(super) name: String,
    /// What is stored there, as far as that is said: it may be compressed.
    pub(super) stored: Option<Digest>,
    /// Its content: an archive.
    pub(super) content: Digest,
}

/// A saved image.
#[derive(Debug)]
pub(super) struct Saved {
    /// Of its configuration: the image's id.
    pub(super) id: Digest,
    /// What of that holds in a bottle.
    pub(super) config: Config,
    /// The lowest first.
    pub(super) layers: Vec<Layer>,
}

impl Saved {
    /// Reads what stands at the top of a saved image, for a machine of this architecture. No layer is read.
    ///
    /// # Errors
    /// When it is damaged, for another machine, or is not one image.
    pub(super) fn read(container: &Container, architecture: &str) -> Result<Self, BadImage> {
        let found = match container.read("manifest.json", JSON_MAX)? {
            Some(list) => of_engine(container, &list)?,
            None => of_layout(container, architecture)?,
        };
        let RawImage { architecture: own, os, config, rootfs } = json(&found.config, "its configuration")?;
        let config = Config { os, architecture: own, ..config.unwrap_or_default().into() };
        config.expect_for(architecture, "this machine").map_err(BadImage::Refused)?;
        if rootfs.diff_ids.len() != found.layers.len() {
            let (listed, named) = (found.layers.len(), rootfs.diff_ids.len());
            return Err(BadImage::refused(format!(
                "is damaged: it lists {listed} layers, and its configuration names {named}"
            )));
        }
        if found.layers.len() > LAYERS_MAX {
            return Err(BadImage::refused(format!("has more than {LAYERS_MAX} layers")));
        }
        let layers =
            found.layers.into_iter().zip(&rootfs.diff_ids).map(|((name, stored), content)| {
                Ok(Layer { name, stored, content: Digest::parse(content)? })
            });
        Ok(Self { id: Digest::of(&found.config), config, layers: layers.collect::<Result<_, BadImage>>()? })
    }
}

/// Where the parts of an image are.
struct Parts {
    config: Vec<u8>,
    layers: Vec<(String, Option<Digest>)>,
}

/// `manifest.json`: one entry for each image.
fn of_engine(container: &Container, list: &[u8]) -> Result<Parts, BadImage> {
    let mut images: Vec<EngineImage> = json(list, "manifest.json")?;
    let image = match images.len() {
        1 => images.remove(0),
        count => return Err(not_one(count)),
    };
    let config = container.read(&image.config, JSON_MAX)?.ok_or_else(|| missing(&image.config))?;
    // An engine calls it by its digest, in both of the forms that there are.
    let named = image.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
    if let Some(named) = Digest::of_digits(named) {
        expect(named, &config, &image.config)?;
    }
    let layers = image.layers.into_iter().map(|name| {
        let stored = name.strip_prefix("blobs/sha256/").and_then(Digest::of_digits);
        (name, stored)
    });
    Ok(Parts { config, layers: layers.collect() })
}

/// `index.json`: a list of images, or of lists of one for each kind of machine.
fn of_layout(container: &Container, architecture: &str) -> Result<Parts, BadImage> {
    let index = container.read("index.json", JSON_MAX)?.ok_or_else(|| missing("index.json"))?;
    let mut found = Vec::new();
    collect(container, &index, NESTED_MAX, &mut found)?;
    let own = |entry: &Entry| entry.platform.as_ref().is_none_or(|platform| platform.is_for(architecture));
    let kinds: Vec<String> =
        found.iter().filter_map(|entry| entry.platform.as_ref()).map(|p| p.architecture.clone()).collect();
    let any = !found.is_empty();
    let mut fitting: Vec<Entry> = found.into_iter().filter(own).collect();
    fitting.dedup_by(|a, b| a.digest == b.digest);
    let entry = match fitting.len() {
        1 => fitting.remove(0),
        0 if any => {
            let kinds = kinds.join(", ");
            return Err(BadImage::refused(format!("is for {kinds}, and this machine runs {architecture}")));
        }
        count => return Err(not_one(count)),
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
        // What says how an image was built, say.
        if entry.platform.as_ref().is_some_and(|platform| platform.os == UNKNOWN) {
            continue;
        }
        if !entry.is_index() {
            found.push(entry);
        } else if nested == 0 {
            return Err(BadImage::refused("is damaged: its lists of images do not end"));
        } else {
            collect(container, &blob(container, &entry.digest)?, nested - 1, found)?;
        }
    }
    Ok(())
}

/// A short file of an OCI layout, by its digest.
fn blob(container: &Container, digest: &str) -> Result<Vec<u8>, BadImage> {
    let digest = Digest::parse(digest)?;
    let name = digest.blob();
    let bytes = container.read(&name, JSON_MAX)?.ok_or_else(|| missing(&name))?;
    expect(digest, &bytes, &name)?;
    Ok(bytes)
}

fn expect(digest: Digest, bytes: &[u8], name: &str) -> Result<(), BadImage> {
    let is = Digest::of(bytes);
    if is == digest {
        return Ok(());
    }
    Err(BadImage::refused(format!("is damaged: {name:?} is {is}, and should be {digest}")))
}

pub(super) fn missing(name: &str) -> BadImage {
    BadImage::refused(format!("is not whole: {name:?} is missing"))
}

fn not_one(count: usize) -> BadImage {
    BadImage::Refused(match count {
        0 => "is empty: there is no image in it".to_owned(),
        count => format!("has {count} images in it, and a bottle is made of one"),
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
    config: Described,
    #[serde(default)]
    layers: Vec<Described>,
}

#[derive(Deserialize)]
struct Described {
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
            on_build: raw.on_build.is_some_and(|steps| !steps.is_empty()),
            ..Self::default()
        }
    }
}
