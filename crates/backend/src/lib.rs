//! Defines the trait [`Backend`] for isolating bottles, and contains the code that several backends share. The crates
//! `sandbox` and `containers` implement the trait.
//!
//! ```text
//!             prepare             make_network       start_bundle      start_guest
//!  (nothing) ─────────► Prepared ─────────────► network ──────────► sidecars ──────────► pid 1 up
//!                                    remove undoes any of it, in any order, repeatedly
//! ```
//! `make_snapshot` creates a [`Snapshot`] of a running or kept bottle. A later launch starts from that snapshot, from
//! the bottle's kept files, or from empty directories, as [`Launch::origin`] says. `open_kept` starts only pid 1, to
//! read or change the kept files of a bottle.
//!
//! A backend creates and removes resources, and opens byte streams to the bundle and to pid 1. It makes no policy
//! decisions: `bottle_keeper::launch` runs the phases in order, provisions the sidecars and pid 1, and undoes a failed
//! launch. The crate `bottle_protocol` defines the messages on the streams. The guest implements exec, terminals,
//! copies and logs, so these features work the same on every backend. Only the directory of a backend contains code for
//! the backend's engine. Each guarantee that this file documents has one function in `tests/backends`, which tests the
//! guarantee on every available backend.
//!
//! - `image`, `portable_image`: images in archives, in directories and in exported bottles
//! - `trees`, `restrictions` (only on Linux): directory trees; restrictions of the programs in a bottle
//! - `command_line`, `static_program`: runs the programs of engines; finds the program that backends put into bottles
//! - `runtime_directory`, `unix_connect`: the sockets of a bottle · `memory`: the default memory limits of a bottle

pub mod command_line;
mod elf;
mod error;
mod identity;
pub mod image;
pub mod memory;
pub mod portable_image;
mod prepared;
mod progress;
#[cfg(target_os = "linux")]
pub mod restrictions;
pub mod runtime_directory;
mod snapshot;
pub mod static_program;
#[cfg(target_os = "linux")]
pub mod trees;
pub mod unix_connect;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bottle_plan::{LiveDirectory, Plan, Resources};
use bottle_policy::names::{GIT_OBJECTS_DIR, GIT_OBJECTS_OF_SEVERAL, Slug};
use bottle_protocol::session::guest::{Changed, Changes, Overrun, SecretText};
use bottle_repository::{Directory, Entry, Stop};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::error::{BackendError, BackendErrorKind};
pub use self::identity::EngineIdentity;
use self::portable_image::{Export, ExportedImage, Import, Imported};
pub use self::prepared::{Exposed, ImageInfo, Prepared, Preview, RoleInputs};
pub use self::progress::{Copied, ProgressSink, Step};
pub use self::snapshot::{MadeSnapshot, NewSnapshot, Origin, Snapshot};

/// Returns the host directory that contains the git objects of the repositories that were copied into a bottle. `state`
/// is the bottle's state directory. No process in the bottle can write to the returned directory. `None` if the
/// directory does not exist: the git objects are then only in the bottle.
#[must_use]
pub fn shared_objects(state: &Path) -> Option<PathBuf> {
    let places = ["git-objects", "agent/git-objects", "agent.vm/git-objects"].map(|place| state.join(place));
    places.into_iter().find(|place| place.symlink_metadata().is_ok_and(|found| found.is_dir()))
}

/// A backend that isolates bottles.
#[async_trait]
pub trait Backend: Images + Lifecycle + Snapshots {
    /// The backend's name in settings, metadata and messages.
    fn name(&self) -> &'static str;

    /// Returns the properties in which backends can differ.
    fn capabilities(&self) -> Capabilities;

    /// Returns the identity of the engine that currently manages this backend's resources. `None` on a backend without
    /// an engine, whose resources are on this machine. The record of a bottle contains this identity.
    ///
    /// # Errors
    /// [`BackendError`] when no engine answers. The state of the bottle's resources is then unknown.
    async fn identity(&self) -> Result<Option<EngineIdentity>, BackendError> {
        Ok(None)
    }

    /// Returns the address of the engine that this backend would use. Does not connect to the engine. `None` on a
    /// backend without an engine.
    fn engine_address(&self) -> Option<String> {
        None
    }

    /// Checks whether this machine can run bottles, and reports each problem with its fix. Changes nothing on the
    /// machine, and also works when the engine is not installed.
    async fn check(&self) -> Check;

    /// Checks only whether a bottle can be started. A backend may skip slow checks that do not affect this answer.
    async fn check_use(&self) -> Check {
        self.check().await
    }

    /// Checks that this backend can run this plan.
    ///
    /// # Errors
    /// [`BackendError`] that names the feature that this backend does not support.
    fn supports(&self, plan: &Plan) -> Result<(), BackendError>;
}

/// Finds, builds and removes the inputs of bottles: the agent's program or image.
#[async_trait]
pub trait Images: Send + Sync {
    /// Previews [`Images::prepare`] for the user to approve. Creates nothing and does not use the network.
    ///
    /// # Errors
    /// The errors of [`Images::prepare`] that can be detected without creating anything.
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError>;

    /// Finds or builds the agent's program or image, and reports progress. `secrets` contains the values of the plan's
    /// secrets, by id. Creates no resource that belongs to only one bottle. If the call is cancelled, the next call
    /// continues from the partial result, or removes the partial result.
    ///
    /// # Errors
    /// [`BackendError`] that names the program or image and the user's next step.
    async fn prepare(
        &self,
        plan: &Plan,
        secrets: &BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
    ) -> Result<Prepared, BackendError>;

    /// Lists the images, volumes and build leftovers that `bottle` created and no bottle uses any more. Never lists a
    /// snapshot. Changes nothing.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::enumerate`].
    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        Ok(Vec::new())
    }

    /// Removes the items that [`Images::unused`] listed, except items that a bottle has used since then. Returns the
    /// removed items.
    ///
    /// # Errors
    /// [`BackendError`] when an item cannot be removed.
    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        drop(unused);
        Ok(Vec::new())
    }
}

/// The resources of one bottle, from its network to its removal.
#[async_trait]
pub trait Lifecycle: Send + Sync {
    /// Creates the bottle's private network and the directory of its proxy's sockets. Starts no process. With
    /// [`Origin::Kept`] or [`Origin::Snapshot`], the kept files stay unchanged.
    ///
    /// # Errors
    /// [`BackendError`]. The resource log then names the resources created so far.
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError>;

    /// Starts the bundle (the bottle's sidecars) without its configuration and secrets. The proxy accepts no
    /// connections until the keeper provisions it.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::make_network`].
    async fn start_bundle(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError>;

    /// Starts pid 1 in isolation, without its configuration and secrets. No program of the image or of the agent runs
    /// yet. The bottle's files come from [`Launch::origin`]. A copy of a snapshot replaces the bottle's kept files
    /// atomically: after a crash either all old files or all new files exist. On a file system that cannot exchange
    /// directories, a crash can leave neither the old nor the new files. The snapshot still exists then.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::make_network`]. Also when the snapshot no longer exists.
    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError>;

    /// Copies files of this machine into the workspace of a new bottle, with their modes and modification times, and
    /// without hard links, set-id bits, sockets, pipes and devices. The copies share blocks with the originals if the
    /// file system supports it. The caller calls this after [`Lifecycle::start_guest`] and before any program of the
    /// agent runs. Returns `false` on a backend that cannot copy files; the caller then sends the files to pid 1.
    ///
    /// # Errors
    /// [`BackendError`] when a file cannot be copied.
    async fn copy_files(&self, launch: &Launch<'_>, files: HostFiles) -> Result<bool, BackendError> {
        let _ = (launch, files);
        Ok(false)
    }

    /// Shares git objects of this machine with a new bottle, read-only and in their current state, in the directory
    /// [`RepositoryObjects::inside`]. Later changes to the host directory have no effect in the bottle, and no program
    /// in the bottle can change a file in it. The objects are part of the bottle's snapshots. The caller calls this
    /// after [`Lifecycle::start_guest`]. Returns `false` on a backend that cannot share objects; the caller then copies
    /// the objects into the bottle.
    ///
    /// # Errors
    /// [`BackendError`] when an object cannot be shared.
    async fn share_objects(
        &self,
        launch: &Launch<'_>,
        objects: &RepositoryObjects,
    ) -> Result<bool, BackendError> {
        let _ = (launch, objects);
        Ok(false)
    }

    /// Starts pid 1 on the files of a bottle that ended and is kept, without network, proxy and sidecars, and with the
    /// same restrictions and limits as [`Lifecycle::start_guest`]. With [`Access::Read`], a backend that isolates
    /// bottles prevents programs in the bottle from changing the files. With [`Access::Write`], changes by programs in
    /// the bottle become part of the kept files. [`Lifecycle::connect_guest`] opens the channel to pid 1. Removing the
    /// bottle's resources except [`LAYERS`] ends pid 1.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::make_network`]. Also when the kept files no longer exist.
    async fn open_kept(&self, kept: &KeptFiles<'_>) -> Result<(), BackendError>;

    /// Opens the channel to the bundle. After the channel closed, another process may open it again.
    ///
    /// # Errors
    /// [`BackendError`]; of kind [`BackendErrorKind::NotRunning`] if it is certain that the bundle ended.
    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError>;

    /// Opens the channel to pid 1. After the channel closed, another process may open it again.
    ///
    /// # Errors
    /// [`BackendError`] when pid 1 is not running.
    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError>;

    /// Returns the state of a bottle's pid 1. A keeper calls this when its channel to pid 1 closed, or when pid 1 does
    /// not answer. Waits at most half a minute for an engine that does not answer. A backend does not implement this
    /// method if its channel closes only when pid 1 ends.
    ///
    /// # Errors
    /// [`BackendError`] when the engine does not answer. Pid 1 may still run then.
    async fn run_state(&self, _: &Slug) -> Result<RunState, BackendError> {
        Ok(RunState::Ended)
    }

    /// Returns the names of the sidecars of a bottle whose processes run, without a connection to them. Without a keeper,
    /// nothing else notices that a sidecar ended. `None` on a backend that would have to ask an engine, and if the
    /// processes cannot be listed.
    fn running_sidecars(&self, _: &Slug) -> Option<Vec<&'static str>> {
        None
    }

    /// Continues the paused processes of a bottle. A process that takes the lock of a bottle without a keeper calls
    /// this before it connects to the bottle. A backend that cannot pause bottles does not implement this method.
    ///
    /// # Errors
    /// [`BackendError`] when the processes stay paused.
    async fn recover(&self, _: &Slug, _: PausedBy) -> Result<(), BackendError> {
        Ok(())
    }

    /// Returns addresses at which the proxies of other bottles listen, in any `$BOTTLE_HOME`. The isolation probe
    /// checks that this bottle cannot reach these addresses. Returns at most [`MAX_OTHER_LISTENERS`] addresses, and no
    /// address on a backend whose bottles have no network addresses.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried.
    async fn other_listeners(&self, slug: &Slug) -> Result<Vec<SocketAddr>, BackendError> {
        let _ = slug;
        Ok(Vec::new())
    }

    /// Lists every existing resource of this `$BOTTLE_HOME`. Finds the resources by their labels, not through the
    /// bottles' metadata, so the list includes resources whose metadata was lost. An unlisted resource is gone only if
    /// [`Backend::identity`] returns the engine that the bottle's record names.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried. If this machine has no usable engine, the list is empty,
    /// which is not an error.
    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError>;

    /// Searches the bottle's workspace for changes. If the workspace is a directory of the user (`is_live`), searches
    /// only the bottle's repository in that directory. The bottle may be running or stopped. No process may have an
    /// open channel to pid 1, because the backend may open a new channel, which replaces the open one.
    ///
    /// # Errors
    /// [`BackendError`] when the workspace cannot be read. The caller then assumes that there are changes.
    async fn find_work(&self, slug: &Slug, request: &Changed, is_live: bool)
    -> Result<Changes, BackendError>;

    /// Measures the disk space, in bytes, of the files that belong to this bottle alone. The bottle may be running.
    /// Takes up to ten seconds. `None` on a backend that cannot measure the disk space, and if the bottle has too many
    /// files.
    ///
    /// # Errors
    /// [`BackendError`] when the files cannot be listed.
    async fn size(&self, slug: &Slug) -> Result<Option<u64>, BackendError> {
        let _ = slug;
        Ok(None)
    }

    /// Returns the resource limit that this bottle exceeded, if the kernel killed processes of the bottle for it.
    async fn overrun(&self, _: &Slug) -> Option<Overrun> {
        None
    }

    /// Returns the host directory that contains the workspace of a stopped bottle. `None` if no host directory contains
    /// the workspace.
    fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf>;

    /// Removes resources: processes first, then the resources that those processes used. A missing resource is no
    /// error. A failure does not stop the removal of the other resources.
    ///
    /// # Errors
    /// [`BackendError`] with all failures in its message.
    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError>;

    /// Removes resources like [`Lifecycle::remove`], but only moves away the files whose removal takes long. Afterwards
    /// no resource uses the bottle's name. Returns the moved files as resources, which [`Lifecycle::enumerate`] lists
    /// and [`Lifecycle::remove`] removes.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::remove`].
    async fn move_away(&self, resources: &[Resource]) -> Result<Vec<Resource>, BackendError> {
        self.remove(resources).await.map(|()| Vec::new())
    }
}

/// The snapshots of bottles.
#[async_trait]
pub trait Snapshots: Send + Sync {
    /// Describes the data of this bottle that a snapshot excludes, as one sentence fragment for each item (`the volume
    /// /data`). Commands show these fragments to the user before they make a snapshot.
    ///
    /// # Errors
    /// [`BackendError`] when the bottle cannot be inspected.
    async fn snapshot_exclusions(&self, slug: &Slug) -> Result<Vec<String>, BackendError> {
        let _ = slug;
        Ok(Vec::new())
    }

    /// Creates a snapshot of the files that belong to this bottle alone. The bottle may be running or kept; the
    /// processes of a running bottle continue. When this returns, the snapshot is complete and durable.
    ///
    /// Each file of a running bottle is captured in the state that it has at one moment during the call. This moment
    /// can differ between files. [`MadeSnapshot::notes`] reports files that kept changing. The snapshot excludes the
    /// files that only one launch uses (certificates, sockets). The snapshot also lacks the labels of a bottle, so that
    /// no copy of the snapshot is listed as a bottle.
    ///
    /// The other snapshots stay unchanged until [`Snapshots::remove_snapshot`]. After a failure no part of the new
    /// snapshot exists. After a crash [`Lifecycle::enumerate`] or [`Snapshots::snapshots`] lists every resource that
    /// exists.
    ///
    /// # Errors
    /// [`BackendError`] when the snapshot cannot be created.
    async fn make_snapshot(
        &self,
        slug: &Slug,
        new: &NewSnapshot,
        progress: ProgressSink,
    ) -> Result<MadeSnapshot, BackendError>;

    /// Lists every complete snapshot of this `$BOTTLE_HOME`, for each bottle the oldest first. [`Lifecycle::enumerate`]
    /// lists no snapshots. Like that method, this method does not read the bottles' metadata.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::enumerate`].
    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError>;

    /// Removes a snapshot of this `$BOTTLE_HOME`. Files that the snapshot shares with another snapshot stay. A missing
    /// snapshot is no error.
    ///
    /// # Errors
    /// [`BackendError`] when the snapshot cannot be removed or belongs to another `$BOTTLE_HOME`.
    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError>;

    /// Adds the files of a snapshot to `export.layers`, as layers of an image. Does not change the snapshot.
    ///
    /// # Errors
    /// [`BackendError`] when the snapshot cannot be read, or when an image cannot contain a file of the snapshot.
    async fn export(&self, export: Export<'_>) -> Result<ExportedImage, BackendError>;

    /// Makes a snapshot of a new bottle from the image of an archive. The archive is untrusted: every path, link and
    /// digest is checked before the snapshot is in place. When this returns, the snapshot is complete and durable.
    ///
    /// After a failure no part of the snapshot exists. After a crash [`Lifecycle::enumerate`], [`Snapshots::snapshots`]
    /// or [`Images::unused`] lists every resource that exists.
    ///
    /// # Errors
    /// [`BackendError`] when the image is damaged or hostile, or this backend cannot use it.
    async fn import(&self, import: Import<'_>) -> Result<Imported, BackendError>;
}

/// The sidecars' log directory, relative to a bottle's directory. When root starts a bottle, the sidecars run as
/// another user, who owns this directory. Readers must not follow links in the directory.
pub const SIDECAR_LOGS: &str = "logs/guards";

/// The directory of the git gate's mirrors, relative to a bottle's directory. Like [`SIDECAR_LOGS`], the directory may
/// belong to another user.
pub const GATE_DIRECTORY: &str = "git-gate";

/// The maximum number of other bottles' listeners that the isolation probe tries. A few listeners are representative.
/// Without a maximum, the duration of a launch would grow with the number of bottles.
pub const MAX_OTHER_LISTENERS: usize = 8;

/// The [`Resource::kind`] of a bottle's files. When a bottle is kept, resources of this kind stay. All other resources
/// are removed.
pub const LAYERS: &str = "layers";

/// The paths at which Linux distributions keep their certificate bundle. In a bottle, each path is a link to the
/// provisioned bundle, so that programs with a fixed certificate path also trust the proxy.
pub const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// The paths at which Linux distributions keep the truststore that their Java packages read. In a bottle that uses the
/// host's system directories, each path is a link to the provisioned truststore.
pub const JAVA_ROOT_FILES: [&str; 2] =
    ["/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts"];

/// An open byte stream to a guest or a bundle.
pub type ByteStream = Box<dyn Stream>;

/// The operations of a [`ByteStream`].
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Runs blocking work of a backend on a blocking thread.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| BackendError::failed("a task of the backend panicked").because(error))
}

/// The inputs of the backend for one launch of a bottle.
pub struct Launch<'a> {
    /// The complete plan.
    pub plan: &'a Plan,
    /// `$BOTTLE_HOME/state/<slug>`, which contains layers, logs and configuration without secrets.
    pub state: &'a Path,
    /// Records each resource before the backend creates it. If the engine assigns the resource's id, the backend
    /// records the resource immediately after its creation.
    pub resources: &'a dyn ResourceLog,
    /// Where the bottle's initial files come from.
    pub origin: &'a Origin,
    /// Receives the progress when the backend has to copy many files before it can start the bottle on kept files.
    pub progress: &'a ProgressSink,
}

/// Files, directories and links below a directory. A directory comes before its content.
pub type HostEntries = Box<dyn Iterator<Item = io::Result<Entry>> + Send>;

/// Files of a host directory to copy into a bottle.
pub struct HostFiles {
    /// The path of the host directory, for messages.
    pub from: PathBuf,
    /// The name of the directory in the workspace; `None` for the workspace itself.
    pub directory: Option<String>,
    /// The entries to copy.
    pub entries: HostEntries,
    /// Receives the number of bytes that were copied so far.
    pub progress: ProgressSink,
    /// The signal that stops the copy.
    pub stop: Stop,
}

/// The objects of a copied git repository.
#[derive(Debug, Clone)]
pub struct RepositoryObjects {
    /// The object directory on this machine. The backend never opens the directory again by its path, because the
    /// project can redirect that path.
    pub from: Arc<Directory>,
    /// The directories from which the repository borrows further objects (for example git's `alternates`). The user has
    /// confirmed these directories.
    pub borrowed: Vec<Arc<Directory>>,
    /// The name of the repository's directory in the workspace; `None` if the repository is the whole workspace.
    pub directory: Option<String>,
}

impl RepositoryObjects {
    /// Returns the directory in the bottle that contains the objects, if the backend shares them.
    pub fn inside(&self) -> String {
        match &self.directory {
            Some(directory) => format!("{GIT_OBJECTS_DIR}/{GIT_OBJECTS_OF_SEVERAL}/{directory}"),
            None => GIT_OBJECTS_DIR.to_owned(),
        }
    }
}

/// The inputs of the backend to open the files of a kept bottle.
pub struct KeptFiles<'a> {
    /// The bottle's slug.
    pub slug: &'a Slug,
    /// The state directory, as in [`Launch::state`].
    pub state: &'a Path,
    /// The log of resources, as in [`Launch::resources`].
    pub resources: &'a dyn ResourceLog,
    /// The sandbox inputs of the launch that created the files.
    pub sandbox: &'a Sandbox,
    /// What programs may do with the files.
    pub access: Access,
}

/// The inputs of a launch that determine how its sandbox is set up. A bottle's record contains these inputs, so that
/// the bottle's kept files can be opened without its manifest. The inputs contain no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sandbox {
    /// The inputs that the backend prepared.
    pub prepared: Prepared,
    /// The resource limits.
    pub limits: Resources,
    /// The directory of the user that is mounted as the workspace, if the bottle has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveDirectory>,
}

/// The state of a bottle's pid 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// Pid 1 runs.
    Running,
    /// Something other than `bottle` paused pid 1, or a snapshot is being made.
    Paused {
        /// How the user continues pid 1, as a sentence fragment.
        hint: String,
    },
    /// Pid 1 ended, or the bottle's container was removed.
    Ended,
}

/// Who paused the processes of a bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PausedBy {
    /// This backend paused the processes for a snapshot that was interrupted.
    Snapshot,
    /// The user or another program paused the processes.
    Other,
}

/// What programs may do with the files of a kept bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Only read the files.
    Read,
    /// Read and change the files.
    Write,
}

/// Records the resources of a launch in the bottle's metadata.
pub trait ResourceLog: Send + Sync {
    /// Writes the resources to disk before it returns. Recording a resource twice has no effect.
    ///
    /// # Errors
    /// When the metadata cannot be written. The caller then must not create the resources.
    fn record_all(&self, resources: &[Resource]) -> Result<(), BackendError>;

    /// Records one resource.
    ///
    /// # Errors
    /// As [`ResourceLog::record_all`].
    fn record(&self, resource: Resource) -> Result<(), BackendError> {
        self.record_all(&[resource])
    }
}

/// A resource that a backend creates for one bottle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Resource {
    /// The bottle that the resource belongs to.
    pub slug: Slug,
    /// The backend's name for the kind of resource (`guest-process`, `runtime-directory`, `network`).
    pub kind: String,
    /// The backend's id of the resource (`pid:start-time`, a path, an engine's id).
    pub id: String,
}

impl Resource {
    /// Creates a resource of this bottle.
    #[must_use]
    pub fn new(slug: &Slug, kind: &str, id: String) -> Self {
        Self { slug: slug.clone(), kind: kind.to_owned(), id }
    }
}

/// An image or similar input that no bottle uses any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The backend's name for the kind of input (`image`).
    pub kind: String,
    /// The backend's name or id of the input.
    pub id: String,
    /// Why the input is unused, as the end of a sentence.
    pub why: String,
    /// The size in bytes, if known. The size includes data that the input shares with other inputs.
    pub bytes: Option<u64>,
}

/// The properties in which backends differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether the backend isolates bottles. Only the fake backend does not.
    pub isolates: bool,
    /// Whether the processes of a running bottle pause while a snapshot is made.
    pub commit_pauses: bool,
}

/// The result of [`Backend::check`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Whether a bottle can be started.
    pub usable: bool,
    /// What the backend uses on this machine, and why (`Docker 20.10.24 at /var/run/docker.sock, the default socket`).
    /// `None` if the backend has no choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<String>,
    /// Features that are missing or weaker on this machine than on other machines.
    pub findings: Vec<Finding>,
}

/// One finding, as `bottle doctor` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The problem, such as a missing feature.
    pub what: String,
    /// The command or change that fixes the problem.
    pub fix: String,
}
