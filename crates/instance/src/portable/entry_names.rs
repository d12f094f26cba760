//! The names of an archive's entries.

/// The name of the entry with the metadata.
pub(super) const METADATA: &str = "bottle/bottle.json";
/// The name of the entry with the resolved manifest.
pub(super) const MANIFEST: &str = "bottle/manifest.yml";
/// The name of the entry with the digests.
pub(super) const DIGESTS: &str = "bottle/digests";
/// The name of the entry with the signature.
pub(super) const SIGNATURE: &str = "bottle/signature";
/// The name of the file that marks an OCI layout.
pub(super) const LAYOUT: &str = "oci-layout";
/// The name of the index of an OCI layout.
pub(super) const INDEX: &str = "index.json";
