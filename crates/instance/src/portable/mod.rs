//! The portable archive of a bottle: one tar file with an image of the bottle's files, its manifest and its metadata.
//!
//! ```text
//!   bottle/bottle.json    what the bottle was, and the version of the format: [`Metadata`]
//!   bottle/manifest.yml   the resolved manifest of its last start, for the importer to compare
//!   oci-layout, index.json, blobs/sha256/<digest>     an OCI layout with one image: the bottle's files as layers
//!   bottle/digests        the SHA-256 digest of each entry above
//!   bottle/signature      optional: a signature of the digests
//! ```
//! ```text
//!   backend ─► portable_image ─► writer ─► FILE ─► reader ─► blobs ─► backend
//!                 └► scan                             └► every digest is verified
//! ```
//! The archive contains no secret, no certificate authority and no canary, except findings that the exporter accepted:
//! the backend's `portable_image` scans the bottle's own layers while it writes them. An archive is untrusted input.
//! The reader limits the number, the names and the sizes of entries, and writes only to a private staging directory,
//! which `staging` creates and a cleanup finds. If an archive is damaged, the error names the byte position and the
//! entry. `source` counts the bytes.

mod bad_archive;
mod digests;
mod entry_names;
mod metadata;
mod reader;
mod signature;
mod source;
mod staging;
mod writer;

pub use self::bad_archive::BadArchive;
pub use self::metadata::{FORMAT, Metadata};
pub use self::reader::{Received, receive};
pub use self::signature::{BadKey, PublicKey, Signature, SigningKey};
pub use self::staging::Staging;
pub use self::writer::Writer;

#[cfg(test)]
mod mutations;
#[cfg(test)]
mod tests;
