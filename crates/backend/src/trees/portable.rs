//! The files of exported and imported bottles, as layers of images.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use bottle_host::temporary;
use bottle_policy::names::{AGENT_UID, AGENT_USER, GIT_OBJECTS_DIR, Slug};

use super::image_tree::Tree;
use super::layer_tar::{LayerTar, Ownership};
use super::{OBJECTS, WORKSPACE, explain, open_directory, open_directory_at, remove_tree};
use crate::BackendError;
use crate::image::account::{ACCOUNT_LABEL, Account};
use crate::image::saved::layer::{self, Budget};
use crate::image::saved::{BadImage, Container, Saved, architecture};
use crate::portable_image::{ExportedImage, ImageConfig};

/// The name of the directory into which an image is unpacked, in the directory of a new snapshot.
pub const UNPACKED: &str = ".unpacked";

/// The home directory of an agent that uses the system directories of its machine: the parent directory and the name.
const HOME_INSIDE: (&str, &str) = ("home", AGENT_USER);

/// Adds a layer to an image. The layer contains the directory `from` of this machine, at `place` in the agent's home.
/// The agent owns the files in the layer, and the files are scanned for secrets. Blocks.
///
/// # Errors
/// When a file cannot be read, or the layer cannot be written.
pub fn add_to_home(image: &mut ExportedImage, from: &Path, place: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (from.parent(), from.file_name().and_then(|name| name.to_str())) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let owner = owner_of(&image.config);
    let home = Path::new(image.home.trim_start_matches('/')).to_owned();
    let inside = home.join(place);
    let parent = open_directory(parent)?;
    image.layers.add(true, |out| {
        let owners = |_: &Path| owner;
        let mut tar = LayerTar::new(out, &owners, &[]);
        tar.parents(&parent, name, &inside, &home)?;
        tar.tree(&parent, name, &inside, false)?;
        tar.finish()
    })
}

/// Returns the agent's user and group in an image.
fn owner_of(config: &ImageConfig) -> Ownership {
    let label = config.labels.get(ACCOUNT_LABEL).and_then(|label| Account::from_label(label));
    let (uid, gid) = match label {
        Some(account) => (account.uid, account.gid),
        None => {
            let (uid, gid) = config.user.split_once(':').unwrap_or((&config.user, &config.user));
            (uid.parse().unwrap_or(AGENT_UID), gid.parse().unwrap_or(AGENT_UID))
        }
    };
    Ownership { uid, gid, special: 0 }
}

/// Creates the error of a failed import.
pub fn not_imported(slug: &Slug, error: BadImage) -> BackendError {
    match error {
        BadImage::Refused(why) => BackendError::failed(format!("cannot import {slug}: its image {why}"))
            .with_hint("get the archive again from its source"),
        BadImage::Disk(error) => explain(format!("cannot import {slug}"), error),
    }
}

/// Whether a stored or unpacked tree contains shared git objects.
pub fn has_objects(directory: &OwnedFd) -> bool {
    open_directory_at(directory, OBJECTS).is_ok()
}

/// Adds the shared git objects of a stored or unpacked tree, if the tree contains shared objects.
pub fn objects_tree(tar: &mut LayerTar<'_>, directory: &OwnedFd) -> io::Result<()> {
    if !has_objects(directory) {
        return Ok(());
    }
    tar.tree(directory, OBJECTS, Path::new(GIT_OBJECTS_DIR.trim_start_matches('/')), false)
}

/// Unpacks all layers of an image into a new directory, and verifies their digests. Returns the size of the files in
/// bytes.
///
/// # Errors
/// [`BadImage`]. The directory is then incomplete.
pub fn unpack(layout: &Path, directory: &Path) -> Result<u64, BadImage> {
    fs::DirBuilder::new().mode(0o755).create(directory).map_err(BadImage::Disk)?;
    let container = Container::directory(layout)?;
    let saved = Saved::read(&container, architecture())?;
    let (mut tree, mut budget) = (Tree::new(directory)?, Budget::full());
    for one in &saved.layers {
        layer::read(&container, one, &mut budget, |content| tree.put(&one.name, content))?;
    }
    let bytes = tree.bytes();
    tree.settle()?;
    Ok(bytes)
}

/// A home and a workspace that were unpacked from an image into a temporary directory.
pub struct Unpacked {
    directory: tempfile::TempDir,
}

impl Unpacked {
    /// Unpacks the image of an archive's OCI layout beside the layout. Blocks.
    ///
    /// # Errors
    /// The errors of [`unpack`].
    pub fn of(layout: &Path) -> Result<Self, BadImage> {
        let directory =
            temporary::directory_in(layout.parent().unwrap_or(layout), "").map_err(BadImage::Disk)?;
        let unpacked = Self { directory };
        unpack(layout, &unpacked.directory.path().join(UNPACKED))?;
        Ok(unpacked)
    }

    /// Writes the files as a layer of an image. `home` is the path of the agent's home in the image. `owner` (user id,
    /// group id) owns the files.
    ///
    /// # Errors
    /// When a file cannot be read or the output cannot be written.
    pub fn write(&self, out: &mut dyn Write, home: &str, owner: (u32, u32)) -> io::Result<()> {
        let unpacked = open_directory(&self.directory.path().join(UNPACKED))?;
        let owners = |_: &Path| Ownership { uid: owner.0, gid: owner.1, special: 0 };
        let mut tar = LayerTar::new(out, &owners, &[]);
        let (parent, name) = HOME_INSIDE;
        let parent = open_directory_at(&unpacked, parent)?;
        tar.tree(&parent, name, Path::new(home.trim_start_matches('/')), false)?;
        tar.tree(&unpacked, WORKSPACE, Path::new(WORKSPACE), false)?;
        objects_tree(&mut tar, &unpacked)?;
        tar.finish()
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // Dropping the temporary directory does not remove directories that the agent made inaccessible.
        let _ = remove_tree(&self.directory.path().join(UNPACKED));
    }
}
