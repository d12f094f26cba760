//! Images for bottles of the linux backend: unpacked once, shared, and read-only.
//!
//! ```text
//!   folder or archive below $BOTTLE_HOME                              $BOTTLE_HOME/images/
//!     plain file system ───────────────────────────┐                    .new-<name>/   being made
//!     saved  container ─ saved ─► config, layers   ├─ tree ─► ready ──► <name>/        root, image.json
//!                                 layer (digests,  │                    .old-<name>/   being removed
//!                                 bounds) ─────────┘
//! ```
//! A saved image is named by the digest of its configuration, which contains the digests of its layers; each is verified
//! while it is unpacked. A plain file system is named by a hash of its files' metadata. Archives are untrusted: they are
//! read within bounds, and nothing is opened through a link that points outside.
//!
//! Every file belongs to the user who starts bottles and has no set-id bits; in a bottle all files belong to the agent.
//! So an agent may write everywhere, and its writes go to the bottle's upper layer: `mounted` combines both in a
//! sandbox, `owned` ignores changes of the owner, `owners` maps the owner of root's images to the bottle's user.

mod container;
pub(super) mod files;
mod layer;
pub(super) mod mounted;
pub(super) mod owned;
mod owners;
mod ready;
mod saved;
mod store;
mod tree;

pub(super) use self::store::{Image, Images};

/// Why an image is unusable, as the rest of a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadImage {
    /// It is damaged, hostile, or for another machine.
    #[error("{0}")]
    Refused(String),
    /// A file system error.
    #[error("cannot be unpacked: {0}")]
    Disk(std::io::Error),
}

impl BadImage {
    fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// A file system error at a path in the image.
    fn at(path: &std::path::Path, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        Self::Disk(std::io::Error::new(error.kind(), format!("{path:?}: {error}")))
    }
}

#[cfg(test)]
mod tests;
