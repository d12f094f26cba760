//! Stores snapshots as images.
//!
//! ```text
//!   make:    container ─ exec: archive of its files ─► a layer ─► check ─► `image load`
//!   export:  `image save` ─► layers as they are         import: layers ─► check ─► `image load`
//! ```
//! The backend does not use `container export`, because that command writes sparse files wrongly. Instead, the program
//! `bottle` in the container archives the files while the other processes are stopped. To archive a kept bottle, the
//! backend starts the bottle's container without the agent. A snapshot is named
//! `localhost/bottle-snapshot:<home>-<slug>-<microseconds>`. A snapshot contains all files of the bottle, including the
//! files of its first image.

use std::collections::BTreeMap;
use std::io;

use bottle_backend::image::account::{ACCOUNT_LABEL, Account};
use bottle_backend::image::saved::layer::{self, Budget};
use bottle_backend::image::saved::{BadImage, Container as SavedContainer, Saved, architecture};
use bottle_backend::portable_image::{Export, ExportedImage, ImageConfig, Import, Imported, RootKind};
use bottle_backend::{BackendError, Copied, MadeSnapshot, NewSnapshot, ProgressSink, Snapshot, run_blocking};
use bottle_plan::ImageSource;
use bottle_policy::names::{Name, Slug};
use jiff::Timestamp;

use super::AppleBackend;
use super::bottle::env_of;
use super::images::{Images, account_of};
use super::inside::{ARCHIVE_FLAG, PROGRAM};
use super::layout::{Layout, directories_layer};
use super::output::{Container, Image};
use crate::docker::commit::{
    KEPT_HOME, KEPT_SLUG, SNAPSHOT_HOME, SNAPSHOT_MADE_AT, SNAPSHOT_NAME, SNAPSHOT_PARENT,
    SNAPSHOT_REPOSITORY, SNAPSHOT_SLUG,
};
use crate::docker::images::LEFT_OUT_LABEL;
use crate::docker::portable::add_layers;

/// The repository of images of kept files.
const KEPT: &str = "localhost/bottle-kept";

/// The repository of images that were imported together with a bottle.
const IMPORTED: &str = "localhost/bottle-imported";

/// The name of the temporary file with an image that `container` saved.
const SAVED: &str = "saved.tar";

impl AppleBackend {
    /// Returns the reference of the image of a bottle's kept files.
    pub(super) fn kept_reference(&self, slug: &Slug) -> String {
        format!("{KEPT}:{}-{slug}", self.names.home())
    }

    /// Makes an image of the kept files, and returns its reference. Cleanup finds the image by its label.
    pub(super) async fn image_of_kept(&self, slug: &Slug) -> Result<String, BackendError> {
        let container = self.find_kept(slug, "open").await?;
        let reference = self.kept_reference(slug);
        let labels = [(KEPT_HOME, self.names.home().to_owned()), (KEPT_SLUG, slug.to_string())];
        let doing = format!("copy the kept files of {slug}");
        self.image_of_files(&doing, slug, &container, &reference, &labels, ProgressSink::discard()).await?;
        Ok(reference)
    }

    /// Makes an image of the files of a container.
    async fn image_of_files(
        &self,
        doing: &str,
        slug: &Slug,
        container: &Container,
        reference: &str,
        labels: &[(&str, String)],
        progress: ProgressSink,
    ) -> Result<(), BackendError> {
        let failed = |error: io::Error| BackendError::failed(format!("cannot {doing}")).because(error);
        let mut layout = Layout::new(&self.images.directory(), progress).map_err(failed)?;
        let layout = self
            .visit(slug, container, async |id| {
                let (mut files, out) = io::pipe().map_err(failed)?;
                let adding = run_blocking(move || {
                    layout.layers.add(false, |layer| io::copy(&mut files, layer).map(drop))?;
                    layout.layers.add(false, |layer| layer.write_all(&directories_layer()?))?;
                    Ok::<_, io::Error>(layout)
                });
                let archiving = self.cli.exec(doing, id, &[PROGRAM, ARCHIVE_FLAG], out);
                let (archived, added) = tokio::join!(archiving, adding);
                archived?;
                added?.map_err(failed)
            })
            .await?;
        let account = container.labels.get(ACCOUNT_LABEL).cloned().unwrap_or_default();
        let user =
            Account::from_label(&account).map_or_else(String::new, |one| format!("{}:{}", one.uid, one.gid));
        let mut own: BTreeMap<String, String> = [(ACCOUNT_LABEL.to_owned(), account)].into();
        own.extend(labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self.load(doing, layout, ImageConfig { user, env: env_of(container), labels: own }, &[reference])
            .await
    }

    /// Checks an image, and loads it under all these references.
    async fn load(
        &self,
        doing: &str,
        layout: Layout,
        config: ImageConfig,
        references: &[&str],
    ) -> Result<(), BackendError> {
        let references: Vec<String> = references.iter().map(|one| (*one).to_owned()).collect();
        let packed = run_blocking(move || {
            let references: Vec<&str> = references.iter().map(String::as_str).collect();
            layout.pack(config, &references)
        });
        let (_directory, archive) = packed.await?.map_err(|error| bad_image(doing, error))?;
        self.cli.load(&archive).await
    }

    /// Implements [`bottle_backend::Snapshots::make_snapshot`].
    pub(super) async fn store_snapshot(
        &self,
        slug: &Slug,
        new: &NewSnapshot,
        progress: ProgressSink,
    ) -> Result<MadeSnapshot, BackendError> {
        let doing = format!("make a snapshot of {slug}");
        let container = self.find_kept(slug, "make a snapshot of").await?;
        let (reference, mut labels) = self.new_snapshot(slug);
        for (label, value) in [
            (SNAPSHOT_NAME, new.name.as_ref().map_or("", Name::as_str)),
            (SNAPSHOT_PARENT, new.parent.as_deref().unwrap_or_default()),
        ] {
            labels.push((label, value.to_owned()));
        }
        self.image_of_files(&doing, slug, &container, &reference, &labels, progress.clone()).await?;
        let snapshot = self.find_snapshot(&doing, &reference).await?;
        progress.report(Copied { files: 0, bytes: snapshot.bytes.unwrap_or_default() });
        Ok(MadeSnapshot { snapshot, has_workspace: true, notes: Vec::new() })
    }

    /// Returns the reference of a new snapshot, and the labels of its image.
    fn new_snapshot(&self, slug: &Slug) -> (String, Vec<(&'static str, String)>) {
        let (made_at, home) = (Timestamp::now(), self.names.home());
        let reference = format!("localhost/{SNAPSHOT_REPOSITORY}:{home}-{slug}-{}", made_at.as_microsecond());
        let labels = vec![
            (SNAPSHOT_HOME, home.to_owned()),
            (SNAPSHOT_SLUG, slug.to_string()),
            (SNAPSHOT_MADE_AT, made_at.to_string()),
        ];
        (reference, labels)
    }

    async fn find_snapshot(&self, doing: &str, reference: &str) -> Result<Snapshot, BackendError> {
        let image = self.images.find(reference).await?;
        image.and_then(|image| self.snapshot_from(image)).ok_or_else(|| {
            BackendError::failed(format!("cannot {doing}: the new image {reference} was removed"))
                .with_hint("another program removed it with `container image delete`: try again")
        })
    }

    /// Returns the snapshot that this image stores. `None` if the image is not a snapshot of this `$BOTTLE_HOME`.
    fn snapshot_from(&self, image: Image) -> Option<Snapshot> {
        let label = |name: &str| image.labels.get(name).filter(|value| !value.is_empty());
        let snapshot = Snapshot {
            slug: label(SNAPSHOT_SLUG)?.parse().ok()?,
            made_at: label(SNAPSHOT_MADE_AT)?.parse().ok()?,
            bytes: Some(image.bytes),
            name: label(SNAPSHOT_NAME).and_then(|name| name.parse().ok()),
            parent: label(SNAPSHOT_PARENT).cloned(),
            reference: image.reference.clone(),
        };
        let ours = label(SNAPSHOT_HOME).is_some_and(|home| home == self.names.home());
        (ours && self.is_ours(&snapshot)).then_some(snapshot)
    }

    /// Whether the snapshot's reference has the form that this `$BOTTLE_HOME` gives to snapshots of that slug. The
    /// backend never passes other references to a call.
    fn is_ours(&self, snapshot: &Snapshot) -> bool {
        let start = format!("localhost/{SNAPSHOT_REPOSITORY}:{}-{}-", self.names.home(), snapshot.slug);
        snapshot.reference.strip_prefix(&start).is_some_and(|moment| {
            !moment.is_empty() && moment.len() <= 20 && moment.bytes().all(|byte| byte.is_ascii_digit())
        })
    }

    /// Implements [`bottle_backend::Snapshots::snapshots`].
    pub(super) async fn list_snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        if !self.images.directory().is_dir() {
            return Ok(Vec::new());
        }
        let images = self.cli.images().await?;
        let mut snapshots: Vec<Snapshot> =
            images.into_iter().filter_map(|image| self.snapshot_from(image)).collect();
        snapshots.sort_by_key(|snapshot| snapshot.made_at);
        Ok(snapshots)
    }

    /// Implements [`bottle_backend::Snapshots::remove_snapshot`].
    pub(super) async fn delete_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        if !self.is_ours(snapshot) {
            return Err(BackendError::failed(format!(
                "{} is not a snapshot of this home",
                snapshot.reference
            )));
        }
        // The labels are checked too, because any image can have a snapshot's name.
        match self.images.find(&snapshot.reference).await? {
            Some(image) if self.snapshot_from(image.clone()).is_some() => {
                self.cli.delete_image(&snapshot.reference).await
            }
            _ => Ok(()),
        }
    }

    /// Returns the reference of the image of this snapshot.
    ///
    /// # Errors
    /// [`BackendError`] when the image does not exist.
    pub(super) async fn image_of(&self, snapshot: &Snapshot) -> Result<String, BackendError> {
        let gone = || {
            BackendError::failed(format!("the snapshot {} of {} is gone", snapshot.reference, snapshot.slug))
        };
        if !self.is_ours(snapshot) {
            return Err(gone());
        }
        self.images.find(&snapshot.reference).await?.map(|image| image.reference).ok_or_else(gone)
    }

    /// Implements [`bottle_backend::Snapshots::export`].
    pub(super) async fn export_snapshot(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        let Export { snapshot, scratch, layers, .. } = export;
        let doing = format!("export the snapshot of {}", snapshot.slug);
        let reference = self.image_of(snapshot).await?;
        let image = self.images.find(&reference).await?;
        let account = image.as_ref().and_then(account_of).ok_or_else(|| {
            BackendError::failed(format!("cannot {doing}: its image does not name the agent's account"))
        })?;
        let file = scratch.join(SAVED);
        self.cli.save(&reference, &Images::platform(), &file).await?;
        let added = run_blocking(move || add_layers(&file, &[], layers)).await?;
        let (layers, mut config) = added.map_err(|error| bad_image(&doing, error))?;
        let kept = [ACCOUNT_LABEL, LEFT_OUT_LABEL];
        let labels = image.map(|image| image.labels).unwrap_or_default();
        config.labels = labels.into_iter().filter(|(name, _)| kept.contains(&name.as_str())).collect();
        Ok(ExportedImage { layers, config, root: RootKind::Complete, home: account.home })
    }

    /// Implements [`bottle_backend::Snapshots::import`].
    pub(super) async fn import_snapshot(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        let Import { slug, layout: source, root, progress, .. } = import;
        let doing = format!("import {slug}");
        if root == RootKind::Home {
            return Err(BackendError::unsupported(
                format!("cannot {doing}: its files are only a home, without a system"),
                "use `--backend docker`, or export it from a bottle that runs on an image",
            ));
        }
        let (directory, source) = (self.images.directory(), source.to_owned());
        let read = run_blocking(move || {
            let container = SavedContainer::directory(&source)?;
            let saved = Saved::read(&container, architecture())?;
            let mut layout = Layout::new(&directory, progress)?;
            let mut budget = Budget::full();
            for one in &saved.layers {
                layout.layers.add(false, |out| {
                    let copied = layer::read(&container, one, &mut budget, |content| {
                        io::copy(content, out).map(drop).map_err(BadImage::Disk)
                    });
                    copied.map_err(io::Error::other)
                })?;
            }
            layout.layers.add(false, |out| out.write_all(&directories_layer()?))?;
            Ok::<_, BadImage>((layout, saved.config))
        });
        let (layout, config) = read.await?.map_err(|error| bad_image(&doing, error))?;
        let account = config.labels.get(ACCOUNT_LABEL).filter(|label| Account::from_label(label).is_some());
        let account = account.cloned().ok_or_else(|| {
            BackendError::failed(format!("cannot {doing}: its image does not name the agent's account"))
        })?;
        let (reference, mut labels) = self.new_snapshot(slug);
        labels.push((ACCOUNT_LABEL, account));
        labels.extend(config.labels.get(LEFT_OUT_LABEL).map(|list| (LEFT_OUT_LABEL, list.clone())));
        let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let config = ImageConfig { user: config.user, env: config.env, labels };
        // The bottle refers to the image by the reference `imported`, which stays after the snapshot is removed.
        let imported = reference.replacen(&format!("localhost/{SNAPSHOT_REPOSITORY}"), IMPORTED, 1);
        self.load(&doing, layout, config, &[&reference, &imported]).await?;
        let snapshot = self.find_snapshot(&doing, &reference).await?;
        Ok(Imported { snapshot, image: Some(ImageSource::Imported(imported)) })
    }
}

fn bad_image(doing: &str, error: BadImage) -> BackendError {
    match error {
        BadImage::Refused(why) => BackendError::failed(format!("cannot {doing}: the image {why}")),
        error @ BadImage::Disk(_) => BackendError::failed(format!("cannot {doing}")).because(error),
    }
}
