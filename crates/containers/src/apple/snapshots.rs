//! Stores snapshots as images.
//!
//! ```text
//!   make:    container ─ socket: archive of its files ─► a layer ─► check ─► `image load`
//!   export:  `image save` ─► layers as they are         import: layers ─► check ─► `image load`
//! ```
//! The program `bottle` in the container archives the files while the other processes are stopped, and sends them over a
//! mounted socket. To archive a kept bottle, the backend starts the bottle's container without the agent. The commands of
//! `container` that could copy the files are not used:
//!
//! - `exec` waits at most 3 s for the rest of the output when the process has ended, and does not say if it lost the rest.
//!   It could not end the process in the container if the command were killed.
//! - `export` reads the container's disk without the offsets of its extents, so sparse and preallocated files arrive with
//!   other content. It refuses files with many extents.
//! - `copy` loses the owners of the files, because it unpacks them with the rights of the user, and ends after 300 s.
//!
//! A snapshot is named
//! `localhost/bottle-snapshot:<home>-<slug>-<microseconds>`. A snapshot contains all files of the bottle, including the
//! files of its first image.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::pin;

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
use super::stream;
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
        let layout = Layout::new(&self.images.directory(), progress).map_err(failed)?;
        let layout = self
            .visit(slug, container, async |id| {
                let listener = self.sockets(slug).listen_for_archive().map_err(failed)?;
                let sending = self.cli.exec(doing, id, &[PROGRAM, ARCHIVE_FLAG]);
                receive_files(doing, listener, sending, layout).await
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

/// Adds the files that a process in a container sends to this listener as a layer. `sending` ends with the process.
async fn receive_files(
    doing: &str,
    listener: UnixListener,
    sending: impl Future<Output = Result<(), BackendError>>,
    mut layout: Layout,
) -> Result<Layout, BackendError> {
    let failed = |error: io::Error| BackendError::failed(format!("cannot {doing}")).because(error);
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
    let mut sending = pin!(sending);
    let stream = tokio::select! {
        accepted = listener.accept() => accepted.and_then(|(stream, _)| stream.into_std()).map_err(failed)?,
        ended = &mut sending => {
            ended?;
            return Err(failed(io::Error::other("the process that archives the files sent nothing")));
        }
    };
    stream.set_nonblocking(false).map_err(failed)?;
    let connection = ClosedOnDrop(stream.try_clone().map_err(failed)?);
    let adding = run_blocking(move || {
        // The process in the container must not wait for a receiver that has failed.
        let stream = ClosedOnDrop(stream);
        layout.layers.add(false, |layer| stream::receive(&stream.0, layer))?;
        layout.layers.add(false, |layer| layer.write_all(&directories_layer()?))?;
        Ok::<_, io::Error>(layout)
    });
    let sending = async {
        let sent = sending.await;
        drop(connection);
        sent
    };
    let (sent, added) = tokio::join!(sending, adding);
    match (sent, added?) {
        // The process knows why it did not send everything.
        (Err(error), Err(cut)) if cut.kind() == io::ErrorKind::UnexpectedEof => Err(error),
        (_, Err(error)) => Err(failed(error)),
        (sent, Ok(layout)) => sent.map(|()| layout),
    }
}

/// A connection that both sides stop using when this value is dropped, even if another handle of it exists.
struct ClosedOnDrop(UnixStream);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

fn bad_image(doing: &str, error: BadImage) -> BackendError {
    match error {
        BadImage::Refused(why) => BackendError::failed(format!("cannot {doing}: the image {why}")),
        error @ BadImage::Disk(_) => BackendError::failed(format!("cannot {doing}")).because(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::Path;

    use super::stream::Sender;
    use super::*;

    /// Receives files from a sender, as a snapshot does. `send` is the process in the container.
    async fn receive(
        directory: &Path,
        send: impl FnOnce(&Path) -> Result<(), BackendError> + Send + 'static,
    ) -> Result<Layout, String> {
        let layout = Layout::new(&directory.join("images"), ProgressSink::discard()).expect("a layout");
        let socket = directory.join("archive");
        let listener = UnixListener::bind(&socket).expect("bound");
        let sending = async move { run_blocking(move || send(&socket)).await? };
        let received = receive_files("make a snapshot of a", listener, sending, layout).await;
        received.map_err(|error| error.one_line())
    }

    fn connect(socket: &Path) -> Sender<UnixStream> {
        Sender::new(UnixStream::connect(socket).expect("connected"))
    }

    #[tokio::test]
    async fn the_files_of_a_container_become_a_layer() {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let layout = receive(directory.path(), |socket| {
            let mut archive = tar::Builder::new(connect(socket));
            let mut header = tar::Header::new_gnu();
            header.set_size(3_000_000);
            header.set_mode(0o644);
            archive.append_data(&mut header, "big", io::repeat(7).take(3_000_000)).expect("sent");
            archive.into_inner().expect("sent").finish().expect("confirmed");
            Ok(())
        });
        let layout = layout.await.expect("received");
        let (_kept, archive) =
            layout.pack(ImageConfig::default(), &["localhost/a:1"]).expect("a complete archive");
        assert!(archive.is_file());
    }

    #[tokio::test]
    async fn a_snapshot_of_a_process_that_fails_names_its_reason() {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let why = || Err(BackendError::failed("archive: /workspace/a: too deep"));
        for connects in [false, true] {
            let error = receive(directory.path(), move |socket| {
                if connects {
                    connect(socket).write_all(b"half").expect("sent");
                }
                why()
            });
            assert_eq!(error.await.err().as_deref(), Some("archive: /workspace/a: too deep"), "{connects}");
            std::fs::remove_file(directory.path().join("archive")).expect("removed");
        }
        let error = receive(directory.path(), |_| Ok(())).await.err().expect("nothing was sent");
        assert!(error.ends_with("the process that archives the files sent nothing"), "{error}");
    }

    #[tokio::test]
    async fn a_receiver_that_fails_ends_the_sender_and_names_its_reason() {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        let images = directory.path().join("images");
        let error = receive(directory.path(), move |socket| {
            std::fs::remove_dir_all(images).expect("removed");
            let mut sender = connect(socket);
            let sent = io::copy(&mut io::repeat(0), &mut sender);
            Err(BackendError::failed(format!("archive: {}", sent.expect_err("the receiver has ended"))))
        });
        let error = error.await.err().expect("it cannot be stored");
        assert!(error.starts_with("cannot make a snapshot of a: No such file"), "{error}");
    }
}
