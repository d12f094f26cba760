//! Manages one repository: its mirror (the gate's local copy), its credentials, and its state until the
//! bottle stops.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bottle_contract::names::Name;
use bottle_contract::session::gate::{GateRefs, GateRepo};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use crate::agent_messages::Failure;
use crate::git::{Git, GitError, Output, ReservedFds};
use crate::mirror;
use crate::refs::Update;
use crate::upstream::{ObjectFormat, TooManyRefs, Trace, Upstream};
use crate::upstream_credentials::{AuthError, UpstreamAuth};

/// The time limit for an upstream to list its refs. After it, the refresh fails.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// The time limit for fetching an upstream's objects. After it, the refresh fails.
const FETCHED_WITHIN: Duration = Duration::from_secs(900);

/// The time limit for one git command on the mirror that does not contact the upstream. After it, the command
/// is killed.
const STEP_WITHIN: Duration = Duration::from_secs(60);

/// If a fetch changes the number of refs by more than this, the gate packs all refs into one file. Without
/// this, every git command that lists refs would read a file for each ref.
const MOST_LOOSE: usize = 32;

/// The refs of an upstream that the mirror copies.
const MIRRORED: [&str; 3] = ["refs/heads/*", "refs/tags/*", "refs/notes/*"];

/// Why a repository cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("the mirror of {0}")]
    Mirror(Name, #[source] io::Error),
    #[error("the repository {0}")]
    Auth(Name, #[source] AuthError),
}

/// Why a mirror cannot be refreshed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefreshError {
    #[error("not refreshed yet")]
    NotYet,
    #[error("cannot reach the upstream of {repo}")]
    Upstream { repo: String, source: UpstreamError },
    #[error("the mirror of {repo}")]
    Mirror { repo: String, source: MirrorError },
}

impl RefreshError {
    /// A hint at what the agent can do about the error.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        matches!(self, Self::Upstream { .. }).then_some("try again, or notify the user")
    }
}

/// The cause of a [`RefreshError::Upstream`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Refs(#[from] TooManyRefs),
}

/// The cause of a [`RefreshError::Mirror`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns the output of a git command that used the upstream, or parses why it failed.
fn succeeded(output: Output) -> Result<Output, Failure> {
    if output.success { Ok(output) } else { Err(Failure::parse(&output.stderr)) }
}

/// The result of a refresh, which all tasks that wait for it share.
type Refreshed = Result<Arc<Upstream>, Arc<RefreshError>>;

/// One repository that the bottle may use.
pub(crate) struct Repo {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) git: Git,
    pub(crate) rules: GateRefs,
    pub(crate) supervise: bool,
    pub(crate) auth: UpstreamAuth,
    stale_ok: bool,
    refreshed: Mutex<Refresh>,
    /// Every push holds this lock for reading until it ends, so that clean-up does not remove its quarantine.
    pub(crate) receiving: Arc<RwLock<()>>,
    /// A push holds this lock while it is scanned and forwarded, but not while the user decides.
    pub(crate) pushing: Mutex<()>,
    /// The fingerprints of findings that the user approved.
    approved: StdMutex<HashSet<[u8; 32]>>,
    /// The refs that this gate created in the upstream.
    created: StdMutex<HashSet<String>>,
}

/// The most recent refresh of the mirror.
struct Refresh {
    started: Option<Instant>,
    result: Refreshed,
}

impl Repo {
    /// Opens or creates a mirror, and prepares the credentials. A new mirror is empty until it is refreshed.
    pub(crate) async fn open(
        folder: &Path,
        repo: GateRepo,
        roots: &str,
        fds: &ReservedFds,
    ) -> Result<Self, OpenError> {
        let path = folder.join(format!("{}.git", repo.name));
        mirror::make(folder, &path, mirror::format(&path))
            .map_err(|error| OpenError::Mirror(repo.name.clone(), error))?;
        let git = Git::new(&path);
        let auth = UpstreamAuth::prepare(folder, &git, &repo, roots, fds)
            .await
            .map_err(|error| OpenError::Auth(repo.name.clone(), error))?;
        Ok(Self {
            url: repo.url,
            git,
            rules: repo.refs,
            supervise: repo.supervise,
            auth,
            stale_ok: repo.stale_ok,
            refreshed: Mutex::new(Refresh { started: None, result: Err(RefreshError::NotYet.into()) }),
            receiving: Arc::default(),
            pushing: Mutex::default(),
            approved: StdMutex::default(),
            created: StdMutex::default(),
            name: repo.name.to_string(),
        })
    }

    /// Updates the mirror to the current state of the upstream. Calls during a refresh wait for the next
    /// refresh, and share its result.
    pub(crate) async fn refresh(&self, fds: &ReservedFds) -> Refreshed {
        let requested = Instant::now();
        let mut last = self.refreshed.lock().await;
        if last.started.is_none_or(|started| started < requested) {
            let started = Instant::now();
            let result = self.fetch(fds).await.map(Arc::new).map_err(Arc::new);
            *last = Refresh { started: Some(started), result };
        }
        last.result.clone()
    }

    /// Refreshes the mirror before a fetch by the bottle. With `stale_ok`, a failed refresh is no error, and
    /// the fetch is served from the old mirror.
    pub(crate) async fn refresh_to_read(&self, fds: &ReservedFds) -> Result<(), Arc<RefreshError>> {
        match self.refresh(fds).await {
            Err(why) if !self.stale_ok => Err(why),
            _ => Ok(()),
        }
    }

    /// The state of the upstream at the most recent refresh.
    pub(crate) async fn upstream(&self) -> Refreshed {
        self.refreshed.lock().await.result.clone()
    }

    /// The number of the upstream's refs; `None` if it is unknown or a refresh is in progress.
    pub(crate) fn ref_count(&self) -> Option<usize> {
        Some(self.refreshed.try_lock().ok()?.result.as_ref().ok()?.refs.len())
    }

    async fn fetch(&self, fds: &ReservedFds) -> Result<Upstream, RefreshError> {
        let trace = self.trace(Trace::EVENTS).map_err(|error| self.mirror_error(error))?;
        let local = ["for-each-ref", "--format=%(refname) %(objectname)"];
        let (listed, local) = tokio::join!(self.list(fds, &trace), self.git.run(fds, &local, STEP_WITHIN));
        let parse =
            |listed: Output| Ok(Upstream::parse(&String::from_utf8_lossy(&succeeded(listed)?.stdout))?);
        let mut upstream =
            listed.map_err(UpstreamError::from).and_then(parse).map_err(|error| self.unreachable(error))?;
        upstream.reports_aliases = trace.shows_version_2();
        if upstream.refs.is_empty() {
            upstream.format = self.empty_upstream_format(fds).await;
        }
        let local = local.map_err(|error| self.mirror_error(error))?;
        let local = String::from_utf8_lossy(&local.stdout);
        let local = local.lines().filter_map(|line| line.split_once(' '));
        let mut local: BTreeMap<String, String> =
            local.map(|(name, id)| (name.to_owned(), id.to_owned())).collect();
        if upstream.format != mirror::format(&self.git.mirror) {
            self.recreate(upstream.format)?;
            local.clear();
        }
        if local != upstream.refs {
            self.fetch_objects(fds, upstream.format).await?;
            if upstream.refs.len().abs_diff(local.len()) > MOST_LOOSE {
                // If this fails, each ref remains a separate file, which only slows git down.
                let _ = self.git.run(fds, &["pack-refs", "--all"], STEP_WITHIN).await;
            }
        }
        self.follow_default(fds, &upstream).await;
        Ok(upstream)
    }

    /// Fetches objects and refs of the upstream into the mirror. If the mirror is damaged, it is replaced by
    /// a new one.
    async fn fetch_objects(&self, fds: &ReservedFds, format: ObjectFormat) -> Result<(), RefreshError> {
        let mut fetch: Vec<String> =
            ["fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head"]
                .map(str::to_owned)
                .into();
        fetch.extend(["--no-auto-maintenance", "--no-recurse-submodules", "--"].map(str::to_owned));
        fetch.push(self.url.clone());
        fetch.extend(MIRRORED.map(|refs| format!("+{refs}:{refs}")));
        self.unlock().map_err(|error| self.mirror_error(error))?;
        let mut fetched = self.run_upstream(fds, fetch.clone(), &[], FETCHED_WITHIN).await;
        if matches!(&fetched, Ok(output) if !output.success) && !self.is_complete(fds).await {
            tracing::warn!(repository = self.name, "the mirror is damaged; recreating it");
            self.recreate(format)?;
            fetched = self.run_upstream(fds, fetch, &[], FETCHED_WITHIN).await;
        }
        let fetched = fetched.map_err(UpstreamError::from).and_then(|output| Ok(succeeded(output)?));
        fetched.map(drop).map_err(|error| self.unreachable(error))
    }

    /// Sets the mirror's `HEAD` to the upstream's default branch.
    async fn follow_default(&self, fds: &ReservedFds, upstream: &Upstream) {
        let Some(default) = upstream.default.as_ref().filter(|name| name.starts_with("refs/heads/")) else {
            return;
        };
        if fs::read(self.git.mirror.join("HEAD")).ok() != Some(format!("ref: {default}\n").into()) {
            // If git refuses the name, the mirror keeps the previous one. The name affects only the first
            // checkout of a clone.
            let _ = self.git.run(fds, &["symbolic-ref", "HEAD", default], STEP_WITHIN).await;
        }
    }

    fn recreate(&self, format: ObjectFormat) -> Result<(), RefreshError> {
        mirror::recreate(&self.git.mirror, format).map_err(|error| self.mirror_error(error))
    }

    fn unreachable(&self, source: UpstreamError) -> RefreshError {
        RefreshError::Upstream { repo: self.name.clone(), source }
    }

    fn mirror_error(&self, source: impl Into<MirrorError>) -> RefreshError {
        RefreshError::Mirror { repo: self.name.clone(), source: source.into() }
    }

    /// Lists the upstream's refs. Retries once if the shared connection is dead, for example after the host
    /// slept.
    async fn list(&self, fds: &ReservedFds, trace: &Trace) -> Result<Output, GitError> {
        let mut list = vec!["ls-remote".to_owned(), "--symref".to_owned(), "--".to_owned(), self.url.clone()];
        list.extend(["HEAD".to_owned()].into_iter().chain(MIRRORED.map(str::to_owned)));
        let recorded = [trace.env()];
        let listed = self.run_upstream(fds, list.clone(), &recorded, LISTED_WITHIN).await;
        if matches!(&listed, Ok(output) if output.success) || !self.auth.has_lost_connection().await {
            return listed;
        }
        self.run_upstream(fds, list, &recorded, LISTED_WITHIN).await
    }

    /// Determines the object format of an upstream that has no refs. The upstream reports its format before
    /// the list of refs, and git shows the format only in its packet trace.
    async fn empty_upstream_format(&self, fds: &ReservedFds) -> ObjectFormat {
        let Ok(trace) = self.trace(Trace::PACKETS) else { return ObjectFormat::default() };
        let list = ["ls-remote", "--", &self.url, "HEAD"].map(str::to_owned).into();
        let listed = self.run_upstream(fds, list, &[trace.env()], LISTED_WITHIN).await;
        let sha256 = listed.is_ok() && trace.read().contains("object-format=sha256");
        if sha256 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
    }

    /// Creates a trace file for the next git command that contacts the upstream.
    fn trace(&self, variable: &'static str) -> io::Result<Trace> {
        Trace::new(variable, self.git.mirror.with_extension("record"))
    }

    /// Whether git finds all objects that the mirror's refs reach.
    async fn is_complete(&self, fds: &ReservedFds) -> bool {
        let arguments = ["rev-list", "--objects", "--quiet", "--all"];
        let walked = self.git.run(fds, &arguments, FETCHED_WITHIN).await;
        walked.is_ok_and(|output| output.success && output.stderr.is_empty())
    }

    /// Removes lock files that an interrupted refresh left behind. Does nothing during a push, because a push
    /// holds lock files too.
    fn unlock(&self) -> io::Result<()> {
        let Ok(_alone) = self.receiving.try_write() else { return Ok(()) };
        mirror::unlock(&self.git.mirror)
    }

    /// Removes quarantine folders that killed pushes left behind. Does nothing during a push.
    pub(crate) fn clean_up(&self) {
        let Ok(_alone) = self.receiving.try_write() else { return };
        let objects = self.git.mirror.join("objects");
        if let Err(error) = mirror::remove(&objects, 0, &|name| name.starts_with("tmp_objdir")) {
            tracing::warn!(repository = self.name, %error, "cannot remove the quarantine of a killed push");
        }
    }

    /// Runs git with the credentials for the upstream. Removes the token from git's output.
    pub(crate) async fn run_upstream(
        &self,
        fds: &ReservedFds,
        arguments: Vec<String>,
        env: &[(String, String)],
        within: Duration,
    ) -> Result<Output, GitError> {
        let access = self.auth.access(fds).await.map_err(|error| GitError::Run("git".to_owned(), error))?;
        let git = self.git.with_env(access.env.iter().chain(env).cloned());
        let passed: Vec<_> = access.secret.iter().collect();
        let complete = |numbers: &[i32]| {
            let mut all = access.configuration(numbers);
            all.extend(arguments);
            all
        };
        let mut output = git.run_with_fds(fds, &passed, complete, within).await?;
        output.stdout = self.auth.redact(output.stdout);
        output.stderr = String::from_utf8_lossy(&self.auth.redact(output.stderr.into_bytes())).into_owned();
        Ok(output)
    }

    /// Whether the user has approved a finding with this fingerprint.
    pub(crate) fn is_approved(&self, fingerprint: &[u8; 32]) -> bool {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(fingerprint)
    }

    /// Stores the user's approval until the bottle stops.
    pub(crate) fn approve(&self, fingerprints: impl IntoIterator<Item = [u8; 32]>) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).extend(fingerprints);
    }

    /// Whether this gate created the ref. Such a ref cannot be an alias of an older ref.
    pub(crate) fn has_created(&self, name: &str) -> bool {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Records which refs a push created or deleted, until the bottle stops.
    pub(crate) fn record_pushed(&self, updates: &[Update]) {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        for update in updates {
            if update.deletes() {
                created.remove(&update.name);
            } else if update.creates() {
                created.insert(update.name.clone());
            }
        }
    }
}
