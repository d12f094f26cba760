//! Loads an image from a directory or an archive on this machine.
//!
//! The directory or archive contains either a saved image (`docker save`), which the engine loads, or a plain file
//! system, which the engine imports.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{CreateImageOptionsBuilder, ImportImageOptionsBuilder};
use bottle_backend::image::local;
use bottle_backend::{BackendError, ProgressSink, Step};
use bottle_text::terminal::inert;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use super::image_error::failed;
use super::labels::{BUILT, mark};
use super::upload::Unread;

/// A directory or archive whose entries were inspected.
#[derive(Debug, Clone)]
pub(super) struct Local {
    /// The result of the inspection.
    pub(super) found: local::Local,
    /// The hash of the `$BOTTLE_HOME` for which the image is loaded.
    pub(super) home: String,
}

impl Local {
    /// Sends the image to the engine and returns the image's id. `named` identifies the image in errors.
    ///
    /// # Errors
    /// [`BackendError`] when a file cannot be read, or the engine refuses the image.
    pub(super) async fn load(
        &self,
        docker: &Docker,
        named: &str,
        progress: &ProgressSink<Step>,
    ) -> Result<String, BackendError> {
        let of = named.to_owned();
        progress.report(Step { subject: of.clone(), line: "loading it".to_owned(), starts_stage: true });
        let report = |line: &str| {
            progress.report(Step { subject: of.clone(), line: inert(line), starts_stage: false })
        };
        let unread = Unread::default();
        let loaded = if self.found.saved {
            self.load_saved(docker, self.stream(&unread), &report).await
        } else {
            self.import(docker, self.stream(&unread), &report).await
        };
        loaded.map_err(|error| {
            // The engine only sees that its input ended. `unread` contains the cause.
            match unread.take() {
                Some(why) => BackendError::failed(format!("cannot read {named}: {why}")),
                None => failed(format!("cannot load {named}"), error),
            }
        })
    }

    async fn load_saved(
        &self,
        docker: &Docker,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        report: &(impl Fn(&str) + Sync),
    ) -> Result<String, Error> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let mut events = docker.import_image_stream(options, body, None).boxed();
        let mut found: Vec<String> = Vec::new();
        while let Some(event) = events.next().await {
            for line in event?.stream.iter().flat_map(|text| text.lines()) {
                report(line);
                let name =
                    ["Loaded image: ", "Loaded image ID: "].iter().find_map(|said| line.strip_prefix(said));
                found.extend(name.map(|name| name.trim().to_owned()));
            }
        }
        let mut ids = Vec::new();
        for name in &found {
            let id = docker.inspect_image(name).await?.id.unwrap_or_default();
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        match ids.len() {
            1 => Ok(ids.remove(0)),
            0 => Err(load_error("it contains no image")),
            count => Err(load_error(&format!("it contains {count} images instead of one"))),
        }
    }

    async fn import(
        &self,
        docker: &Docker,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        report: &(impl Fn(&str) + Sync),
    ) -> Result<String, Error> {
        let label = format!("LABEL {}", mark(&self.home, BUILT));
        let options = CreateImageOptionsBuilder::new().from_src("-").changes(vec![label]).build();
        let body = bollard::body_try_stream(body);
        let mut events = docker.create_image(Some(options), Some(body), None).boxed();
        let mut id = None;
        while let Some(event) = events.next().await {
            if let Some(status) = event?.status {
                report(&status);
                id = Some(status).filter(|status| status.starts_with("sha256:")).or(id);
            }
        }
        id.ok_or_else(|| load_error("the engine reported no image id"))
    }

    /// Returns the content of the directory or archive as a tar stream.
    fn stream(&self, unread: &Unread) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (path, directory) = (self.found.path.clone(), self.found.directory);
        unread.stream(move |out| if directory { pack(&path, out) } else { copy(&path, out) })
    }
}

fn copy(path: &Path, out: &mut dyn Write) -> io::Result<()> {
    io::copy(&mut File::open(path)?, out).map(drop)
}

/// Archives a directory with the owners and modes of its files. Does not follow links.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn pack(directory: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive.append_dir_all(".", directory)?;
    archive.into_inner()?.flush()
}

fn load_error(why: &str) -> Error {
    Error::DockerStreamError { error: why.to_owned() }
}
