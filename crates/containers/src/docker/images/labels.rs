//! The labels of images that this program creates.

/// The label with the kind of image, on every image that this program creates.
pub(super) const IMAGE_LABEL: &str = "bottle.image";
/// The label that contains the hash of the `$BOTTLE_HOME` for which an image was built.
pub(super) const HOME_LABEL: &str = "bottle.built-by";
/// The label that names the source of an agent's image, for example a provider or a Dockerfile.
pub(super) const SOURCE_LABEL: &str = "bottle.source";
/// The value of the kind label for a sidecars' image.
pub(super) const SIDECARS: &str = "sidecars";
/// The value of the kind label for a build stage.
pub(super) const STAGE: &str = "stage";
/// The value of the kind label for an image that is built but not yet prepared for the agent.
pub(super) const BUILT: &str = "built";
/// The value of the kind label for the image with the agents' tools.
pub(super) const TOOLS: &str = "tools";
/// The value of the kind label for an agent's image.
pub(super) const AGENT: &str = "agent";

/// Returns the labels that mark an image of this kind and of this `$BOTTLE_HOME`, as the arguments of a `LABEL`
/// instruction.
pub(super) fn mark(home: &str, kind: &str) -> String {
    format!("{IMAGE_LABEL}={kind} {HOME_LABEL}={home}")
}
