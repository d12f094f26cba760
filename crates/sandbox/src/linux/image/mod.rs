//! Images for bottles of the linux backend. An image is unpacked once, and all its bottles share the read-only files.
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
//! are untrusted: all sizes are limited, and no file is opened through a link that points outside the image.
//!
//! Every file of an image belongs to the user who starts bottles, and has no set-id bits. In a bottle, all files belong
//! to the agent, so the agent may write everywhere. The agent's writes go to the bottle's upper layer. `mounted`
//! combines the image and the upper layer in a sandbox. `owned` makes system calls that change a file's owner succeed
//! without effect. If root unpacked the image, `super::owners` maps the owner of the image's files to the bottle's
//! user.

pub(super) mod files;
pub(super) mod mounted;
pub(super) mod owned;
mod ready;
mod store;

pub(crate) use self::store::{Image, Images};

#[cfg(test)]
mod tests;
