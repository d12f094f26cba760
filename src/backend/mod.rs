//! The backends that isolate bottles, behind the trait [`Backend`].
//!
//! ```text
//!             prepare             make_network       start_bundle      start_guest
//!  (nothing) ─────────► Prepared ─────────────► network ──────────► sidecars ──────────► pid 1 up
//!                                    remove undoes any of it, in any order, repeatedly
//! ```
//! `freeze` makes a [`Snapshot`] of a running or kept bottle. A later launch starts from a snapshot or from the kept
//! files, as the [`Origin`] of its [`Launch`] says.
//!
//! A backend creates and removes resources and opens byte streams to the bundle and to pid 1. It makes no decisions:
//! [`crate::launch`] orders, provisions and undoes the phases, and the contract defines the messages on the streams.
//! The guest implements exec, terminals, copies and logs, so they work the same on every backend. Only the folder of
//! a backend knows its engine. Each promise below is one function in `tests/backends`, run on every available
//! backend.

pub mod docker;
mod error;
#[cfg(feature = "test-parts")]
pub mod fake;
pub mod guest_entry;
pub(crate) mod image;
pub mod linux;
pub mod local;
mod memory;
mod progress;
pub mod registry;
mod snapshot;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::Overrun;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::error::{BackendError, BackendErrorKind};
pub use self::progress::{Copied, ProgressSink, Step};
pub use self::snapshot::{Frozen, Origin, Snapshot};
use crate::plan::Plan;

/// A backend that isolates bottles.
#[async_trait]
pub trait Backend: Images + Lifecycle + Snapshots {
    /// The name in settings, metadata and messages.
    fn name(&self) -> &'static str;

    /// The optional features of this backend.
    fn capabilities(&self) -> Capabilities;

    /// Checks the machine and reports findings, each with its fix. Changes nothing, and works even when the engine is
    /// not installed.
    async fn check(&self) -> Check;

    /// Checks only whether a bottle can be started. A backend may skip slow checks that do not affect the answer.
    async fn check_use(&self) -> Check {
        self.check().await
    }

    /// Whether this backend can run this plan.
    ///
    /// # Errors
    /// A sentence fragment that names the unsupported feature.
    fn supports(&self, plan: &Plan) -> Result<(), BackendError>;
}

/// The inputs of bottles: the agent's program or image.
#[async_trait]
pub trait Images: Send + Sync {
    /// Previews [`Images::prepare`] for the user to approve. Creates nothing, and does not use the network.
    ///
    /// # Errors
    /// As [`Images::prepare`], as far as the errors are detectable without creating anything.
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError>;

    /// Finds or builds the agent's program or image, and reports progress. Creates nothing that belongs to one bottle.
    /// After a cancellation, the next call continues, or removes the partial result.
    ///
    /// # Errors
    /// [`BackendError`] naming the program or image and the next step.
    async fn prepare(&self, plan: &Plan, progress: &ProgressSink<Step>) -> Result<Prepared, BackendError>;

    /// Unused images and similar inputs of earlier bottles. Never anything in use, nor a snapshot. Changes nothing.
    ///
    /// # Errors
    /// As [`Lifecycle::enumerate`].
    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        Ok(Vec::new())
    }

    /// Removes the results of [`Images::unused`], except those used since, and returns the removed ones.
    ///
    /// # Errors
    /// [`BackendError`] when one cannot be removed.
    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        drop(unused);
        Ok(Vec::new())
    }
}

/// The resources of one bottle, from its network to its removal.
#[async_trait]
pub trait Lifecycle: Send + Sync {
    /// Creates the bottle's private network and the folder of its proxy's sockets. Starts nothing. With
    /// [`Origin::Kept`] or [`Origin::Snapshot`] the kept files stay unchanged.
    ///
    /// # Errors
    /// [`BackendError`]; the ledger names the resources created so far.
    async fn make_network(&self, launch: &Launch<'_>) -> Result<(), BackendError>;

    /// Starts the bundle, unprovisioned: its proxy accepts no connections until the keeper provisions it.
    ///
    /// # Errors
    /// As [`Lifecycle::make_network`].
    async fn start_bundle(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError>;

    /// Starts pid 1, isolated and unprovisioned; no program of the image or the agent runs yet. Its files come from the
    /// launch's [`Origin`]. A copy of a snapshot replaces kept files atomically: a crash leaves the old files or the
    /// new ones, complete.
    ///
    /// # Errors
    /// As [`Lifecycle::make_network`]; also when the snapshot no longer exists.
    async fn start_guest(&self, launch: &Launch<'_>, prepared: &Prepared) -> Result<(), BackendError>;

    /// Opens the channel to the bundle. Another process may open it again after it closed.
    ///
    /// # Errors
    /// [`BackendError`] when it is not running.
    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError>;

    /// Opens the channel to pid 1. Another process may open it again after it closed.
    ///
    /// # Errors
    /// [`BackendError`] when it is not running.
    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError>;

    /// Listener addresses of other bottles, of any home, which this one must not reach. At most
    /// [`MAX_OTHER_LISTENERS`]; none where bottles have no addresses.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried.
    async fn other_listeners(&self, slug: &Slug) -> Result<Vec<SocketAddr>, BackendError> {
        let _ = slug;
        Ok(Vec::new())
    }

    /// Every existing resource of this home, found by its label. Independent of the bottles' metadata: resources whose
    /// metadata was lost are included.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be queried; an absent engine has no resources.
    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError>;

    /// Whether the bottle's workspace contains changes newer than `since`. Works for a stopped bottle too.
    ///
    /// # Errors
    /// [`BackendError`] when the workspace cannot be read; the caller then assumes changes.
    async fn holds_work(&self, slug: &Slug, since: jiff::Timestamp) -> Result<bool, BackendError>;

    /// The limit for which the kernel killed processes of this bottle, if any.
    async fn overrun(&self, _: &Slug) -> Option<Overrun> {
        None
    }

    /// The host folder with the workspace of a stopped bottle, if there is one.
    fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf>;

    /// Removes resources: processes first, then the resources they used. A missing resource is no error. All are tried,
    /// and every failure is reported.
    ///
    /// # Errors
    /// [`BackendError`] with all failures in its message.
    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError>;
}

/// The snapshots of bottles.
#[async_trait]
pub trait Snapshots: Send + Sync {
    /// Data of this bottle that a snapshot excludes, a sentence fragment each (`the volume /data`). The user is warned
    /// of them before a snapshot.
    ///
    /// # Errors
    /// [`BackendError`] when the bottle cannot be inspected.
    async fn snapshot_exclusions(&self, slug: &Slug) -> Result<Vec<String>, BackendError> {
        let _ = slug;
        Ok(Vec::new())
    }

    /// Makes a snapshot of the bottle's own files. The bottle is running (its processes continue) or kept. The snapshot
    /// is complete and durable when this returns.
    ///
    /// Each file of a running bottle is captured at one moment during the call, though not all at the same moment;
    /// [`Frozen::notes`] reports files that kept changing. The snapshot excludes files of a single launch, and labels
    /// that would make a copy of it look like a bottle.
    ///
    /// `previous` is the bottle's last snapshot. It stays unchanged until [`Snapshots::remove_snapshot`]; a backend may
    /// share unchanged files with it. A failure leaves nothing of the new snapshot; a crash leaves only resources that
    /// [`Lifecycle::enumerate`] or [`Snapshots::snapshots`] finds.
    ///
    /// # Errors
    /// [`BackendError`]
    async fn freeze(
        &self,
        slug: &Slug,
        previous: Option<&Snapshot>,
        progress: ProgressSink,
    ) -> Result<Frozen, BackendError>;

    /// Every complete snapshot of this home, the newest of a bottle last. Independent of metadata, like
    /// [`Lifecycle::enumerate`], which does not list them.
    ///
    /// # Errors
    /// As [`Lifecycle::enumerate`].
    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError>;

    /// Removes a snapshot of this home, and nothing that another snapshot shares with it. A missing snapshot is no
    /// error.
    ///
    /// # Errors
    /// [`BackendError`] when it cannot be removed, or belongs to another home.
    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError>;

    /// The shell command that exports a snapshot for another machine, if there is one.
    fn export_command(&self, snapshot: &Snapshot) -> Option<String>;
}

/// The folder of the sidecars' logs, in a bottle's folder. When root starts a bottle, the sidecars run as another user
/// who owns this folder; readers must not follow links in it.
pub const SIDECAR_LOGS: &str = "logs/guards";

/// The folder of the git gate's mirrors, in a bottle's folder; like [`SIDECAR_LOGS`] it may belong to another user.
pub const GATE_FOLDER: &str = "git-gate";

/// The most listeners of other bottles that the isolation probe tries: a few are representative, and the duration of a
/// launch must not grow with the number of bottles.
pub const MAX_OTHER_LISTENERS: usize = 8;

/// The [`Resource::kind`] of a bottle's files; they stay when its work is preserved.
pub const LAYERS: &str = "layers";

/// The certificate bundle paths of distributions. In a bottle each links to the provisioned bundle, so that programs
/// without a configurable path trust the proxy too.
pub(crate) const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// An open byte stream to a guest or a bundle.
pub type ByteStream = Box<dyn Stream>;

/// The operations of a [`ByteStream`].
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Runs blocking work of a backend on a thread for it.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| BackendError::failed("a task of the backend panicked").because(error))
}

/// One launch of a bottle, as the phases of a backend see it.
pub struct Launch<'a> {
    /// The plan; complete and immutable.
    pub plan: &'a Plan,
    /// `$BOTTLE_HOME/state/<slug>`: layers, logs, configuration without secrets.
    pub state: &'a Path,
    /// Records each resource before it is created, or right after where the engine assigns its id.
    pub ledger: &'a dyn Ledger,
    /// The bottle's initial files.
    pub origin: &'a Origin,
}

/// The list of a launch's resources, stored in the bottle's metadata.
pub trait Ledger: Send + Sync {
    /// Records resources durably before returning. Recording a resource again has no effect.
    ///
    /// # Errors
    /// When the metadata cannot be written; the caller then must not create the resources.
    fn record_all(&self, resources: &[Resource]) -> Result<(), BackendError>;

    /// Records one resource.
    ///
    /// # Errors
    /// As [`Ledger::record_all`].
    fn record(&self, resource: Resource) -> Result<(), BackendError> {
        self.record_all(&[resource])
    }
}

/// A resource that a backend created for one bottle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Resource {
    /// The bottle it belongs to.
    pub slug: Slug,
    /// The backend's name for its kind (`guest-process`, `runtime-folder`, `network`).
    pub kind: String,
    /// The backend's id (`pid:start-time`, a path, an engine's id).
    pub id: String,
}

impl Resource {
    pub(crate) fn new(slug: &Slug, kind: &str, id: String) -> Self {
        Self { slug: slug.clone(), kind: kind.to_owned(), id }
    }
}

/// Something that no bottle uses any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The backend's name for its kind (`image`).
    pub kind: String,
    /// The backend's name or id.
    pub id: String,
    /// Why it is unused, as the rest of a sentence.
    pub why: String,
    /// Its size in bytes, shared data included, if known.
    pub bytes: Option<u64>,
}

/// The optional features of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Isolates bottles; only the fake backend does not.
    pub isolates: bool,
    /// Can freeze a bottle into a snapshot.
    pub snapshot: bool,
    /// Can do so while the bottle runs.
    pub live_commit: bool,
    /// Can pause and resume a bottle.
    pub pause: bool,
}

/// The result of [`Backend::check`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Whether a bottle can be started.
    pub usable: bool,
    /// Missing or weakened features.
    pub findings: Vec<Finding>,
}

/// One line of `bottle doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The finding.
    pub what: String,
    /// The exact fix.
    pub fix: String,
}

/// The result of [`Images::preview`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preview {
    /// Host paths that the bottle will see read-only, besides the system folders.
    pub exposed: Vec<Exposed>,
    /// Images to build, fetch or load, each with its reason, a sentence fragment each.
    pub makes: Vec<String>,
    /// The changes to the image's source since the last build, as lines of a unified diff.
    pub changed: Vec<String>,
    /// Image instructions without effect and data that snapshots exclude, if the image exists already.
    pub notes: Vec<String>,
    /// Limits that are enforced only approximately on this machine, a sentence each.
    pub limits: Vec<String>,
}

/// The result of [`Images::prepare`], an input of [`Lifecycle::start_guest`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prepared {
    /// Host paths that the bottle sees read-only, besides the system folders.
    pub exposed: Vec<Exposed>,
    /// The program's path inside the bottle, when it was found on the host.
    pub program: Option<String>,
    /// Folders prepended to the bottle's `PATH`.
    pub path: Vec<PathBuf>,
    /// The agent's image, if it has one.
    #[serde(default)]
    pub inside: Option<ImageInfo>,
    /// The other inputs of the bottle's containers, on a container backend.
    #[serde(default)]
    pub contained: Option<ContainerImages>,
    /// As [`Preview::notes`], for the prepared image.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The agent's image and its user account there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// The backend's name for the image.
    pub image: String,
    /// The agent's user id inside; never 0.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// Its user name.
    pub user: String,
    /// Its home directory.
    pub home: String,
    /// The image's environment variables.
    pub env: BTreeMap<String, String>,
}

/// The inputs of a bottle's containers besides the agent's image, by the engine's names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerImages {
    /// The image of the sidecars.
    pub sidecars: String,
    /// The volume with pid 1's program.
    pub program: String,
}

/// A host path that the bottle sees read-only at the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposed {
    /// The path.
    pub path: PathBuf,
    /// Why the agent needs it (`mini's virtual environment`).
    pub why: String,
}
