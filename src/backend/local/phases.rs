//! The verbs of a backend that are the same for every bottle made of processes of this machine.

use std::path::PathBuf;

use bottle_contract::names::Slug;
use jiff::Timestamp;

use super::inventory::{self, resource, text};
use super::layers::Kind;
use super::runtime_folder::RUNTIME_FOLDER;
use super::{Scope, connect, roles};
use crate::backend::{BackendError, ByteStream, LAYERS, Origin, ProgressSink, Resource, Site};

impl Scope {
    /// Records and makes the runtime folder with the place of the proxy, and the layers, while the processes that
    /// need them are loaded.
    pub(crate) fn make_folders(
        &self,
        site: &Site<'_>,
        kind: Kind,
        owner: Option<u32>,
    ) -> Result<(), BackendError> {
        let slug = &site.plan.identity.slug;
        let failed = |path: &std::path::Path, error: std::io::Error| {
            BackendError::failed(format!("cannot make {}: {error}", path.display()))
        };
        roles::start_ahead(self, slug, site.state)?;
        let place = self.place(slug);
        let layers = self.layers_in(site.state);
        if *site.origin == Origin::Kept && !layers.workspace().is_dir() {
            let gone = format!("what was kept of {slug} is not in {} any more", layers.folder().display());
            return Err(BackendError::failed(gone));
        }
        site.ledger.record_all(&[
            resource(slug, RUNTIME_FOLDER, text(place.folder())),
            resource(slug, LAYERS, text(layers.folder())),
        ])?;
        place.make().map_err(|error| failed(place.folder(), error))?;
        // What is there says what it is; a snapshot will.
        let kind = if *site.origin == Origin::New { Some(kind) } else { layers.kind() };
        layers.make(kind.unwrap_or(Kind::Home), owner).map_err(|error| failed(layers.folder(), error))
    }

    /// Gives the layers the files that the site's origin says, for the same owner.
    pub(crate) async fn fill_layers(
        &self,
        site: &Site<'_>,
        owner: Option<u32>,
        told: ProgressSink,
    ) -> Result<(), BackendError> {
        match site.origin {
            Origin::New | Origin::Kept => Ok(()),
            Origin::Snapshot(snapshot) => self.thaw(site.state, snapshot, owner, told).await,
        }
    }

    /// The stream to pid 1.
    pub(crate) async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        // It listens before it exists.
        connect::connect(&self.place(slug).guest_socket(), &format!("the guest of {slug}")).await
    }

    /// The stream to the bundle.
    pub(crate) async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        // It said that it listens before its start was over.
        connect::connect(&self.place(slug).bundle_socket(), &format!("the bundle of {slug}")).await
    }

    /// See [`crate::backend::Backend::enumerate`].
    pub(crate) async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        self.off_the_loop(inventory::enumerate).await
    }

    /// See [`crate::backend::Backend::remove`].
    pub(crate) async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        for resource in resources {
            self.ahead.end(&resource.slug).await;
        }
        let resources = resources.to_vec();
        self.off_the_loop(move |scope| inventory::remove(scope, &resources)).await
    }

    /// See [`crate::backend::Backend::holds_work`].
    pub(crate) async fn holds_work(&self, slug: &Slug, since: Timestamp) -> Result<bool, BackendError> {
        let layers = self.layers(slug);
        let slug = slug.clone();
        self.off_the_loop(move |_| {
            layers.changed_since(since).map_err(|error| {
                BackendError::failed(format!("the workspace of {slug} cannot be read: {error}"))
            })
        })
        .await
    }

    /// See [`crate::backend::Backend::kept_workspace`].
    pub(crate) fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf> {
        Some(self.layers(slug).workspace()).filter(|folder| folder.is_dir())
    }

    pub(super) async fn off_the_loop<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let scope = self.clone();
        tokio::task::spawn_blocking(move || work(&scope))
            .await
            .unwrap_or_else(|error| Err(BackendError::failed(format!("a task of the backend died: {error}"))))
    }
}
