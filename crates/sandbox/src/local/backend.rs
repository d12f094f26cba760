//! The backends with bottles that are processes of this machine. The files of these bottles are in directories of this
//! machine. [`LocalBackend`] implements the shared part. A [`LocalSandbox`] starts pid 1 and implements the differences
//! of one backend.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use async_trait::async_trait;
use bottle_backend::portable_image::{Export, ExportedImage, Import, Imported};
use bottle_backend::runtime_directory::RUNTIME_DIRECTORY;
use bottle_backend::trees::copy::copy_host_files;
use bottle_backend::trees::{explain, git_objects};
use bottle_backend::unix_connect;
use bottle_backend::{
    Access, BackendError, ByteStream, HostFiles, KeptFiles, LAYERS, Launch, Lifecycle, MadeSnapshot,
    NewSnapshot, Origin, Prepared, ProgressSink, RepositoryObjects, Resource, ResourceLog, Snapshot,
    Snapshots, run_blocking,
};
use bottle_plan::{LiveDirectory, Plan, Resources, Workspace};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Changed, Changes, Overrun};
use bottle_repository::Stop;

use super::cgroups::Groups;
use super::inventory::{self, text};
use super::labels;
use super::layer_snapshots;
use super::layers::{Kind, Layers};
use super::{Scope, roles, size};

/// The processes of a bottle that run under one user id of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The agent and all other processes in the bottle.
    Agent,
    /// The bundle and its sidecars.
    Sidecars,
}

/// A bottle that a backend starts or opens: its pid 1 is started with the files in its layers.
pub(crate) struct Bottle<'a> {
    pub(crate) slug: &'a Slug,
    /// See [`Launch::state`].
    pub(crate) state: &'a Path,
    pub(crate) resources: &'a dyn ResourceLog,
    pub(crate) limits: &'a Resources,
    pub(crate) prepared: &'a Prepared,
    pub(crate) live: Option<&'a LiveDirectory>,
    pub(crate) purpose: Purpose<'a>,
}

/// Why pid 1 of a bottle starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    /// A launch. The bottle has a proxy, and its files come from this origin.
    Launch(&'a Origin),
    /// The bottle is only opened, so that programs can read or change its kept files.
    Open(Access),
}

impl Bottle<'_> {
    /// Whether the bottle is launched for the first time.
    pub(crate) fn is_new(&self) -> bool {
        self.purpose == Purpose::Launch(&Origin::New)
    }

    /// Whether the bottle is launched. A bottle that is only opened has no proxy.
    pub(crate) fn is_launched(&self) -> bool {
        matches!(self.purpose, Purpose::Launch(_))
    }

    /// Whether the bottle is opened only to read its files.
    pub(crate) fn is_read_only(&self) -> bool {
        self.purpose == Purpose::Open(Access::Read)
    }
}

/// The differences between local backends: how each backend starts pid 1, and with which files.
#[async_trait]
pub(crate) trait LocalSandbox: Send + Sync {
    /// Whether [`Lifecycle::copy_files`] and [`Lifecycle::share_objects`] put files of this machine into the layers of
    /// a bottle.
    const SHARES_FILES: bool;

    /// The scope of this backend, which contains all its bottles.
    fn scope(&self) -> &Scope;

    /// The kind of the layers of a new bottle.
    fn layers(&self, plan: &Plan) -> Kind;

    /// Returns the host user id under which these processes of a bottle run. This id also owns the files of the
    /// processes. Returns `None` if an ordinary user starts the bottle.
    ///
    /// # Errors
    /// [`BackendError`] when no id can be used.
    fn outside_id(&self, _: &Slug, _: Who) -> Result<Option<u32>, BackendError> {
        Ok(None)
    }

    /// Returns the sink for the progress of copying a snapshot into the layers.
    fn restoring(&self) -> ProgressSink {
        ProgressSink::discard()
    }

    /// Starts pid 1 with the files in the bottle's layers.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::start_guest`].
    async fn start(&self, bottle: &Bottle<'_>) -> Result<(), BackendError>;

    /// Lists the resources that are neither processes nor files.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::enumerate`].
    async fn enumerate_own(&self) -> Result<Vec<Resource>, BackendError> {
        Ok(Vec::new())
    }

    /// Removes the resources that are neither processes nor files, and returns the other resources.
    ///
    /// # Errors
    /// [`BackendError`] when a resource cannot be removed and may still use the processes or files.
    async fn remove_own(&self, resources: &[Resource]) -> Result<Vec<Resource>, BackendError> {
        Ok(resources.to_vec())
    }

    /// Implements [`Snapshots::export`].
    ///
    /// # Errors
    /// The errors of [`Snapshots::export`].
    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError>;

    /// Implements [`Snapshots::import`].
    ///
    /// # Errors
    /// The errors of [`Snapshots::import`].
    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError>;
}

/// A backend with bottles that are processes of this machine. `S` starts pid 1 of each bottle.
#[derive(Debug)]
pub struct LocalBackend<S>(pub(crate) S);

#[async_trait]
impl<S: LocalSandbox> Lifecycle for LocalBackend<S> {
    /// Records and creates the runtime directory and the layers. Also starts the processes of the bottle in advance, so
    /// that they load in parallel.
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        let (scope, plan) = (self.0.scope(), launch.plan);
        let slug = &plan.identity.slug;
        let owner = self.0.outside_id(slug, Who::Agent)?;
        roles::prespawn(scope, slug, launch.state)?;
        let runtime_directory = scope.runtime_directory(slug);
        let layers = scope.layers_in(launch.state);
        if *launch.origin == Origin::Kept {
            require_kept("resume", slug, &layers)?;
        }
        launch.resources.record_all(&[
            Resource::new(slug, RUNTIME_DIRECTORY, text(runtime_directory.directory())),
            Resource::new(slug, LAYERS, text(layers.directory())),
        ])?;
        runtime_directory.make().map_err(|error| cannot_make(runtime_directory.directory(), error))?;
        // Existing layers keep their kind. If the bottle starts from a snapshot, restoring the snapshot determines the
        // kind.
        let is_new = *launch.origin == Origin::New;
        let kind = if is_new { Some(self.0.layers(plan)) } else { layers.kind() };
        let made = layers.make(kind.unwrap_or(Kind::Home), owner);
        made.map_err(|error| cannot_make(layers.directory(), error))?;
        if is_new && plan.live.as_ref().is_some_and(|live| live.repository.is_some()) {
            layers.make_repository(owner).map_err(|error| cannot_make(&layers.workspace(), error))?;
        }
        if is_new && S::SHARES_FILES && plan.workspace != Workspace::Empty {
            // The sandbox mounts the directory of the git objects before the workspace is copied. The objects are put
            // into this directory after the copy, so that they include every object that a copied reference names.
            let directory = layers.git_objects();
            git_objects::make_directory(&directory).map_err(|error| cannot_make(&directory, error))?;
        }
        Ok(())
    }

    async fn start_bundle(&self, launch: &Launch<'_>, _: &Prepared) -> Result<(), BackendError> {
        let owner = self.0.outside_id(&launch.plan.identity.slug, Who::Sidecars)?;
        self.0.scope().start_bundle(launch, owner).await
    }

    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError> {
        let Launch { plan, state, resources, origin, .. } = *launch;
        let slug = &plan.identity.slug;
        if let Origin::Snapshot(snapshot) = origin {
            let owner = self.0.outside_id(slug, Who::Agent)?;
            self.0.scope().restore_snapshot(state, snapshot, owner, self.0.restoring()).await?;
        }
        let (limits, live) = (&plan.resources, plan.live.as_ref());
        let purpose = Purpose::Launch(origin);
        self.0.start(&Bottle { slug, state, resources, limits, prepared, live, purpose }).await
    }

    async fn open_kept(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError> {
        let KeptFiles { slug, state, resources, sandbox, access } = *kept;
        let scope = self.0.scope();
        let runtime_directory = scope.runtime_directory(slug);
        require_kept("open", slug, &scope.layers_in(state))?;
        resources.record(Resource::new(slug, RUNTIME_DIRECTORY, text(runtime_directory.directory())))?;
        runtime_directory.make().map_err(|error| cannot_make(runtime_directory.directory(), error))?;
        let (limits, prepared, live) = (&sandbox.limits, &sandbox.prepared, sandbox.live.as_ref());
        let purpose = Purpose::Open(access);
        self.0.start(&Bottle { slug, state, resources, limits, prepared, live, purpose }).await
    }

    async fn copy_files(&self, launch: &Launch<'_>, files: HostFiles) -> Result<bool, BackendError> {
        if !S::SHARES_FILES {
            return Ok(false);
        }
        let owner = self.0.outside_id(&launch.plan.identity.slug, Who::Agent)?;
        let workspace = self.0.scope().layers_in(launch.state).workspace();
        let (running, ended) = mpsc::sync_channel::<()>(0);
        let _stop = StopOnDrop { stop: files.stop.clone(), ended };
        run_blocking(move || {
            let _running = running;
            let what = format!("cannot copy the files of {}", files.from.display());
            copy_host_files(files, &workspace, owner).map_err(|error| not_copied(what, error))
        })
        .await?
        .map(|()| true)
    }

    async fn share_objects(
        &self,
        launch: &Launch<'_>,
        objects: &RepositoryObjects,
    ) -> Result<bool, BackendError> {
        if !S::SHARES_FILES {
            return Ok(false);
        }
        let (objects, directory) = (objects.clone(), self.0.scope().layers_in(launch.state).git_objects());
        run_blocking(move || {
            let failed = || format!("cannot share the git objects in {}", objects.from.path().display());
            git_objects::share_repository(&objects, &directory, git_objects::Reader::Starter)
                .map_err(|error| explain(failed(), error))
        })
        .await?
        .map(|()| true)
    }

    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        // `start_bundle` returns only after the bundle listens on this socket.
        let socket = self.0.scope().runtime_directory(slug).bundle_socket();
        unix_connect::connect(&socket, &format!("the bundle of {slug}")).await
    }

    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError> {
        // The socket was bound before the guest started, so it exists.
        let socket = self.0.scope().runtime_directory(slug).guest_socket();
        unix_connect::connect(&socket, &format!("the guest of {slug}")).await
    }

    fn running_sidecars(&self, slug: &Slug) -> Option<Vec<&'static str>> {
        let found = labels::find_of(self.0.scope(), slug).ok()?;
        Some(found.into_iter().filter_map(|found| found.role.sidecar()).collect())
    }

    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError> {
        let mut all = self.0.enumerate_own().await?;
        all.extend(self.0.scope().run_blocking(inventory::enumerate).await?);
        Ok(all)
    }

    async fn find_work(
        &self,
        slug: &Slug,
        request: &Changed,
        is_live: bool,
    ) -> Result<Changes, BackendError> {
        let (layers, slug, request) = (self.0.scope().layers(slug), slug.clone(), request.clone());
        run_blocking(move || {
            layers.find_changes(&request, is_live).map_err(|error| {
                BackendError::failed(format!("cannot read the workspace of {slug}")).because(error)
            })
        })
        .await?
    }

    async fn size(&self, slug: &Slug) -> Result<Option<u64>, BackendError> {
        let (layers, slug) = (self.0.scope().layers(slug), slug.clone());
        run_blocking(move || {
            size::of_layers(&layers).map_err(|error| {
                BackendError::failed(format!("cannot measure the files of {slug}")).because(error)
            })
        })
        .await?
    }

    async fn overrun(&self, slug: &Slug) -> Option<Overrun> {
        Groups::current().overrun(&self.0.scope().group(slug))
    }

    fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf> {
        Some(self.0.scope().layers(slug).workspace()).filter(|directory| directory.is_dir())
    }

    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError> {
        let rest = self.0.remove_own(resources).await?;
        self.0.scope().remove(rest).await
    }

    /// Moves the layers away, and removes all other resources.
    async fn move_away(&self, resources: &[Resource]) -> Result<Vec<Resource>, BackendError> {
        let (layers, rest): (Vec<Resource>, Vec<Resource>) =
            self.0.remove_own(resources).await?.into_iter().partition(|resource| resource.kind == LAYERS);
        let scope = self.0.scope();
        // The processes that use the layers must end before the layers are moved.
        let removed = scope.remove(rest).await;
        let moved = scope.run_blocking(move |scope| inventory::move_away(scope, &layers)).await;
        match (removed, moved) {
            (Ok(()), moved) => moved,
            (Err(error), Ok(_)) => Err(error),
            (Err(first), Err(second)) => {
                BackendError::all(&[first.one_line(), second.one_line()]).map(|()| Vec::new())
            }
        }
    }
}

#[async_trait]
impl<S: LocalSandbox> Snapshots for LocalBackend<S> {
    async fn make_snapshot(
        &self,
        slug: &Slug,
        new: &NewSnapshot,
        progress: ProgressSink,
    ) -> Result<MadeSnapshot, BackendError> {
        let (slug, new) = (slug.clone(), new.clone());
        let scope = self.0.scope();
        scope
            .run_blocking(move |scope| {
                layer_snapshots::store(scope, &slug, new, &progress).map_err(|error| {
                    let kind = error.kind();
                    let failed = explain(format!("cannot store the files of {slug}"), error);
                    if kind != io::ErrorKind::InvalidFilename {
                        return failed;
                    }
                    failed
                        .with_hint(format!("remove it, `bottle exec {slug} -- rm -r PATH`, and commit again"))
                })
            })
            .await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        let scope = self.0.scope();
        scope
            .run_blocking(move |scope| {
                layer_snapshots::list(scope)
                    .map_err(|error| BackendError::failed("cannot list snapshots").because(error))
            })
            .await
    }

    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        let snapshot = snapshot.clone();
        let scope = self.0.scope();
        scope
            .run_blocking(move |scope| {
                layer_snapshots::delete(scope, &snapshot).map_err(|error| {
                    let Snapshot { slug, reference, .. } = &snapshot;
                    BackendError::failed(format!("cannot remove the snapshot {reference} of {slug}"))
                        .because(error)
                })
            })
            .await
    }

    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError> {
        self.0.export(export).await
    }

    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError> {
        self.0.import(import).await
    }
}

impl Scope {
    async fn remove(&self, resources: Vec<Resource>) -> Result<(), BackendError> {
        for resource in &resources {
            self.prespawned.end(&resource.slug).await;
        }
        self.run_blocking(move |scope| inventory::remove(scope, &resources)).await
    }

    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, BackendError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let scope = self.clone();
        run_blocking(move || work(&scope)).await?
    }
}

/// Stops a copy when the launch is cancelled, so that the copy does not write into directories that are being removed.
/// Dropping this value blocks until the threads of the copy have finished their current files.
struct StopOnDrop {
    stop: Stop,
    /// The channel is closed when the copy ends.
    ended: mpsc::Receiver<()>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop.set();
        let _ = self.ended.recv();
    }
}

/// Creates the error for files of the user that cannot be copied.
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
