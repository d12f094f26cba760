//! Opens the files of an image for a sandbox.

use super::owners;
use crate::backend::linux::mounts::{READ_ONLY, Tree, WRITABLE};
use crate::backend::linux::spec::ImageSpec;
use crate::backend::linux::sys::map_owners;
use crate::backend::local::failure::Step;
use crate::backend::local::spawn_ipc::{SetupFailure, SetupPart};

/// The step that fails where overlays are unsupported.
pub(super) const OVERLAY: &str = "mount the bottle's files over its image";

/// The opened files of an image.
pub(in crate::backend::linux) struct Files {
    /// The image's read-only files; `None` when the bottle has a copy.
    pub(super) lower: Option<Tree>,
    /// The bottle's layers.
    pub(super) own: Tree,
}

impl Files {
    /// Opens them. `outside` is the outside user of a bottle that root starts.
    ///
    /// # Errors
    /// [`SetupFailure`] naming the path.
    pub(in crate::backend::linux) fn open(
        image: &ImageSpec,
        outside: Option<u32>,
    ) -> Result<Self, SetupFailure> {
        let lower = image.root.as_deref().map(|root| {
            let tree = Tree::clone_host(root, READ_ONLY).step_at("open the image", root)?;
            if let Some(id) = outside {
                owners::root_as(id)
                    .and_then(|users| map_owners(tree.root(), users))
                    .step_of(SetupPart::Overlay, OVERLAY)?;
            }
            Ok(tree)
        });
        let own = Tree::clone_host(&image.layers, WRITABLE).step_at("open", &image.layers)?;
        Ok(Self { lower: lower.transpose()?, own })
    }
}
