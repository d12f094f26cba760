//! Opens the files of an image, so that a sandbox can mount them.

use crate::linux::mounts::{READ_ONLY, Tree, WRITABLE};
use crate::linux::owners::{OnDisk, owner_as};
use crate::linux::spec::ImageSpec;
use crate::linux::sys::map_owners;
use crate::local::failure::Step;
use crate::local::spawn_ipc::{SetupFailure, SetupPart};

/// The name of the setup step that fails on machines without overlay support.
pub(super) const OVERLAY: &str = "mount the bottle's files over its image";

/// The open files of an image.
pub(in crate::linux) struct Files {
    /// The read-only files of the image. `None` if the bottle has its own copy of the image.
    pub(super) lower: Option<Tree>,
    /// The directory with the bottle's layers.
    pub(super) own: Tree,
}

impl Files {
    /// Opens the image and the layers. `outside` is the host user id of a bottle that root starts.
    ///
    /// # Errors
    /// [`SetupFailure`] that names the path.
    pub(in crate::linux) fn open(image: &ImageSpec, outside: Option<u32>) -> Result<Self, SetupFailure> {
        let lower = image.root.as_deref().map(|root| {
            let tree = Tree::clone_host(root, READ_ONLY).step_at("open the image", root)?;
            if let Some(id) = outside {
                owner_as(OnDisk::ROOT, id)
                    .and_then(|users| map_owners(tree.root(), users))
                    .step_of(SetupPart::Overlay, OVERLAY)?;
            }
            Ok(tree)
        });
        let own = Tree::clone_host(&image.layers, WRITABLE).step_at("open", &image.layers)?;
        Ok(Self { lower: lower.transpose()?, own })
    }
}
