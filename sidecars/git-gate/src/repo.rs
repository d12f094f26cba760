//! One repository: its mirror, and what is remembered of it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bottle_contract::session::gate::{GateRefs, GateRepo};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use crate::git::{Ended, Git, GitError, Passage};
use crate::keys::Opener;
use crate::messages;
use crate::mirror;
use crate::refs::Update;
use crate::upstream::{ObjectFormat, Record, Upstream};

/// How long an upstream may take to list its refs.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// How long the objects of a refresh may take.
const FETCHED_WITHIN: Duration = Duration::from_secs(900);

/// A local step of git.
const STEP_WITHIN: Duration = Duration::from_secs(60);

/// When a fetch brings more refs than this, they are put into one file: every git that lists them reads it.
const MOST_LOOSE: usize = 32;

/// What of an upstream is mirrored.
const MIRRORED: [&str; 3] = ["refs/heads/*", "refs/tags/*", "refs/notes/*"];

/// A repository of the bottle.
pub(crate) struct Repo {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) git: Git,
    pub(crate) rules: GateRefs,
    pub(crate) supervise: bool,
    pub(crate) opener: Opener,
    stale_ok: bool,
    refreshed: Mutex<Refreshed>,
    /// Held by every push as long as it has a quarantine.
    pub(crate) receiving: Arc<RwLock<()>>,
    /// One push is read and forwarded at a time.
    pub(crate) pushing: Mutex<()>,
    /// Fingerprints that a user let pass.
    approved: StdMutex<HashSet<[u8; 32]>>,
    /// Refs that this gate made in the upstream.
    made: StdMutex<HashSet<String>>,
}

/// The last refresh.
struct Refreshed {
    began: Option<Instant>,
    result: Result<Arc<Upstream>, String>,
}

impl Repo {
    /// Makes the mirror ready; it is empty until it is refreshed.
    ///
    /// # Errors
    /// A lower-case fragment.
    pub(crate) async fn ready(
        folder: &Path,
        repo: GateRepo,
        roots: &str,
        passage: &Passage,
    ) -> Result<Self, String> {
        let name = repo.name.to_string();
        let path = folder.join(format!("{name}.git"));
        mirror::make(folder, &path, mirror::format(&path))
            .map_err(|error| format!("the mirror of {name}: {error}"))?;
        let git = Git::of(&path);
        let opener = Opener::ready(folder, &git, &repo, roots, passage)
            .await
            .map_err(|error| format!("the repository {name}: {error}"))?;
        Ok(Self {
            url: repo.url,
            git,
            rules: repo.refs,
            supervise: repo.supervise,
            opener,
            stale_ok: repo.stale_ok,
            refreshed: Mutex::new(Refreshed { began: None, result: Err("it was never asked".to_owned()) }),
            receiving: Arc::default(),
            pushing: Mutex::default(),
            approved: StdMutex::default(),
            made: StdMutex::default(),
            name,
        })
    }

    /// Brings the mirror up to what upstream has. Whoever comes while it is done shares what comes of the next
    /// one that begins.
    ///
    /// # Errors
    /// A sentence for the agent.
    pub(crate) async fn refresh(&self, passage: &Passage) -> Result<Arc<Upstream>, String> {
        let came = Instant::now();
        let mut last = self.refreshed.lock().await;
        if last.began.is_none_or(|began| began < came) {
            let began = Instant::now();
            let result = self.fetch(passage).await.map(Arc::new);
            *last = Refreshed { began: Some(began), result };
        }
        last.result.clone()
    }

    /// The same for reading: where the user allows it, what there is serves while upstream is away.
    ///
    /// # Errors
    /// A sentence for the agent.
    pub(crate) async fn refresh_to_read(&self, passage: &Passage) -> Result<(), String> {
        match self.refresh(passage).await {
            Err(why) if !self.stale_ok => Err(why),
            _ => Ok(()),
        }
    }

    /// What upstream was at the last refresh.
    pub(crate) async fn upstream(&self) -> Result<Arc<Upstream>, String> {
        self.refreshed.lock().await.result.clone()
    }

    async fn fetch(&self, passage: &Passage) -> Result<Upstream, String> {
        let record = self.record(Record::EVENTS).map_err(|error| self.of_the_mirror(&error))?;
        let own = ["for-each-ref", "--format=%(refname) %(objectname)"];
        let (listed, own) =
            tokio::join!(self.list(passage, &record), self.git.plain(passage, &own, STEP_WITHIN));
        let listed = listed.map_err(|error| self.unreached(&error.to_string()))?;
        if !listed.good {
            return Err(self.unreached(&messages::cause(&listed.complaint)));
        }
        let listed = String::from_utf8_lossy(&listed.output);
        let mut upstream = Upstream::listed(&listed).map_err(|why| self.unreached(&why))?;
        upstream.tells_aliases = record.says_newest();
        if upstream.refs.is_empty() {
            upstream.format = self.format_of_none(passage).await;
        }
        let own = own.map_err(|error| self.of_the_mirror(&error))?;
        let own = String::from_utf8_lossy(&own.output);
        let own = own.lines().filter_map(|line| line.split_once(' '));
        let mut own: BTreeMap<String, String> =
            own.map(|(name, id)| (name.to_owned(), id.to_owned())).collect();
        if upstream.format != mirror::format(&self.git.mirror) {
            self.start_over(upstream.format)?;
            own.clear();
        }
        if own != upstream.refs {
            self.bring(passage, upstream.format).await?;
            if upstream.refs.len().abs_diff(own.len()) > MOST_LOOSE {
                // Where it fails, each git reads them one by one, as before.
                let _ = self.git.plain(passage, &["pack-refs", "--all"], STEP_WITHIN).await;
            }
        }
        self.follow_default(passage, &upstream).await;
        Ok(upstream)
    }

    /// Has the mirror hold what upstream has; a damaged one is made anew.
    async fn bring(&self, passage: &Passage, format: ObjectFormat) -> Result<(), String> {
        let mut fetch: Vec<String> =
            ["fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head"]
                .map(str::to_owned)
                .into();
        fetch.extend(["--no-auto-maintenance", "--no-recurse-submodules", "--"].map(str::to_owned));
        fetch.push(self.url.clone());
        fetch.extend(MIRRORED.map(|refs| format!("+{refs}:{refs}")));
        self.unlock().map_err(|error| self.of_the_mirror(&error))?;
        let mut fetched = self.go_up(passage, fetch.clone(), &[], FETCHED_WITHIN).await;
        if matches!(&fetched, Ok(ended) if !ended.good) && !self.is_whole(passage).await {
            tracing::warn!(repository = self.name, "the mirror is damaged; it is made anew");
            self.start_over(format)?;
            fetched = self.go_up(passage, fetch, &[], FETCHED_WITHIN).await;
        }
        match fetched {
            Ok(ended) if ended.good => Ok(()),
            Ok(ended) => Err(self.unreached(&messages::cause(&ended.complaint))),
            Err(error) => Err(self.unreached(&error.to_string())),
        }
    }

    /// Has the mirror's `HEAD` name the branch that upstream's does.
    async fn follow_default(&self, passage: &Passage, upstream: &Upstream) {
        let Some(default) = upstream.default.as_ref().filter(|name| name.starts_with("refs/heads/")) else {
            return;
        };
        if fs::read(self.git.mirror.join("HEAD")).ok() != Some(format!("ref: {default}\n").into()) {
            // A name that git does not take stays what it was; only the first checkout of a clone goes by it.
            let _ = self.git.plain(passage, &["symbolic-ref", "HEAD", default], STEP_WITHIN).await;
        }
    }

    fn start_over(&self, format: ObjectFormat) -> Result<(), String> {
        mirror::start_over(&self.git.mirror, format).map_err(|error| self.of_the_mirror(&error))
    }

    fn unreached(&self, why: &str) -> String {
        format!("the upstream of {} cannot be reached: {why}; try again, or tell the user", self.name)
    }

    fn of_the_mirror(&self, error: &dyn fmt::Display) -> String {
        format!("the mirror of {}: {error}", self.name)
    }

    /// What upstream lists. It is asked again where it was the way there that failed: one that is kept may have been
    /// dead for long, as on a machine that slept.
    async fn list(&self, passage: &Passage, record: &Record) -> Result<Ended, GitError> {
        let mut list = vec!["ls-remote".to_owned(), "--symref".to_owned(), "--".to_owned(), self.url.clone()];
        list.extend(["HEAD".to_owned()].into_iter().chain(MIRRORED.map(str::to_owned)));
        let recorded = [record.env()];
        let listed = self.go_up(passage, list.clone(), &recorded, LISTED_WITHIN).await;
        if matches!(&listed, Ok(ended) if ended.good) || !self.opener.lost_its_way().await {
            return listed;
        }
        self.go_up(passage, list, &recorded, LISTED_WITHIN).await
    }

    /// How an upstream names objects that has none. It says so before it lists its refs, and git shows it to nobody
    /// but who reads along; there is not much to read.
    async fn format_of_none(&self, passage: &Passage) -> ObjectFormat {
        let Ok(record) = self.record(Record::PACKETS) else { return ObjectFormat::default() };
        let list = ["ls-remote", "--", &self.url, "HEAD"].map(str::to_owned).into();
        let listed = self.go_up(passage, list, &[record.env()], LISTED_WITHIN).await;
        let sha256 = listed.is_ok() && record.read().contains("object-format=sha256");
        if sha256 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
    }

    /// What the next git that goes up writes down.
    fn record(&self, what: &'static str) -> io::Result<Record> {
        Record::of(what, self.git.mirror.with_extension("record"))
    }

    /// Whether git finds everything that the mirror's refs lead to.
    async fn is_whole(&self, passage: &Passage) -> bool {
        let arguments = ["rev-list", "--objects", "--quiet", "--all"];
        let walked = self.git.plain(passage, &arguments, FETCHED_WITHIN).await;
        walked.is_ok_and(|ended| ended.good && ended.complaint.is_empty())
    }

    /// Removes what a refresh had locked that ended with its client, unless a push is under way, which locks too.
    fn unlock(&self) -> io::Result<()> {
        let Ok(_alone) = self.receiving.try_write() else { return Ok(()) };
        mirror::unlock(&self.git.mirror)
    }

    /// Removes what pushes left behind that had to be killed, unless others are under way.
    pub(crate) fn sweep(&self) {
        let Ok(_alone) = self.receiving.try_write() else { return };
        let objects = self.git.mirror.join("objects");
        if let Err(error) = mirror::remove(&objects, 0, &|name| name.starts_with("tmp_objdir")) {
            tracing::warn!(repository = self.name, %error, "what a push left cannot be removed");
        }
    }

    /// Runs a git that goes upstream, with what opens it.
    pub(crate) async fn go_up(
        &self,
        passage: &Passage,
        arguments: Vec<String>,
        env: &[(String, String)],
        within: Duration,
    ) -> Result<Ended, GitError> {
        let access =
            self.opener.access(passage).await.map_err(|error| GitError::Run("git".to_owned(), error))?;
        let git = self.git.with(access.env.iter().chain(env).cloned());
        let passed: Vec<_> = access.secret.iter().collect();
        let complete = |places: &[i32]| {
            let mut all = access.configuration(places);
            all.extend(arguments);
            all
        };
        let mut ended = git.run(passage, &passed, complete, within).await?;
        ended.output = self.opener.redact(ended.output);
        ended.complaint =
            String::from_utf8_lossy(&self.opener.redact(ended.complaint.into_bytes())).into_owned();
        Ok(ended)
    }

    /// Whether a user let all of these pass.
    pub(crate) fn approved(&self, fingerprint: &[u8; 32]) -> bool {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(fingerprint)
    }

    /// Remembers what a user let pass, for as long as the bottle runs.
    pub(crate) fn approve(&self, fingerprints: impl IntoIterator<Item = [u8; 32]>) {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).extend(fingerprints);
    }

    /// Whether this gate made the ref: then it is none that was another's name before.
    pub(crate) fn made(&self, name: &str) -> bool {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Remembers which refs a push has made, for as long as the bottle runs.
    pub(crate) fn pushed(&self, updates: &[Update]) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        for update in updates {
            if update.deletes() {
                made.remove(&update.name);
            } else if update.creates() {
                made.insert(update.name.clone());
            }
        }
    }
}
