//! An image from a folder or an archive of this machine.
//!
//! Two kinds come in both forms: what `docker save` writes, which the engine loads, and a plain file system,
//! which it imports.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{CreateImageOptionsBuilder, ImportImageOptionsBuilder};
use bottle_contract::terminal::inert;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};

use super::{build, failed};
use crate::archive;
use crate::backend::image::local;
use crate::backend::{BackendError, ProgressSink, Step};

/// A folder or an archive, looked at and not yet read.
#[derive(Debug, Clone)]
pub(super) struct Local {
    /// What it is.
    pub(super) found: local::Local,
    /// The hash of the home that it is loaded for.
    pub(super) home: String,
}

impl Local {
    /// Gives it to the engine and answers with the image's id or name. `named` is how errors call it.
    ///
    /// # Errors
    /// [`BackendError`]: a file that cannot be read, or what the engine says.
    pub(super) async fn load(
        &self,
        docker: &Docker,
        named: &str,
        told: &ProgressSink<Step>,
    ) -> Result<String, BackendError> {
        let of = named.to_owned();
        told.tell(Step { of: of.clone(), line: "loading it".to_owned(), begins: true });
        let told = |line: &str| told.tell(Step { of: of.clone(), line: inert(line), begins: false });
        let unread = Arc::new(Mutex::new(None));
        let loaded = if self.found.saved {
            self.load_saved(docker, self.stream(&unread), &told).await
        } else {
            self.import(docker, self.stream(&unread), &told).await
        };
        loaded.map_err(|error| {
            // The engine only sees its input end; why it ended is known here.
            match unread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(why) => BackendError::failed(format!("cannot read {named}: {why}")),
                None => failed(format!("the engine does not take {named}"), error),
            }
        })
    }

    async fn load_saved(
        &self,
        docker: &Docker,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        told: &(impl Fn(&str) + Sync),
    ) -> Result<String, Error> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let mut events = docker.import_image_stream(options, body, None).boxed();
        let mut found: Vec<String> = Vec::new();
        while let Some(event) = events.next().await {
            for line in event?.stream.iter().flat_map(|text| text.lines()) {
                told(line);
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
            0 => Err(said("there is no image in it")),
            count => Err(said(&format!("there are {count} images in it, and a bottle is made of one"))),
        }
    }

    async fn import(
        &self,
        docker: &Docker,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        told: &(impl Fn(&str) + Sync),
    ) -> Result<String, Error> {
        let label = format!("LABEL {}", build::mark(&self.home, build::BUILT));
        let options = CreateImageOptionsBuilder::new().from_src("-").changes(vec![label]).build();
        let body = bollard::body_try_stream(body);
        let mut events = docker.create_image(Some(options), Some(body), None).boxed();
        let mut id = None;
        while let Some(event) = events.next().await {
            if let Some(status) = event?.status {
                told(&status);
                id = Some(status).filter(|status| status.starts_with("sha256:")).or(id);
            }
        }
        id.ok_or_else(|| said("the engine did not say what became of it"))
    }

    /// Its bytes as a tar archive. Why they ended early goes to `unread`.
    fn stream(
        &self,
        unread: &Arc<Mutex<Option<String>>>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (path, folder, unread) = (self.found.path.clone(), self.found.folder, Arc::clone(unread));
        archive::stream(move |out| if folder { pack(&path, out) } else { copy(&path, out) }).inspect_err(
            move |error| *unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string()),
        )
    }
}

fn copy(path: &Path, out: &mut dyn Write) -> io::Result<()> {
    io::copy(&mut File::open(path)?, out).map(drop)
}

/// Owners and modes as they are; links stay links.
fn pack(folder: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive.append_dir_all(".", folder)?;
    archive.into_inner()?.flush()
}

fn said(why: &str) -> Error {
    Error::DockerStreamError { error: why.to_owned() }
}
