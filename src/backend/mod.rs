//! What isolates a bottle: one trait, few verbs, each a written promise.
//!
//! ```text
//!             prepare          make_network     start_bundle      start_guest
//!  (nothing) ─────────► facts ─────────────► proxy ───────────► guarded ──────────► pid 1 up
//!                                              remove undoes any of it, in any order, twice
//! ```
//! `freeze` makes a [`Snapshot`] of a bottle that runs or was kept; a later launch begins with one, or with
//! what was kept, by the [`Origin`] of its [`Site`].
//!
//! A backend makes and removes things and opens byte streams to the two ends inside. It decides nothing:
//! order, provisioning and undoing are [`crate::launch`]'s, what the streams mean is the contract's.
//! Exec, terminals, copying and logs are the guest's and so the same everywhere. Only the folder of a
//! backend knows its engine. The promises below are each one function in `tests/backends`, run on every
//! backend that is here.

pub mod docker;
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

pub use self::progress::{Copied, ProgressSink, Step};
pub use self::snapshot::{Frozen, Origin, Snapshot};
use crate::plan::Plan;

/// A way to isolate bottles.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The name in settings, metadata and messages.
    fn name(&self) -> &'static str;

    /// What it can do beyond the promises every backend keeps.
    fn capabilities(&self) -> Capabilities;

    /// What is here and what is missing, with the fix for each finding. Changes nothing, and answers
    /// even when nothing of the engine is installed.
    async fn check(&self) -> Check;

    /// As [`Backend::check`], as far as it decides whether a bottle can be started; a backend may leave out
    /// what takes long and decides nothing.
    async fn check_use(&self) -> Check {
        self.check().await
    }

    /// Whether this backend can run this plan at all.
    ///
    /// # Errors
    /// A sentence fragment that names what the plan needs and this backend has not.
    fn fits(&self, plan: &Plan) -> Result<(), BackendError>;

    /// What a user should know of [`Backend::prepare`] before they agree to it. Makes nothing, and asks
    /// nobody outside this machine.
    ///
    /// # Errors
    /// As [`Backend::prepare`], for what is known to be wrong before anything is made.
    async fn preview(&self, plan: &Plan) -> Result<Preview, BackendError>;

    /// Finds or builds what the bottle is made of (the agent's program and what it needs, an image), and tells
    /// how far that is. Leaves nothing behind that belongs to one bottle. Given up half-way, it leaves what the
    /// next one goes on with, or finds and removes.
    ///
    /// # Errors
    /// [`BackendError`] naming the program or image and the next step.
    async fn prepare(&self, plan: &Plan, told: &ProgressSink<Step>) -> Result<Prepared, BackendError>;

    /// Makes the bottle's private network and the place of its proxy. Nothing runs yet. With an origin of
    /// [`Origin::Kept`] or [`Origin::Snapshot`] the kept files are still as they were.
    ///
    /// # Errors
    /// [`BackendError`]; what was made so far stands in the ledger.
    async fn make_network(&self, site: &Site<'_>) -> Result<(), BackendError>;

    /// Starts the bundle, unprovisioned: its proxy is closed until the keeper provisions it.
    ///
    /// # Errors
    /// As [`Backend::make_network`].
    async fn start_bundle(&self, site: &Site<'_>, prepared: &Prepared) -> Result<(), BackendError>;

    /// Starts pid 1, isolated, with nothing provisioned; nothing of the image or the agent runs. Its files
    /// are what the site's [`Origin`] says: a copy of a snapshot takes the place of kept files in one step,
    /// so that whoever kills this process finds the old ones or the new ones, and never a part.
    ///
    /// # Errors
    /// As [`Backend::make_network`]; also when the snapshot is not there any more.
    async fn start_guest(&self, site: &Site<'_>, prepared: &Prepared) -> Result<(), BackendError>;

    /// Opens the channel to the bundle. May be called again after the last one closed, by another process.
    ///
    /// # Errors
    /// [`BackendError`] when it is not running.
    async fn connect_bundle(&self, slug: &Slug) -> Result<ByteStream, BackendError>;

    /// Opens the channel to pid 1. May be called again after the last one closed, by another process.
    ///
    /// # Errors
    /// [`BackendError`] when it is not running.
    async fn connect_guest(&self, slug: &Slug) -> Result<ByteStream, BackendError>;

    /// Addresses at which other bottles, of whatever home, have something that listens: what this one must not
    /// reach. At most [`OTHERS`] of them; none where bottles have no addresses.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be asked.
    async fn others(&self, slug: &Slug) -> Result<Vec<SocketAddr>, BackendError> {
        let _ = slug;
        Ok(Vec::new())
    }

    /// Every resource of this home that exists, found by what it is labelled with, never by guessing.
    /// Knows nothing of state: a resource whose metadata was lost is reported all the same.
    ///
    /// # Errors
    /// [`BackendError`] when the engine cannot be asked; an absent engine has no resources.
    async fn enumerate(&self) -> Result<Vec<Resource>, BackendError>;

    /// Whether the bottle's workspace holds anything newer than `since`. Answers for a stopped bottle too.
    ///
    /// # Errors
    /// [`BackendError`] when it cannot be looked at; the caller then takes it for work.
    async fn holds_work(&self, slug: &Slug, since: jiff::Timestamp) -> Result<bool, BackendError>;

    /// The limit by which the system ended processes of this bottle, when there is one.
    async fn overrun(&self, _: &Slug) -> Option<Overrun> {
        None
    }

    /// What a snapshot of this bottle would not hold, though its agent may count on it, a sentence fragment
    /// each (`the volume /data`): said to the user before, not found out after. Empty when there is nothing.
    ///
    /// # Errors
    /// [`BackendError`] when it cannot be found out.
    async fn not_frozen(&self, slug: &Slug) -> Result<Vec<String>, BackendError> {
        let _ = slug;
        Ok(Vec::new())
    }

    /// Makes a snapshot of the bottle's own files, of a bottle that runs (its processes go on) or of one that
    /// was kept. It is whole and on disk when this returns.
    ///
    /// Of a running bottle each file is as it was at one moment between begin and end, not all of them at the
    /// same one; a file that never holds still is told of in [`Frozen::notes`]. What only belongs to one
    /// launch is not in it, and no label of ours that would make a copy of it look like a bottle.
    ///
    /// `previous` is the bottle's last snapshot. It stays as it is, whatever happens here, until
    /// [`Backend::remove_snapshot`]; a backend may share with it what did not change. A failure leaves nothing
    /// of the new one; a crash leaves what [`Backend::enumerate`] or [`Backend::snapshots`] finds.
    ///
    /// # Errors
    /// [`BackendError`], of kind `Unsupported` when this backend makes none.
    async fn freeze(
        &self,
        slug: &Slug,
        previous: Option<&Snapshot>,
        told: ProgressSink,
    ) -> Result<Frozen, BackendError> {
        let _ = (slug, previous, told);
        Err(BackendError {
            kind: BackendErrorKind::Unsupported,
            message: format!("the {} backend makes no snapshots", self.name()),
            hint: None,
        })
    }

    /// Every whole snapshot of this home, the newest of a bottle last. Knows nothing of state, as
    /// [`Backend::enumerate`], which does not report them.
    ///
    /// # Errors
    /// As [`Backend::enumerate`].
    async fn snapshots(&self) -> Result<Vec<Snapshot>, BackendError> {
        Ok(Vec::new())
    }

    /// Removes a snapshot of this home, and nothing that another one shares with it. Gone already is no error.
    ///
    /// # Errors
    /// [`BackendError`] when it cannot be removed, or is none of this home's.
    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), BackendError> {
        Err(BackendError::failed(format!(
            "the {} backend makes no snapshots, so {} is none of its",
            self.name(),
            snapshot.reference
        )))
    }

    /// What bottles were made of and none will be any more, on backends that make such things. Never what
    /// something uses, nor a snapshot. Changes nothing.
    ///
    /// # Errors
    /// As [`Backend::enumerate`].
    async fn unused(&self) -> Result<Vec<Unused>, BackendError> {
        Ok(Vec::new())
    }

    /// Removes what [`Backend::unused`] found, but for what has come into use since, and answers with it.
    ///
    /// # Errors
    /// [`BackendError`] when it cannot be removed.
    async fn remove_unused(&self, unused: Vec<Unused>) -> Result<Vec<Unused>, BackendError> {
        drop(unused);
        Ok(Vec::new())
    }

    /// How the user moves a snapshot to another machine: a command to type, when there is one.
    fn moved_by(&self, snapshot: &Snapshot) -> Option<String> {
        let _ = snapshot;
        None
    }

    /// Where the user finds the workspace of a stopped bottle on the host, when that is a folder there.
    fn kept_workspace(&self, slug: &Slug) -> Option<PathBuf>;

    /// Removes resources: processes first, then what they used. One that is gone already is no error;
    /// all are tried, every failure is reported.
    ///
    /// # Errors
    /// [`BackendError`] with all failures in its message.
    async fn remove(&self, resources: &[Resource]) -> Result<(), BackendError>;
}

/// Where the guards write their logs, in a bottle's folder. When root starts a bottle they are another user,
/// and this is theirs: whoever reads in it follows no link.
pub const SIDECAR_LOGS: &str = "logs/guards";

/// Where the git gate has its mirrors, in a bottle's folder; as [`SIDECAR_LOGS`] it may be another user's.
pub const GATE_FOLDER: &str = "git-gate";

/// How many other bottles a new one is tried against: that one of them is out of reach says the same of all, and a
/// launch must not take longer the more there are.
pub const OTHERS: usize = 8;

/// The [`Resource::kind`] of what holds a bottle's files; left in place when its work is preserved.
pub const LAYERS: &str = "layers";

/// Where distributions keep the one file with all roots; in a bottle each leads to what the guest provisions,
/// so that programs that know no variable trust the proxy as well.
pub(crate) const ROOT_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// An open byte stream to a guest or a bundle.
pub type ByteStream = Box<dyn Stream>;

/// What a [`ByteStream`] can do.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Where and for whom a launch phase works.
pub struct Site<'a> {
    /// The plan; complete and immutable.
    pub plan: &'a Plan,
    /// `$BOTTLE_HOME/state/<slug>`: layers, logs, configuration without secrets.
    pub state: &'a Path,
    /// Written to before (or, where the engine names it, right after) a resource exists.
    pub ledger: &'a dyn Ledger,
    /// What its files are at the start.
    pub origin: &'a Origin,
}

/// The list of what a launch made, kept on disk in the bottle's metadata.
pub trait Ledger: Send + Sync {
    /// Records resources, durably, before returning. The same one twice is one.
    ///
    /// # Errors
    /// When the metadata cannot be written: then none of them must be made.
    fn record_all(&self, resources: &[Resource]) -> Result<(), BackendError>;

    /// Records one.
    ///
    /// # Errors
    /// As [`Ledger::record_all`].
    fn record(&self, resource: Resource) -> Result<(), BackendError> {
        self.record_all(&[resource])
    }
}

/// Something a backend made for one bottle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Resource {
    /// The bottle it belongs to.
    pub slug: Slug,
    /// The backend's own word for it (`guest-process`, `runtime-folder`, `network`).
    pub kind: String,
    /// The backend's own id (`pid:start-time`, a path, an engine's id).
    pub id: String,
}

/// Something that no bottle needs any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The backend's own word for it (`image`).
    pub kind: String,
    /// The backend's own name or id.
    pub id: String,
    /// Why nobody needs it, as the rest of a sentence.
    pub why: String,
    /// Its size, with what it shares with others, where that is known.
    pub bytes: Option<u64>,
}

/// What a backend can do beyond the promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Keeps what it promises about isolation; only the fake backend does not.
    pub isolates: bool,
    /// Can freeze a bottle into a snapshot.
    pub snapshot: bool,
    /// Can do so while the bottle goes on.
    pub live_commit: bool,
    /// Can stop and continue a bottle.
    pub pause: bool,
}

/// What [`Backend::check`] found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Whether a bottle can be started.
    pub usable: bool,
    /// What is missing or weaker than it could be.
    pub findings: Vec<Finding>,
}

/// One line of `bottle doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was found.
    pub what: String,
    /// The exact fix.
    pub fix: String,
}

/// What [`Backend::preview`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preview {
    /// Paths of the host beyond the system's own that the bottle will see, read-only.
    pub exposed: Vec<Exposed>,
    /// What will be built, fetched or loaded, and why, a sentence fragment each.
    pub makes: Vec<String>,
    /// How what it is built of differs from what was built before, as lines of a unified difference.
    pub changed: Vec<String>,
    /// What of its image has no effect or does not last, as far as the image is there already.
    pub notes: Vec<String>,
    /// Which limits are kept only as well as can be here, a sentence each.
    pub limits: Vec<String>,
}

/// Facts that [`Backend::prepare`] found, for [`Backend::start_guest`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Prepared {
    /// Paths of the host beyond the system's own that the bottle sees, read-only.
    pub exposed: Vec<Exposed>,
    /// The program as the bottle sees it, when it was looked up on the host.
    pub program: Option<String>,
    /// Folders put in front of the bottle's `PATH`.
    pub path: Vec<PathBuf>,
    /// The image that the agent works in, when it works in one.
    #[serde(default)]
    pub inside: Option<Inside>,
    /// What the bottle's containers are made of beside that, on a backend of containers.
    #[serde(default)]
    pub contained: Option<Contained>,
    /// As [`Preview::notes`], of the image that was made.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The image that an agent works in, and who it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// The image, by the backend's own name for it.
    pub image: String,
    /// The agent's user id inside; never 0.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// Its name.
    pub user: String,
    /// Its home.
    pub home: String,
    /// What the image adds to the environment.
    pub env: BTreeMap<String, String>,
}

/// What a bottle's containers are made of, in an engine's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contained {
    /// The image of the sidecars.
    pub sidecars: String,
    /// The volume with pid 1's program.
    pub program: String,
}

/// A path of the host that the bottle sees, read-only, at the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposed {
    /// The path.
    pub path: PathBuf,
    /// Why the agent needs it (`mini's virtual environment`).
    pub why: String,
}

/// Why a backend could not do something: a lower-case fragment and the next step.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    /// What kind, for the exit code.
    pub kind: BackendErrorKind,
    /// What failed, on what, and why.
    pub message: String,
    /// What the user does next.
    pub hint: Option<String>,
}

/// See [`BackendError::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendErrorKind {
    /// The backend is not usable here, or refused (exit 4).
    Unavailable,
    /// The plan asks for something it cannot do (exit 4).
    Unsupported,
    /// The agent's program is not there (exit 127 with `-p`, else 4).
    ProgramMissing,
    /// It is there and cannot be spoken to now (exit 1).
    Busy,
    /// Something failed on the way (exit 1).
    Failed,
}

impl BackendError {
    /// A failure on the way.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: BackendErrorKind::Failed, message: message.into(), hint: None }
    }

    /// It is there and cannot be spoken to now.
    #[must_use]
    pub fn busy(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind: BackendErrorKind::Busy, message: message.into(), hint: Some(hint.into()) }
    }

    /// The backend is not usable here.
    #[must_use]
    pub fn unavailable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind: BackendErrorKind::Unavailable, message: message.into(), hint: Some(hint.into()) }
    }

    /// Limits that a backend does not keep: a limit must not look as if it were kept.
    ///
    /// # Errors
    /// The first of `asked` that a plan asks for, by its key under `resources`.
    pub(crate) fn refuse_limits(backend: &str, asked: &[(bool, &str)]) -> Result<(), Self> {
        let Some((_, key)) = asked.iter().find(|(asked, _)| *asked) else { return Ok(()) };
        Err(Self {
            kind: BackendErrorKind::Unsupported,
            message: format!("`resources.{key}` is not available on the {backend} backend"),
            hint: Some(format!("take `{key}` out of the manifest, or use another backend")),
        })
    }

    /// Adds the next step.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
