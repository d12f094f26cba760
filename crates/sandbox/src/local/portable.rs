//! Exports snapshots of a bottle's layers as images, and imports images as snapshots.
//!
//! ```text
//!   kind of layers    layers of the image                          from an image
//!   home              one: home and workspace                      home, workspace  (only such an image)
//!   upper             two: the base image; changes and workspace   upper, workspace (the base image is stored)
//!   copy              one: everything                              -
//! ```
//! The git objects that the layers share with a repository of the host become ordinary files of the image, so that the
//! image is complete.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bottle_backend::image::account::{ACCOUNT_LABEL, Account};
use bottle_backend::image::saved::BadImage;
use bottle_backend::portable_image::{Export, ExportedImage, ImageConfig, LayerStore, RootKind};
use bottle_backend::trees::copy::Copier;
use bottle_backend::trees::git_objects::{self, Reader};
use bottle_backend::trees::layer_tar::{LayerTar, Ownership};
use bottle_backend::trees::portable::{UNPACKED, has_objects, not_imported, objects_tree, unpack};
use bottle_backend::trees::{explain, open_directory, remove_tree};
use bottle_backend::{BackendError, ProgressSink, Snapshot};
use bottle_policy::names::{AGENT_UID, AGENT_USER, GIT_OBJECTS_DIR, Slug, WORKSPACE as WORKSPACE_INSIDE};

use super::Scope;
use super::layer_snapshots::{add, stored};
use super::layers::{COPY, HOME, Kind, OBJECTS, UPPER, WORKSPACE};

/// Paths that an export skips in the system files of a bottle: the files in `/etc` that are generated for each launch,
/// and the workspace, which is exported separately.
const OF_ONE_LAUNCH: [&str; 5] =
    ["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/machine-id", WORKSPACE];

/// The image on which a bottle's files are based.
pub(crate) struct Base {
    /// The directory of the image's files.
    pub(crate) root: PathBuf,
    /// The agent's user id.
    pub(crate) uid: u32,
    /// The agent's group id.
    pub(crate) gid: u32,
    /// The agent's home, as an absolute path.
    pub(crate) home: String,
    /// The agent's account. `None` if the bottle is not based on an image.
    pub(crate) account: Option<Account>,
    /// The environment variables, as `NAME=value`.
    pub(crate) env: Vec<String>,
    /// The owners of the image's files, except files that root owns. `None` if the owners are not known.
    pub(crate) owners: Option<BTreeMap<PathBuf, Ownership>>,
}

impl Base {
    /// The base of a bottle that uses the host's system files.
    fn none() -> Self {
        let home = format!("/home/{AGENT_USER}");
        Self {
            root: PathBuf::new(),
            uid: AGENT_UID,
            gid: AGENT_UID,
            home,
            account: None,
            env: Vec::new(),
            owners: None,
        }
    }

    /// The owner of a file of the image.
    fn owner(&self, path: &Path) -> Ownership {
        match &self.owners {
            Some(owners) => owners.get(path).copied().unwrap_or(Ownership::ROOT),
            None => self.owner_of_place(path),
        }
    }

    /// The owner of a file of the bottle. A file that replaces a file of the image keeps the image's owner. It does not
    /// keep the set-id bits, because the agent chose its content.
    fn owner_of_change(&self, path: &Path) -> Ownership {
        match self.owners.as_ref().and_then(|owners| owners.get(path)) {
            Some(owner) => Ownership { special: owner.special & 0o1000, ..*owner },
            None => self.owner_of_place(path),
        }
    }

    fn owner_of_place(&self, path: &Path) -> Ownership {
        let home = self.home.trim_start_matches('/');
        match path.starts_with(home) || path.starts_with(WORKSPACE) {
            true => Ownership { uid: self.uid, gid: self.gid, special: 0 },
            false => Ownership::ROOT,
        }
    }
}

impl Scope {
    /// Implements [`bottle_backend::Snapshots::export`]. `base` finds an image by its name.
    pub(crate) async fn export(
        &self,
        export: Export<'_>,
        base: impl FnOnce(&str) -> io::Result<Option<Base>> + Send + 'static,
    ) -> Result<ExportedImage, BackendError> {
        let Export { snapshot, layers, .. } = export;
        let snapshot = snapshot.clone();
        self.run_blocking(move |scope| {
            let failed = |error: io::Error| {
                let kind = error.kind();
                if kind == io::ErrorKind::NotFound && stored(scope, &snapshot).is_err() {
                    return BackendError::failed(format!("the snapshot of {} was removed", snapshot.slug))
                        .with_hint("`bottle snapshots` shows all snapshots");
                }
                let error = explain(format!("cannot export the files of {}", snapshot.slug), error);
                match kind {
                    io::ErrorKind::InvalidFilename => {
                        error.with_hint(format!("rename or remove it with `bottle exec {}`", snapshot.slug))
                    }
                    _ => error,
                }
            };
            write_layers(scope, &snapshot, layers, base).map_err(failed)
        })
        .await
    }

    /// Makes a snapshot of a new bottle from an image that contains only a home and a workspace. If the new bottle is
    /// based on an image, `base` is the name of the base image and the path of the agent's home in it.
    ///
    /// # Errors
    /// [`BackendError`] when the image is damaged or hostile, or the snapshot cannot be written.
    pub(crate) async fn import_home(
        &self,
        slug: &Slug,
        layout: &Path,
        base: Option<(String, String)>,
    ) -> Result<Snapshot, BackendError> {
        let (owned, layout) = (slug.clone(), layout.to_owned());
        let (image, home) = base.unzip();
        self.run_blocking(move |scope| {
            let home_inside = Path::new(scope.home_inside);
            let made =
                add(scope, &owned, image, |new| unpack_home(new, &layout, home_inside, home.as_deref()));
            made.map_err(|error| not_imported(&owned, error))
        })
        .await
    }

    /// Makes a snapshot of a new bottle from a stored image that contains the bottle's files.
    ///
    /// # Errors
    /// [`BackendError`] when the snapshot cannot be written.
    pub(crate) async fn import_on_image(
        &self,
        slug: &Slug,
        image: &str,
        root: &Path,
        progress: ProgressSink,
    ) -> Result<Snapshot, BackendError> {
        let (owned, image, root) = (slug.clone(), image.to_owned(), root.to_owned());
        self.run_blocking(move |scope| {
            let made = add(scope, &owned, Some(image), |new| {
                fs::DirBuilder::new().mode(0o755).create(new.join(UPPER)).map_err(BadImage::Disk)?;
                let mut copier = Copier::restoring(None, &progress);
                let (from, to) = (open_directory(&root)?, open_directory(new)?);
                copier.tree(&from, &to, None, WORKSPACE)?;
                Ok::<_, BadImage>(copier.finish().size)
            });
            made.map_err(|error| not_imported(&owned, error))
        })
        .await
    }
}

fn write_layers(
    scope: &Scope,
    snapshot: &Snapshot,
    mut layers: LayerStore,
    base: impl FnOnce(&str) -> io::Result<Option<Base>>,
) -> io::Result<ExportedImage> {
    let (directory, kind, image) = stored(scope, snapshot)?;
    let found = image.as_deref().map(base).transpose()?.flatten();
    let base = match (kind, found) {
        (Kind::Home, _) => Base::none(),
        (_, Some(base)) => base,
        (_, None) => return Err(io::Error::other("the image that they are based on was removed")),
    };
    let workspace = Path::new(WORKSPACE);
    match kind {
        Kind::Home => layers.add(true, |out| {
            let owners = |path: &Path| {
                if path.starts_with(scope.home_inside) || path.starts_with(WORKSPACE) {
                    Ownership { uid: base.uid, gid: base.gid, special: 0 }
                } else {
                    Ownership::ROOT
                }
            };
            let mut tar = LayerTar::new(out, &owners, &[]);
            tar.tree(&directory, HOME, Path::new(scope.home_inside), false)?;
            tar.tree(&directory, WORKSPACE, workspace, false)?;
            objects_tree(&mut tar, &directory)?;
            tar.finish()
        })?,
        Kind::Upper => {
            layers.add(false, |out| base_layer(out, &base))?;
            layers.add(true, |out| own_layer(out, &base, &directory, UPPER, true))?;
        }
        Kind::Copy => layers.add(true, |out| own_layer(out, &base, &directory, COPY, false))?,
    }
    let root = if kind == Kind::Home { RootKind::Home } else { RootKind::Complete };
    let account = base.account.as_ref().map(|account| (ACCOUNT_LABEL.to_owned(), account.label()));
    let config = ImageConfig {
        user: format!("{}:{}", base.uid, base.gid),
        env: base.env,
        labels: account.into_iter().collect(),
    };
    Ok(ExportedImage { layers, config, root, home: base.home })
}

fn base_layer(out: &mut dyn Write, base: &Base) -> io::Result<()> {
    let parent = open_directory(base.root.parent().ok_or(io::ErrorKind::NotFound)?)?;
    let name = base.root.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    let owners = |path: &Path| base.owner(path);
    let mut tar = LayerTar::new(out, &owners, &[WORKSPACE]);
    tar.tree(&parent, name, Path::new(""), false)?;
    tar.finish()
}

fn own_layer(
    out: &mut dyn Write,
    base: &Base,
    directory: &OwnedFd,
    tree: &str,
    overlay: bool,
) -> io::Result<()> {
    let owners = |path: &Path| base.owner_of_change(path);
    let shares_objects = has_objects(directory);
    let skipped = [&OF_ONE_LAUNCH[..], if shares_objects { &[OBJECTS] } else { &[] }].concat();
    let mut tar = LayerTar::new(out, &owners, &skipped);
    tar.tree(directory, tree, Path::new(""), overlay)?;
    tar.tree(directory, WORKSPACE, Path::new(WORKSPACE), false)?;
    objects_tree(&mut tar, directory)?;
    tar.finish()
}

/// Unpacks an image into the directory of a new snapshot. Returns the size of the files in bytes. If `home` is set, it
/// is the path of the agent's home in the base image, and the unpacked home becomes a change to the base image.
fn unpack_home(new: &Path, layout: &Path, home_inside: &Path, home: Option<&str>) -> Result<u64, BadImage> {
    let unpacked = new.join(UNPACKED);
    let bytes = unpack(layout, &unpacked)?;
    let target = match home {
        None => PathBuf::from(HOME),
        Some(home) => Path::new(UPPER).join(home.trim_start_matches('/')),
    };
    if home.is_some() {
        fs::DirBuilder::new().mode(0o755).create(new.join(UPPER)).map_err(BadImage::Disk)?;
    }
    place(&unpacked, home_inside, &new.join(target))?;
    place(&unpacked, Path::new(WORKSPACE_INSIDE.trim_start_matches('/')), &new.join(WORKSPACE))?;
    let objects = unpacked.join(GIT_OBJECTS_DIR.trim_start_matches('/'));
    if objects.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        git_objects::share_all(&objects, &new.join(OBJECTS), Reader::Starter).map_err(BadImage::Disk)?;
    }
    remove_tree(&unpacked).map_err(BadImage::Disk)?;
    Ok(bytes)
}

/// Moves the directory `inside` of an unpacked image to `target`. If the image has no such directory, creates an empty
/// directory.
fn place(unpacked: &Path, inside: &Path, target: &Path) -> Result<(), BadImage> {
    let from = unpacked.join(inside);
    if let Some(parent) = target.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(BadImage::Disk)?;
    }
    // No part of the path may be a link.
    for part in inside.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        match unpacked.join(part).symlink_metadata() {
            Ok(found) if !found.is_dir() => {
                return Err(BadImage::refused(format!("must have a directory at {part:?}")));
            }
            _ => {}
        }
    }
    let found = match from.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fs::DirBuilder::new().mode(0o700).create(target).map_err(BadImage::Disk);
        }
        found => found.map_err(BadImage::Disk)?,
    };
    // Moving a directory changes the directory's entry `..`, so the directory itself must be writable.
    let mode = found.mode() & 0o7777;
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set(&from, mode | 0o700).map_err(BadImage::Disk)?;
    fs::rename(&from, target).map_err(BadImage::Disk)?;
    set(target, mode).map_err(BadImage::Disk)
}
