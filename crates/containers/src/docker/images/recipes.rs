//! The recipes of the images that `bottle` builds from its bundled Dockerfiles, and the names of images in messages.
//! The module has no side effects.

use std::collections::BTreeMap;
use std::path::Path;

use bottle_backend::image::hash::Hash;
use bottle_backend::static_program::Program;
use bottle_manifest::agent_provider::Template;
use bytes::Bytes;

use super::image_facts::Facts;
use super::recipe::Recipe;

/// The repository name of agent images.
pub(super) const AGENT: &str = "bottle-agent";
/// The repository name of the sidecars' image.
pub(super) const SIDECARS: &str = "bottle-sidecars";
/// The repository name of the tools' image.
pub(super) const TOOLS: &str = "bottle-tools";
const TOOLS_DOCKERFILE: &str = include_str!("../../../../../Dockerfile.tools");
const AGENT_DOCKERFILE: &str = include_str!("../../../../../Dockerfile.agent");
const SIDECARS_DOCKERFILE: &str = include_str!("../../../../../Dockerfile.sidecars");
/// The lock files from which the bundled Dockerfiles install packages, by their paths in the build context.
const PINNED_FILES: [(&str, &str); 7] = [
    ("images/claude/package.json", include_str!("../../../../../images/claude/package.json")),
    ("images/claude/package-lock.json", include_str!("../../../../../images/claude/package-lock.json")),
    ("images/codex/package.json", include_str!("../../../../../images/codex/package.json")),
    ("images/codex/package-lock.json", include_str!("../../../../../images/codex/package-lock.json")),
    ("images/node/requirements.txt", include_str!("../../../../../images/node/requirements.txt")),
    ("images/pi/package.json", include_str!("../../../../../images/pi/package.json")),
    ("images/pi/package-lock.json", include_str!("../../../../../images/pi/package-lock.json")),
];
/// The hint if the build of a bundled Dockerfile fails.
pub(super) const BUILD_HINT: &str = "it is built from public packages: see whether this machine's containers reach Debian's, Python's and npm's registries";
/// The name of the tools' image in messages.
pub(super) const TOOLS_NAME: &str = "the image with the agents' tools";
/// The name of the sidecars' image in messages.
pub(super) const SIDECARS_NAME: &str = "the image for the sidecars";

/// Returns the recipe of `Dockerfile.tools` for this base image.
pub(super) fn tools(base: &str) -> Recipe {
    Recipe {
        dockerfile: TOOLS_DOCKERFILE.to_owned(),
        args: named([("BASE", base)]),
        files: pinned("images/node/"),
        with_roots: true,
        ..Recipe::default()
    }
}

/// Returns the recipe of `Dockerfile.agent` for this provider and this image of the tools.
pub(super) fn provider(template: Template, tools: &str) -> Recipe {
    let provider = template.to_string();
    let files = match template {
        Template::Command => Vec::new(),
        _ => pinned(&format!("images/{provider}/")),
    };
    let args = named([("TOOLS", tools), ("PROVIDER", &provider)]);
    Recipe { dockerfile: AGENT_DOCKERFILE.to_owned(), args, files, with_roots: true, ..Recipe::default() }
}

/// Returns the recipe of the sidecars' image for this program and base image. The caller adds the program as an extra
/// file.
pub(super) fn sidecars(program: &Program, base: &str) -> Recipe {
    Recipe {
        dockerfile: SIDECARS_DOCKERFILE.to_owned(),
        args: named([("BASE", base), ("PROGRAM", &program.id)]),
        ..Recipe::default()
    }
}

/// Returns the hash that becomes the tag of an existing image after its preparation.
pub(super) fn existing_image_hash(facts: &Facts) -> String {
    let mut hash = Hash::new("existing image");
    hash.add(facts.id.as_bytes());
    hash.finish()
}

pub(super) fn provider_image(template: Template) -> String {
    format!("the image for {template}")
}

pub(super) fn dockerfile_image(path: &Path) -> String {
    format!("the image of the Dockerfile {}", path.display())
}

pub(super) fn reference_image(reference: &str) -> String {
    format!("the image {reference}")
}

fn pinned(directory: &str) -> Vec<(&'static str, u32, Bytes)> {
    let files = PINNED_FILES.iter().filter(|(path, _)| path.starts_with(directory));
    files.map(|(path, text)| (*path, 0o644, Bytes::from_static(text.as_bytes()))).collect()
}

fn named<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}
