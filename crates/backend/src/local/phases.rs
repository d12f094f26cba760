//! Implements the backend methods that are the same for all backends whose bottles are processes of this machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use bottle_contract::names::Slug;
use bottle_contract::session::guest::{Changed, Changes};
use bottle_repository::Stop;

use super::copy::copy_host_files;
use super::inventory::{self, text};
use super::layer_snapshots::explain;
use super::layers::{Kind, Layers};
use super::{Scope, git_objects, roles, size};
use crate::runtime_directory::RUNTIME_DIRECTORY;
use crate::unix_connect;
use crate::{
    BackendError, ByteStream, HostFiles, KeptFiles, LAYERS, Launch, Origin, ProgressSink, RepositoryObjects,
    Resource, run_blocking,
};

impl Scope {
    /// Records and creates the runtime directory and the layers. In parallel, the processes that were started in
    /// advance load.
    pub(crate) fn make_directories(
        &self,
        launch: &Launch<'_>,
        kind: Kind,
        owner: Option<u32>,
    ) -> Result<(), BackendError> {
        let slug = &launch.plan.identity.slug;
        roles::prespawn(self, slug, launch.state)?;
        let runtime_directory = self.runtime_directory(slug);
        let layers = self.layers_in(launch.state);
        if *launch.origin == Origin::Kept {
            require_kept("resume", slug, &layers)?;
        }
        launch.resources.record_all(&[
            Resource::new(slug, RUNTIME_DIRECTORY, text(runtime_directory.directory())),
            Resource::new(slug, LAYERS, text(layers.directory())),
        ])?;
        runtime_directory.make().map_err(|error| cannot_make(runtime_directory.directory(), error))?;
        // Layers that exist determine the kind. For a snapshot, the restore determines the kind.
        let kind = if *launch.origin == Origin::New { Some(kind) } else { layers.kind() };
        layers.make(kind.unwrap_or(Kind::Home), owner).map_err(|error| cannot_make(layers.directory(), error))
    }

    /// Records and creates only the runtime directory, for a bottle whose kept files are opened.
    pub(crate) fn make_runtime_directory(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        let runtime_directory = self.runtime_directory(kept.slug);
        require_kept("open", kept.slug, &self.layers_in(kept.state))?;
        kept.resources.record(Resource::new(
            kept.slug,
            RUNTIME_DIRECTORY,
            text(runtime_directory.directory()),
        ))?;
        runtime_directory.make().map_err(|error| cannot_make(runtime_directory.directory(), error))
    }

    /// Fills the layers from the launch's origin. The files get the same owner as the layers.
    pub(crate) async fn fill_layers(
        &self,
        launch: &Launch<'_>,
        owner: Option<u32>,
        progress: ProgressSink,
    ) -> Result<(), BackendError> {
        match launch.origin {
            Origin::New | Origin::Kept => Ok(()),
            Origin::Snapshot(snapshot) => {
                self.restore_snapshot(launch.state, snapshot, owner, progress).await
            }
        }
    }

    /// Creates the empty directory of the objects that [`Scope::share_objects`] shares.
    pub(crate) fn make_objects_directory(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        let directory = self.layers_in(launch.state).git_objects();
        git_objects::make_directory(&directory).map_err(|error| cannot_make(&directory, error))
    }

    /// Creates the empty directory of the bottle's repository, for a workspace that is a directory of the user.
    pub(crate) fn make_repository(
        &self,
        launch: &Launch<'_>,
        owner: Option<u32>,
    ) -> Result<(), BackendError> {
        let layers = self.layers_in(launch.state);
        layers.make_repository(owner).map_err(|error| cannot_make(&layers.workspace(), error))
    }

    /// Implements [`crate::Lifecycle::copy_files`]. If root starts the bottle, `owner` owns the files.
    pub(crate) async fn copy_files(
        &self,
        launch: &Launch<'_>,
        files: HostFiles,
        owner: Option<u32>,
    ) -> Result<(), BackendError> {
        let workspace = self.layers_in(launch.state).workspace();
        let (running, ended) = mpsc::sync_channel::<()>(0);
        let _stop = StopOnDrop { stop: files.stop.clone(), ended };
        self.run_blocking(move |_| {
            let _running = running;
            let what = format!("cannot copy the files of {}", files.from.display());
            copy_host_files(files, &workspace, owner).map_err(|error| not_copied(what, error))
        })
        .await
    }

    /// Implements [`crate::Lifecycle::share_objects`].
    pub(crate) async fn share_objects(
        &self,
        launch: &Launch<'_>,
        objects: &RepositoryObjects,
    ) -> Result<bool, BackendError> {
        let (objects, directory) = (objects.clone(), self.layers_in(launch.state).git_objects());
        self.run_blocking(move |_| {
            let failed = || format!("cannot share the git objects in {}", objects.from.path().display());
            git_objects::share_repository(&objects, &directory, git_objects::Reader::Starter)
                .map_err(|error| explain(failed(), error))
        })
        .await?;
        Ok(true)
    }

    /// Connects to pid 1.
    pub(crate) async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        // The socket was bound before the guest started, so it exists.
        unix_connect::connect(&self.runtime_directory(slug).guest_socket(), &format!("the guest of {slug}"))
            .await
    }

    /// Connects to the bundle.
    pub(crate) async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        // The start of the bundle returns only after the bundle listens.
        unix_connect::connect(&self.runtime_directory(slug).bundle_socket(), &format!("the bundle of {slug}"))
            .await
    }

    /// Implements [`crate::Lifecycle::enumerate`].
    pub(crate) async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        self.run_blocking(inventory::enumerate).await
    }

    /// Implements [`crate::Lifecycle::remove`].
    pub(crate) async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        for resource in resources {
            self.prespawned.end(&resource.slug).await;
        }
        let resources = resources.to_vec();
        self.run_blocking(move |scope| inventory::remove(scope, &resources)).await
    }

    /// Implements [`crate::Lifecycle::move_away`]: moves the layers away, and removes everything else.
    pub(crate) async fn move_away(&self, resources: &[Resource]) -> Result<Vec<Resource>, BackendError> {
        let (layers, rest): (Vec<Resource>, Vec<Resource>) =
            resources.iter().cloned().partition(|resource| resource.kind == LAYERS);
        // The processes that use the layers end first.
        let removed = self.remove(&rest).await;
        let moved = self.run_blocking(move |scope| inventory::move_away(scope, &layers)).await;
        match (removed, moved) {
            (Ok(()), moved) => moved,
            (Err(error), Ok(_)) => Err(error),
            (Err(first), Err(second)) => {
                BackendError::all(&[first.one_line(), second.one_line()]).map(|()| Vec::new())
            }
        }
    }

    /// Implements [`crate::Lifecycle::find_work`].
    pub(crate) async fn find_work(
        &self,
        slug: &Slug,
        request: &Changed,
        is_live: bool,
    ) -> Result<Changes, BackendError> {
        let (layers, slug, request) = (self.layers(slug), slug.clone(), request.clone());
        self.run_blocking(move |_| {
            layers.find_changes(&request, is_live).map_err(|error| {
                BackendError::failed(format!("cannot read the workspace of {slug}")).because(error)
            })
        })
        .await
    }

    /// Implements [`crate::Lifecycle::size`].
    pub(crate) async fn size(&self, slug: &Slug) -> Result<Option<u64>, BackendError> {
        let layers = self.layers(slug);
        let slug = slug.clone();
        self.run_blocking(move |_| {
            size::of_layers(&layers).map_err(|error| {
                BackendError::failed(format!("cannot measure the files of {slug}")).because(error)
            })
        })
        .await
    }

    /// Implements [`crate::Lifecycle::kept_workspace`].
    pub(crate) fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf> {
        Some(self.layers(slug).workspace()).filter(|directory| directory.is_dir())
    }

    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let scope = self.clone();
        run_blocking(move || work(&scope)).await?
    }
}

/// Stops a copy when the launch is cancelled, so that nothing writes into directories that are removed. Blocks until
/// the threads of the copy finished their current files.
struct StopOnDrop {
    stop: Stop,
    /// Closed by the end of the copy.
    ended: mpsc::Receiver<()>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop.set();
        let _ = self.ended.recv();
    }
}

/// The error for files of the user that cannot be copied.
fn not_copied(what: String, error: io::Error) -> BackendError {
    let is_unreadable = error.kind() == io::ErrorKind::PermissionDenied;
    let failed = explain(what, error);
    if is_unreadable { failed.with_hint("make it readable, or exclude it in `.gitignore`") } else { failed }
}

/// Checks that the kept files exist.
fn require_kept(verb: &str, slug: &Slug, layers: &Layers) -> Result<(), BackendError> {
    if layers.workspace().is_dir() {
        return Ok(());
    }
    let directory = layers.directory().display();
    Err(BackendError::failed(format!("cannot {verb} {slug}: its kept files are not in {directory} any more")))
}

fn cannot_make(path: &Path, error: io::Error) -> BackendError {
    BackendError::failed(format!("cannot make {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_why_files_are_not_copied_names_the_next_step() {
        for (kind, step) in [
            (io::ErrorKind::PermissionDenied, Some("make it readable")),
            (io::ErrorKind::StorageFull, Some("free some space")),
            (io::ErrorKind::Other, None),
        ] {
            let failed = not_copied("cannot copy the files of /work".to_owned(), kind.into());
            assert!(failed.message.starts_with("cannot copy the files of /work"), "{failed:?}");
            assert_eq!(
                failed.hint.as_deref().map(|hint| step.is_some_and(|step| hint.contains(step))),
                step.map(|_| true)
            );
        }
    }
}
