//! Images that bottles of this backend work in: unpacked once, shared by all of them, never written to.
//!
//! ```text
//!   folder or archive below $BOTTLE_HOME                              $BOTTLE_HOME/images/
//!     plain file system ───────────────────────────┐                    .new-<name>/   being made
//!     saved  container ─ saved ─► config, layers   ├─ tree ─► ready ──► <name>/        root, image.json
//!                                 layer (digests,  │                    .old-<name>/   being removed
//!                                 bounds) ─────────┘
//! ```
//! A saved image is named by the digest of its configuration, which names the digests of its layers, and each is
//! checked while it is unpacked. A plain file system is named by what the system says of its files. Archives are
//! anybody's: they are read within bounds, and nothing of one is ever opened through a link that leads out.
//!
//! Every file belongs to whoever starts bottles and lends no rights; in a bottle all of them are the agent's. So
//! an agent may write everywhere, and what it writes goes to a layer of its own: `mounted` puts the two together
//! in a sandbox, `owned` keeps their one owner, `owners` shows the files of root's images as the bottle's.

mod container;
mod layer;
pub(super) mod mounted;
pub(super) mod owned;
mod owners;
mod ready;
mod saved;
mod store;
mod tree;

pub(super) use self::store::{Image, Images};

/// Why no bottle can be made of an image, as the rest of a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadImage {
    /// It is damaged or hostile, or not for this machine.
    #[error("{0}")]
    Refused(String),
    /// It cannot be read or written here.
    #[error("cannot be unpacked: {0}")]
    Disk(std::io::Error),
}

impl BadImage {
    fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// The disk, at a place in the image.
    fn at(path: &std::path::Path, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        Self::Disk(std::io::Error::new(error.kind(), format!("{path:?}: {error}")))
    }
}

#[cfg(test)]
mod tests;
