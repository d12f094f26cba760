//! Makes images of a container's files, and keeps the number of their layers small.
//!
//! ```text
//!   container ─commit─► image with one layer more
//!   container ─export│import─► image with one layer ─create─► scratch container ─commit─► with its configuration
//! ```
//! An engine refuses an image with too many layers, and each commit adds a layer. An image with many layers is
//! therefore flattened: the container's files pass through this process into a new image. A container whose image was
//! removed is flattened too, because the engine cannot commit it.

use std::io;

use bollard::models::{ContainerConfig, ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateImageOptionsBuilder, RemoveContainerOptionsBuilder};
use bottle_backend::{Copied, ProgressSink};
use bottle_policy::names::Slug;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

use super::commit::{KEPT_HOME, KEPT_SLUG, commit};
use super::container::create;
use super::engine::{Engine, EngineError};
use super::hardened::no_health_check;
use super::names::{Names, Part};
use super::podman::COMMITTED_WITHIN;

/// The number of layers from which on an image gets no further layer. Engines refuse images with more than 125 layers.
pub(super) const MAX_LAYERS: usize = 120;

/// The maximum number of chunks of an exported file system that are buffered for the import.
const CHUNKS: usize = 8;

/// The bottle for which an image is made, and the engine that makes it.
pub(super) struct Source<'a> {
    pub(super) engine: &'a Engine,
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// Receives the number of copied bytes.
    pub(super) progress: &'a ProgressSink,
}

/// Returns the number of the image's layers. `None` if the image does not exist.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn layers(engine: &Engine, image: &str) -> Result<Option<usize>, EngineError> {
    let image = engine.call_if_there(engine.docker().inspect_image(image)).await?;
    Ok(image.map(|image| image.root_fs.and_then(|root| root.layers).map_or(0, |layers| layers.len())))
}

impl Source<'_> {
    /// Makes an image of a stopped container's files, with this tag and these labels. The new image has one layer more
    /// than the container's image. If the container's image has `limit` layers or was removed, the new image has a
    /// single layer.
    ///
    /// # Errors
    /// [`EngineError`]. A partial image has the label of a kept container, and a cleanup finds it by this label.
    pub(super) async fn image_of_container(
        &self,
        container: &str,
        limit: usize,
        tag: (&str, &str),
        labels: &[(&str, &str)],
    ) -> Result<String, EngineError> {
        let found = self.engine.inspect_container(container).await?;
        let image = found.image.unwrap_or_default();
        if layers(self.engine, &image).await?.is_some_and(|layers| layers < limit) {
            return commit(self.engine, container, tag, labels).await;
        }
        let flat = self.import(container).await?;
        self.configure(&flat, found.config.unwrap_or_default(), tag, labels).await
    }

    /// Makes an image with the files and the configuration of `image`, but with few layers.
    ///
    /// # Errors
    /// The errors of [`Source::image_of_container`].
    pub(super) async fn flat_image(
        &self,
        image: &str,
        tag: (&str, &str),
        labels: &[(&str, &str)],
    ) -> Result<String, EngineError> {
        let scratch = self.scratch(image, ContainerConfig::default()).await?;
        let flat = async {
            let config = self.engine.inspect_container(&scratch).await?.config.unwrap_or_default();
            Ok::<_, EngineError>((self.import(&scratch).await?, config))
        };
        let flat = flat.await;
        self.remove(&scratch).await?;
        let (flat, config) = flat?;
        self.configure(&flat, config, tag, labels).await
    }

    /// Imports the files of a container as an image with one layer and without a configuration.
    async fn import(&self, container: &str) -> Result<String, EngineError> {
        let (home, slug) = (self.names.home(), self.slug);
        let label = format!("LABEL {KEPT_HOME}={home} {KEPT_SLUG}={slug}");
        let options = CreateImageOptionsBuilder::new().from_src("-").changes(vec![label]).build();
        let patient = self.engine.docker().clone().with_timeout(COMMITTED_WITHIN);
        let body = bollard::body_try_stream(self.exported(container));
        let imported = async {
            let mut events = patient.create_image(Some(options), Some(body), None).boxed();
            let mut id = None;
            while let Some(event) = events.next().await {
                id = event?.status.filter(|status| status.starts_with("sha256:")).or(id);
            }
            Ok(id)
        };
        let id = self.engine.call_within(COMMITTED_WITHIN, imported).await?;
        id.ok_or_else(|| EngineError::Disconnected("it reported no image id".to_owned()))
    }

    /// Returns the files of a container as a tar archive.
    fn exported(&self, container: &str) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (docker, container) = (self.engine.docker().clone(), container.to_owned());
        let (progress, mut bytes) = (self.progress.clone(), 0);
        let (sender, receiver) = mpsc::channel(CHUNKS);
        // The task ends when the import drops the receiver.
        tokio::spawn(async move {
            let mut chunks = docker.export_container(&container).boxed();
            while let Some(chunk) = chunks.next().await {
                if let Ok(chunk) = &chunk {
                    bytes += chunk.len() as u64;
                    progress.report(Copied { files: 0, bytes });
                }
                if sender.send(chunk.map_err(io::Error::other)).await.is_err() {
                    return;
                }
            }
        });
        stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|chunk| (chunk, receiver)))
    }

    /// Commits an image with this configuration.
    async fn configure(
        &self,
        image: &str,
        config: ContainerConfig,
        tag: (&str, &str),
        labels: &[(&str, &str)],
    ) -> Result<String, EngineError> {
        let scratch = self.scratch(image, config).await?;
        let committed = commit(self.engine, &scratch, tag, labels).await;
        self.remove(&scratch).await?;
        committed
    }

    /// Creates a container of this image, but never starts it. If this process is killed, a cleanup finds the container
    /// by its labels, which are the labels of a reader of the bottle's files.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) async fn scratch(&self, image: &str, config: ContainerConfig) -> Result<String, EngineError> {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            // The engine refuses to create a container without a command, and the image may lack one.
            entrypoint: Some(vec!["/bottle".to_owned()]),
            healthcheck: Some(no_health_check()),
            labels: Some(self.names.labels(Part::Reader, self.slug)),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
            env: config.env,
            user: config.user,
            working_dir: config.working_dir,
            volumes: config.volumes,
            exposed_ports: config.exposed_ports,
            stop_signal: config.stop_signal,
            shell: config.shell,
            ..ContainerCreateBody::default()
        };
        create(self.engine, &self.names.name(Part::Reader, self.slug), body).await
    }

    /// Removes a container that [`Source::scratch`] created.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(super) async fn remove(&self, scratch: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        self.engine
            .call_if_there(self.engine.docker().remove_container(scratch, Some(options)))
            .await
            .map(drop)
    }
}
