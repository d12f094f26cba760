//! Manages one repository of the bottle: its mirror (the gate's local copy), its credentials, and its state until the
//! bottle stops.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bottle_policy::names::Name;
use bottle_protocol::session::git_gate::{GateRefs, GateRepo};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use crate::agent_messages::Failure;
use crate::git::{Git, GitError, Output, ReservedFds, UPSTREAM_MEMORY};
use crate::mirror;
use crate::refs::Update;
use crate::upstream::{Features, MIRRORED, ObjectFormat, TooManyRefs, Trace, Upstream, packed_ids, redirect};
use crate::upstream_credentials::{AuthError, UpstreamAuth};

/// The time limit for an upstream to list its refs. When the limit is reached, the refresh fails.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// The time limit for fetching an upstream's objects. When the limit is reached, the refresh fails.
const FETCHED_WITHIN: Duration = Duration::from_secs(900);

/// The time limit for one git command on the mirror that does not contact the upstream. When the limit is reached, the
/// command is killed.
const STEP_WITHIN: Duration = Duration::from_secs(60);

/// The maximum number of objects that the gate fetches only by their ids. git compares each id with all other ids
/// (`apply_negative_refspecs` in git's `remote.c`). The comparison takes 1 s for 40,000 ids, and 25 s for 200,000 ids.
const MOST_IDS: usize = 4_000;

/// The maximum number of times that one refresh lists the refs of an upstream. The refs are listed again if they change
/// while the gate fetches their objects.
const MOST_LISTS: usize = 3;

/// The maximum number of characters that are shown of the new address of an upstream.
const MOST_ADDRESS: usize = 300;

/// The reason why a repository cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("the mirror of {0}")]
    Mirror(Name, #[source] io::Error),
    #[error("the repository {0}")]
    Auth(Name, #[source] AuthError),
}

/// The reason why a mirror cannot be refreshed.
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
    /// Returns a hint about what the agent can do about the error.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Upstream { source: UpstreamError::Moved(_), .. } => Some("notify the user"),
            Self::Upstream { .. } => Some("try again, or notify the user"),
            _ => None,
        }
    }

    /// Returns whether the fetch failed because the upstream no longer has an object that its list of refs names.
    fn is_outdated(&self) -> bool {
        let Self::Upstream { source: UpstreamError::Failed(Failure::Other(words)), .. } = self else {
            return false;
        };
        words.contains("not our ref") || words.contains("unadvertised object")
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
    #[error("it has moved to {0:?}; the user can change `url` of the repository")]
    Moved(String),
}

/// The cause of a [`RefreshError::Mirror`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns the output of a git command that used the upstream, or the cause of the command's failure.
fn succeeded(output: Output) -> Result<Output, Failure> {
    if output.success { Ok(output) } else { Err(Failure::parse(&output.stderr)) }
}

/// The result of a refresh. All tasks that wait for the same refresh share this result.
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
    /// A lock that every push holds for reading until the push ends, so that `clean_up` does not remove the push's
    /// quarantine.
    pub(crate) receiving: Arc<RwLock<()>>,
    /// A lock that a push holds during the last check of its refs and while it is forwarded.
    pub(crate) pushing: Mutex<()>,
    /// The fingerprints of findings that the user approved.
    approved: StdMutex<HashSet<[u8; 32]>>,
    /// The refs that this gate created in the upstream.
    created: StdMutex<HashSet<String>>,
    /// The features of the upstream's `receive-pack`, if known.
    features: StdMutex<Option<Features>>,
    /// The object ids of upstream refs that are not mirrored, if the mirror already has their objects.
    fetched: Mutex<HashSet<String>>,
}

/// The most recent refresh of the mirror.
struct Refresh {
    started: Option<Instant>,
    result: Refreshed,
}

impl Repo {
    /// Opens or creates a mirror, and prepares the credentials. A new mirror is empty until it is refreshed.
    pub(crate) async fn open(
        directory: &Path,
        repo: GateRepo,
        roots: &str,
        fds: &ReservedFds,
    ) -> Result<Self, OpenError> {
        let path = directory.join(format!("{}.git", repo.name));
        mirror::make(directory, &path, mirror::format(&path))
            .map_err(|error| OpenError::Mirror(repo.name.clone(), error))?;
        let git = Git::new(&path);
        let auth = UpstreamAuth::prepare(directory, &git, &repo, roots, fds)
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
            features: StdMutex::default(),
            fetched: Mutex::default(),
            name: repo.name.to_string(),
        })
    }

    /// Updates the mirror to the current state of the upstream. Calls during a refresh wait for the next refresh, and
    /// share the result of the next refresh.
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

    /// Refreshes the mirror before a fetch by the bottle. With the setting `stale_ok`, a failed refresh is not an
    /// error, and the fetch is served from the mirror without the refresh.
    pub(crate) async fn refresh_to_read(&self, fds: &ReservedFds) -> Result<(), Arc<RefreshError>> {
        match self.refresh(fds).await {
            Err(why) if !self.stale_ok => Err(why),
            _ => Ok(()),
        }
    }

    /// Returns the state of the upstream at the most recent refresh.
    pub(crate) async fn upstream(&self) -> Refreshed {
        self.refreshed.lock().await.result.clone()
    }

    /// Returns the number of the upstream's mirrored refs. Returns `None` if the number is unknown or a refresh is in
    /// progress.
    pub(crate) fn ref_count(&self) -> Option<usize> {
        Some(self.refreshed.try_lock().ok()?.result.as_ref().ok()?.refs.len())
    }

    async fn fetch(&self, fds: &ReservedFds) -> Result<Upstream, RefreshError> {
        let mut lists = 1;
        loop {
            let upstream = self.list_refs(fds).await?;
            match self.follow(fds, &upstream).await {
                // The upstream no longer has an object that the list names, so the refs are listed again.
                Err(error) if error.is_outdated() && lists < MOST_LISTS => lists += 1,
                followed => return followed.map(|()| upstream),
            }
        }
    }

    /// Lists the refs of the upstream.
    async fn list_refs(&self, fds: &ReservedFds) -> Result<Upstream, RefreshError> {
        let trace = self.trace(Trace::EVENTS).map_err(|error| self.mirror_error(error))?;
        let listed = match self.list(fds, &trace).await.map(succeeded) {
            Ok(Ok(listed)) => listed,
            Ok(Err(failure)) => return Err(self.unreachable(self.explain(fds, failure).await)),
            Err(error) => return Err(self.unreachable(error.into())),
        };
        let mut upstream =
            Upstream::parse(&listed.stdout, &self.rules).map_err(|error| self.unreachable(error.into()))?;
        upstream.reports_aliases = trace.shows_version_2();
        if upstream.refs.is_empty() {
            upstream.format = self.empty_upstream_format(fds).await;
        }
        Ok(upstream)
    }

    /// Fetches the objects of the upstream's refs, and then makes the mirrored refs equal to the upstream's refs.
    async fn follow(&self, fds: &ReservedFds, upstream: &Upstream) -> Result<(), RefreshError> {
        if upstream.format != mirror::format(&self.git.mirror) {
            self.recreate(upstream.format).await?;
        }
        let (old, new) = (mirror::packed_refs(&self.git.mirror), upstream.packed_refs());
        let is_shallow = mirror::is_shallow(&self.git.mirror);
        if old != new || is_shallow {
            let all: HashSet<&str> = upstream.refs.values().map(String::as_str).collect();
            let known = if is_shallow { HashSet::new() } else { packed_ids(&old) };
            let missing: HashSet<&str> = all.difference(&known).copied().collect();
            self.unlock().map_err(|error| self.mirror_error(error))?;
            match self.fetch_mirrored(fds, &missing).await {
                Err(_) if !self.is_complete(fds).await => {
                    tracing::warn!(repository = self.name, "the mirror is damaged; recreating it");
                    self.recreate(upstream.format).await?;
                    self.fetch_mirrored(fds, &all).await?;
                }
                fetched => fetched?,
            }
            mirror::write_refs(&self.git.mirror, &new).map_err(|error| self.mirror_error(error))?;
        }
        self.follow_default(fds, upstream).await;
        Ok(())
    }

    /// Fetches objects of the mirrored refs by their ids. If there are many ids, git first fetches the refs of the
    /// upstream by patterns. After that, only the objects that are still missing are fetched by their ids: objects of
    /// refs that have changed since they were listed, and of refs that no pattern matches. If the mirror is shallow, it
    /// is deepened as far as the upstream's history goes.
    async fn fetch_mirrored(&self, fds: &ReservedFds, ids: &HashSet<&str>) -> Result<(), RefreshError> {
        let deepen = mirror::is_shallow(&self.git.mirror).then_some("--unshallow");
        if ids.len() <= MOST_IDS {
            return self.fetch_with(fds, deepen.as_slice(), ids).await;
        }
        // With `--dry-run`, git fetches all objects but creates no refs. Without this option, git would create one file
        // for each ref.
        let options: Vec<&str> = deepen.into_iter().chain(["--dry-run"]).collect();
        let pattern = |prefix: &str| format!("{prefix}*:refs/fetched/{prefix}*\n");
        self.run_fetch(fds, &options, &MIRRORED.map(pattern).concat()).await?;
        let mut missing = ids.clone();
        self.keep_missing(fds, &mut missing).await?;
        self.fetch_objects(fds, &missing).await
    }

    /// Fetches objects of the upstream by their ids. git contacts the upstream only if the mirror does not have all of
    /// these objects.
    async fn fetch_objects(&self, fds: &ReservedFds, ids: &HashSet<&str>) -> Result<(), RefreshError> {
        self.fetch_with(fds, &[], ids).await
    }

    /// Fetches objects by their ids, with additional options of `git fetch`.
    async fn fetch_with(
        &self,
        fds: &ReservedFds,
        options: &[&str],
        ids: &HashSet<&str>,
    ) -> Result<(), RefreshError> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids: String = ids.iter().flat_map(|id| [*id, "\n"]).collect();
        self.run_fetch(fds, options, &ids).await
    }

    /// Runs `git fetch` with `refspecs`. `refspecs` contains one refspec on each line.
    async fn run_fetch(
        &self,
        fds: &ReservedFds,
        options: &[&str],
        refspecs: &str,
    ) -> Result<(), RefreshError> {
        let fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"];
        // With `--update-shallow`, the history in the mirror of a shallow upstream ends at the same commits as the
        // history in the upstream.
        let more = ["--no-recurse-submodules", "--update-shallow", "--stdin", "--", &self.url];
        let arguments = fetch.iter().chain(options).chain(&more).map(|&word| word.to_owned()).collect();
        let fetched = self.run_upstream(fds, arguments, refspecs.as_bytes(), &[], FETCHED_WITHIN).await;
        let fetched = fetched.map_err(UpstreamError::from).and_then(|output| Ok(succeeded(output)?));
        fetched.map(drop).map_err(|error| self.unreachable(error))
    }

    /// Fetches the objects `ids` of refs that are not mirrored, because a client is about to fetch them.
    pub(crate) async fn fetch_others(
        &self,
        fds: &ReservedFds,
        ids: &HashSet<&str>,
    ) -> Result<(), RefreshError> {
        let mut fetched = self.fetched.lock().await;
        let missing: HashSet<&str> = ids.iter().copied().filter(|id| !fetched.contains(*id)).collect();
        self.fetch_objects(fds, &missing).await?;
        fetched.extend(missing.into_iter().map(str::to_owned));
        Ok(())
    }

    /// Fetches the `wanted` objects that the mirror does not have. It is not an error if the upstream does not serve
    /// them, because git reports missing objects to the client when it answers from the mirror.
    pub(crate) async fn fetch_wanted(
        &self,
        fds: &ReservedFds,
        mut wanted: HashSet<&str>,
    ) -> Result<(), RefreshError> {
        if let Ok(upstream) = self.upstream().await {
            let listed: HashSet<&str> = upstream.refs.values().map(String::as_str).collect();
            wanted.retain(|id| !listed.contains(id));
        }
        self.keep_missing(fds, &mut wanted).await?;
        if wanted.is_empty() {
            return Ok(());
        }
        // The lock prevents the mirror from being recreated during the fetch.
        let _fetched = self.fetched.lock().await;
        self.fetch_objects(fds, &wanted)
            .await
            .or_else(|error| if error.is_outdated() { Ok(()) } else { Err(error) })
    }

    /// Removes the ids of objects that the mirror has from `ids`.
    async fn keep_missing(&self, fds: &ReservedFds, ids: &mut HashSet<&str>) -> Result<(), RefreshError> {
        if ids.is_empty() {
            return Ok(());
        }
        let input: String = ids.iter().flat_map(|id| [*id, "\n"]).collect();
        let arguments = |_: &[i32]| ["cat-file", "--batch-check", "--buffer"].map(str::to_owned).into();
        let checked = self.git.run_with_fds(fds, &[], arguments, input.as_bytes(), STEP_WITHIN).await;
        let checked = checked.map_err(|error| self.mirror_error(error))?;
        let listed = String::from_utf8_lossy(&checked.stdout);
        let missing: HashSet<&str> =
            listed.lines().filter_map(|line| line.strip_suffix(" missing")).collect();
        ids.retain(|id| missing.contains(id));
        Ok(())
    }

    /// Returns the target of the mirror's `HEAD`.
    pub(crate) fn head(&self) -> Option<String> {
        let head = fs::read_to_string(self.git.mirror.join("HEAD")).ok()?;
        Some(head.strip_prefix("ref: ")?.trim_end().to_owned())
    }

    /// Returns the features of the upstream's `receive-pack`. Returns no features if they are unknown.
    pub(crate) fn features(&self) -> Features {
        self.features.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default()
    }

    /// Asks the upstream for the features of its `receive-pack`. git shows the features only in its packet trace. The
    /// gate asks only once, but if the upstream refuses pushes, the gate asks again at the next push.
    pub(crate) async fn learn_features(&self, fds: &ReservedFds) {
        let known = self.features.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let file = self.git.mirror.with_extension("features");
        let Some(Ok(trace)) = (!known).then(|| Trace::new(Trace::PACKETS, file)) else { return };
        // No local ref matches this refspec, so git connects to the upstream and pushes nothing.
        let nothing = "refs/nothing/*:refs/nothing/*";
        let push = ["push", "--dry-run", "--no-verify", "--no-follow-tags", "--", &self.url, nothing];
        let asked =
            self.run_upstream(fds, push.map(str::to_owned).into(), &[], &[trace.env()], LISTED_WITHIN).await;
        if let (Ok(_), Some(features)) = (asked, Features::parse(&trace.read())) {
            *self.features.lock().unwrap_or_else(PoisonError::into_inner) = Some(features);
        }
    }

    /// Sets the mirror's `HEAD` to the upstream's default branch.
    async fn follow_default(&self, fds: &ReservedFds, upstream: &Upstream) {
        let Some(default) = upstream.default.as_ref().filter(|name| name.starts_with("refs/heads/")) else {
            return;
        };
        if fs::read(self.git.mirror.join("HEAD")).ok() != Some(format!("ref: {default}\n").into()) {
            // If git refuses the new name, the mirror keeps the previous `HEAD`. `HEAD` affects only the first checkout
            // of a clone.
            let _ = self.git.run(fds, &["symbolic-ref", "HEAD", default], STEP_WITHIN).await;
        }
    }

    async fn recreate(&self, format: ObjectFormat) -> Result<(), RefreshError> {
        self.fetched.lock().await.clear();
        mirror::recreate(&self.git.mirror, format).map_err(|error| self.mirror_error(error))
    }

    fn unreachable(&self, source: UpstreamError) -> RefreshError {
        RefreshError::Upstream { repo: self.name.clone(), source }
    }

    fn mirror_error(&self, source: impl Into<MirrorError>) -> RefreshError {
        RefreshError::Mirror { repo: self.name.clone(), source: source.into() }
    }

    /// Runs `git ls-remote`. Retries once if the shared ssh connection is dead, for example after the host slept.
    async fn list(&self, fds: &ReservedFds, trace: &Trace) -> Result<Output, GitError> {
        let list = vec!["ls-remote".to_owned(), "--symref".to_owned(), "--".to_owned(), self.url.clone()];
        let recorded = [trace.env()];
        let listed = self.run_upstream(fds, list.clone(), &[], &recorded, LISTED_WITHIN).await;
        if matches!(&listed, Ok(output) if output.success) || !self.auth.has_lost_connection().await {
            return listed;
        }
        self.run_upstream(fds, list, &[], &recorded, LISTED_WITHIN).await
    }

    /// Finds the new address of an upstream that redirects git. git does not follow the redirect, because the user
    /// chose the address. git shows the new address only in its trace.
    async fn explain(&self, fds: &ReservedFds, failure: Failure) -> UpstreamError {
        if !failure.is_redirect() {
            return failure.into();
        }
        let Ok(trace) = self.trace(Trace::HTTP) else { return failure.into() };
        let list = ["ls-remote", "--", &self.url, "HEAD"].map(str::to_owned).into();
        let env = [trace.env(), ("GIT_TRACE_CURL_NO_DATA".to_owned(), "1".to_owned())];
        let _ = self.run_upstream(fds, list, &[], &env, LISTED_WITHIN).await;
        let text = self.auth.redact(trace.read().into_bytes());
        match redirect(&String::from_utf8_lossy(&text)) {
            Some(address) => UpstreamError::Moved(address.chars().take(MOST_ADDRESS).collect()),
            None => failure.into(),
        }
    }

    /// Determines the object format of an upstream that has no refs. The upstream reports its object format before the
    /// list of refs. git shows the format only in its packet trace.
    async fn empty_upstream_format(&self, fds: &ReservedFds) -> ObjectFormat {
        let Ok(trace) = self.trace(Trace::PACKETS) else { return ObjectFormat::default() };
        let list = ["ls-remote", "--", &self.url, "HEAD"].map(str::to_owned).into();
        let listed = self.run_upstream(fds, list, &[], &[trace.env()], LISTED_WITHIN).await;
        let sha256 = listed.is_ok() && trace.read().contains("object-format=sha256");
        if sha256 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
    }

    /// Creates a trace file for the next git command that contacts the upstream.
    fn trace(&self, variable: &'static str) -> io::Result<Trace> {
        Trace::new(variable, self.git.mirror.with_extension("record"))
    }

    /// Returns whether the mirror contains all objects that its refs reach.
    async fn is_complete(&self, fds: &ReservedFds) -> bool {
        let arguments = ["rev-list", "--objects", "--quiet", "--all"];
        let walked = self.git.with_memory(UPSTREAM_MEMORY).run(fds, &arguments, FETCHED_WITHIN).await;
        walked.is_ok_and(|output| output.success && output.stderr.is_empty())
    }

    /// Removes the lock files of an interrupted refresh. Does nothing during a push, because a push uses lock files
    /// too.
    fn unlock(&self) -> io::Result<()> {
        let Ok(_alone) = self.receiving.try_write() else { return Ok(()) };
        mirror::unlock(&self.git.mirror)
    }

    /// Removes the quarantine directories of killed pushes. Does nothing during a push.
    pub(crate) fn clean_up(&self) {
        let Ok(_alone) = self.receiving.try_write() else { return };
        let objects = self.git.mirror.join("objects");
        if let Err(error) = mirror::remove(&objects, &|name| name.starts_with("tmp_objdir")) {
            tracing::warn!(repository = self.name, %error, "cannot remove the quarantine of a killed push");
        }
    }

    /// Runs git with the credentials for the upstream, and with `input` on stdin. Removes the token from git's output.
    pub(crate) async fn run_upstream(
        &self,
        fds: &ReservedFds,
        arguments: Vec<String>,
        input: &[u8],
        env: &[(String, String)],
        within: Duration,
    ) -> Result<Output, GitError> {
        let access = self.auth.access(fds).await.map_err(|error| GitError::Run("git".to_owned(), error))?;
        let git = self.git.with_memory(UPSTREAM_MEMORY).with_env(access.env.iter().chain(env).cloned());
        let passed: Vec<_> = access.secret.iter().collect();
        let complete = |numbers: &[i32]| {
            let mut all = access.configuration(numbers);
            all.extend(arguments);
            all
        };
        let mut output = git.run_with_fds(fds, &passed, complete, input, within).await?;
        output.stdout = self.auth.redact(output.stdout);
        output.stderr = String::from_utf8_lossy(&self.auth.redact(output.stderr.into_bytes())).into_owned();
        Ok(output)
    }

    /// Returns whether the user has approved a finding with this fingerprint.
    pub(crate) fn is_approved(&self, fingerprint: &[u8; 32]) -> bool {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(fingerprint)
    }

    /// Stores the fingerprints of findings that the user approved, until the bottle stops.
    pub(crate) fn approve(&self, fingerprints: impl IntoIterator<Item = [u8; 32]>) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).extend(fingerprints);
    }

    /// Returns whether this gate created the ref in the upstream. A ref that the gate created cannot be an alias of an
    /// older ref.
    pub(crate) fn has_created(&self, name: &str) -> bool {
        self.created.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Records the refs that a push created, until the bottle stops, and forgets the refs that a push deleted.
    pub(crate) fn record_pushed(&self, updates: &[&Update]) {
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
