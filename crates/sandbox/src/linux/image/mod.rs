//! Images for bottles of the linux backend. An image is unpacked one time, and bottles share its read-only files.
//!
//! ```text
//!   directory or archive below $BOTTLE_HOME                              $BOTTLE_HOME/images/
//!     plain file system ───────────────────────────┐                    .new-<name>/   an image being created
//!     saved  container ─ parse ─► config, layers   ├─ tree ─► ready ──► <name>/        root, image.json
//!                                 layer (digests,  │                    .old-<name>/   an image being removed
//!                                 bounds) ─────────┘
//! ```
//! The name of a saved image is the digest of its configuration, which contains the digests of its layers. Each digest
//! is verified while the image is unpacked. The name of a plain file system is a hash of its files' metadata. Archives
//! are untrusted: all sizes are limited, and no file is opened through a link that points outside.
//!
//! Every file of an image belongs to the user who starts bottles, and has no set-id bits. In a bottle, all files belong
//! to the agent, so the agent may write everywhere; its writes go to the bottle's upper layer. `mounted` combines image
//! and upper layer in a sandbox, `owned` makes changes of file owners succeed without effect, and
//! `super::owners` maps the owner of root's images to the bottle's user.

pub(super) mod files;
pub(super) mod mounted;
pub(super) mod owned;
mod ready;
mod store;

pub(crate) use self::store::{Image, Images};

#[cfg(test)]
mod tests;
