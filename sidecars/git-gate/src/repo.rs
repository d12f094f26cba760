//! One repository: its mirror, and what is remembered of it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bottle_contract::session::gate::{GateRefs, GateRepo};
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;

use crate::git::{Ended, Git, GitError, Passage};
use crate::keys::{self, Opener};
use crate::refs::Update;
use crate::upstream::{Record, Upstream};
use crate::words;

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

/// A folder of objects in the mirror that has its packs and no loose object: what came from upstream, or went
/// there. See [`crate::fresh`].
pub(crate) const KNOWN: &str = "known";

/// Every mirror's configuration, all of it. The one alternate of a quarantine is the mirror, whose refs git looks
/// at anyway: nobody is asked for the alternate's.
const CONFIG: &str = "\
[core]
\trepositoryformatversion = 0
\tbare = true
\thooksPath = ../hooks
\tbigFileThreshold = 8m
\tfsync = reference
\talternateRefsCommand = true
[receive]
\tfsckObjects = true
\tunpackLimit = 1
\tkeepAlive = 5
\tautogc = false
\tmaxInputSize = 4g
\tdenyCurrentBranch = ignore
\tdenyDeleteCurrent = ignore
\tadvertisePushOptions = false
[receive \"fsck\"]
\tmissingEmail = warn
\tmissingSpaceBeforeEmail = warn
\tbadTimezone = warn
\tzeroPaddedFilemode = warn
[fetch]
\tunpackLimit = 1
[uploadpack]
\tallowFilter = true
\tkeepAlive = 5
[pack]
\tthreads = 1
\twindowMemory = 64m
\tdeltaCacheSize = 16m
[gc]
\tauto = 0
[maintenance]
\tauto = false
[http]
\tlowSpeedLimit = 1
\tlowSpeedTime = 120
\tfollowRedirects = false
[protocol]
\tversion = 2
";

/// What receive-pack runs before any ref moves: it tells the gate what is pushed and waits for its word. An
/// end without one refuses.
const HOOK: &str = "\
#!/bin/sh
{ printf '%s\\n' \"$GIT_QUARANTINE_PATH\"; cat; printf 'end\\n'; } >&\"$GATE_ASK\"
while IFS= read -r line <&\"$GATE_TELL\"; do
\tcase \"$line\" in
\t\taccepted) exit 0 ;;
\t\trefused) exit 1 ;;
\t\tthere) ;;
\t\t*) printf '%s\\n' \"${line#say }\" >&2 ;;
\tesac
done
echo 'the git gate ended before it had read the push; nothing was pushed' >&2
exit 1
";

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
    /// Fingerprints that a person let pass.
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
        make(folder, &path).map_err(|error| format!("the mirror of {name}: {error}"))?;
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

    /// The same for reading: where the person allows it, what there is serves while upstream is away.
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
        let failed = |why: String| {
            format!("the upstream of {} cannot be reached: {why}; try again, or tell the person", self.name)
        };
        let of_the_mirror = |error: io::Error| format!("the mirror of {}: {error}", self.name);
        let record = Record::at(self.git.mirror.with_extension("record")).map_err(of_the_mirror)?;
        let own = ["for-each-ref", "--format=%(refname) %(objectname)"];
        let (listed, own) =
            tokio::join!(self.list(passage, &record), self.git.plain(passage, &own, STEP_WITHIN));
        let listed = listed.map_err(|error| failed(error.to_string()))?;
        if !listed.good {
            return Err(failed(words::cause(&listed.complaint)));
        }
        let mut upstream = Upstream::listed(&String::from_utf8_lossy(&listed.output)).map_err(failed)?;
        upstream.tells_aliases = record.is_newest();
        let own = own.map_err(|error| format!("the mirror of {}: {error}", self.name))?;
        let own = String::from_utf8_lossy(&own.output);
        let own = own.lines().filter_map(|line| line.split_once(' '));
        let own: BTreeMap<String, String> = own.map(|(name, id)| (name.to_owned(), id.to_owned())).collect();
        if own != upstream.refs {
            let mut fetch: Vec<String> =
                ["fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head"]
                    .map(str::to_owned)
                    .into();
            fetch.extend(["--no-auto-maintenance", "--no-recurse-submodules", "--"].map(str::to_owned));
            fetch.push(self.url.clone());
            fetch.extend(MIRRORED.map(|refs| format!("+{refs}:{refs}")));
            self.unlock().map_err(of_the_mirror)?;
            let mut fetched = self.go_up(passage, fetch.clone(), &[], FETCHED_WITHIN).await;
            if matches!(&fetched, Ok(ended) if !ended.good) && !self.is_whole(passage).await {
                tracing::warn!(repository = self.name, "the mirror is damaged; it is made anew");
                self.start_over().map_err(of_the_mirror)?;
                fetched = self.go_up(passage, fetch, &[], FETCHED_WITHIN).await;
            }
            let fetched = fetched.map_err(|error| failed(error.to_string()))?;
            if !fetched.good {
                return Err(failed(words::cause(&fetched.complaint)));
            }
            if upstream.refs.len().abs_diff(own.len()) > MOST_LOOSE {
                // Where it fails, each git reads them one by one, as before.
                let _ = self.git.plain(passage, &["pack-refs", "--all"], STEP_WITHIN).await;
            }
        }
        if let Some(default) = upstream.default.as_ref().filter(|name| name.starts_with("refs/heads/"))
            && fs::read(self.git.mirror.join("HEAD")).ok() != Some(format!("ref: {default}\n").into())
        {
            // A name that git does not take stays what it was; only the first checkout of a clone goes by it.
            let _ = self.git.plain(passage, &["symbolic-ref", "HEAD", default], STEP_WITHIN).await;
        }
        Ok(upstream)
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

    /// Whether git finds everything that the mirror's refs lead to.
    async fn is_whole(&self, passage: &Passage) -> bool {
        let arguments = ["rev-list", "--objects", "--quiet", "--all"];
        let walked = self.git.plain(passage, &arguments, FETCHED_WITHIN).await;
        walked.is_ok_and(|ended| ended.good && ended.complaint.is_empty())
    }

    /// Throws away all that the mirror has.
    fn start_over(&self) -> io::Result<()> {
        let mirror = &self.git.mirror;
        for part in ["refs", "objects"] {
            fs::remove_dir_all(mirror.join(part))?;
        }
        match fs::remove_file(mirror.join("packed-refs")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        make(mirror.parent().unwrap_or(mirror), mirror)
    }

    /// Removes what a refresh had locked that ended with its client, unless a push is under way, which locks too.
    fn unlock(&self) -> io::Result<()> {
        let Ok(_alone) = self.receiving.try_write() else { return Ok(()) };
        unlock(&self.git.mirror)
    }

    /// Removes what pushes left behind that had to be killed, unless others are under way.
    pub(crate) fn sweep(&self) {
        let Ok(_alone) = self.receiving.try_write() else { return };
        let objects = self.git.mirror.join("objects");
        if let Err(error) = remove(&objects, 0, &|name| name.starts_with("tmp_objdir")) {
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
        git.run(passage, &passed, complete, within).await
    }

    /// Whether a person let all of these pass.
    pub(crate) fn approved(&self, fingerprint: &[u8; 32]) -> bool {
        self.approved.lock().unwrap_or_else(PoisonError::into_inner).contains(fingerprint)
    }

    /// Remembers what a person let pass, for as long as the bottle runs.
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

/// The folders and files of a mirror, as `git init --bare` makes them; what is there stays but its
/// configuration.
fn make(folder: &Path, mirror: &Path) -> io::Result<()> {
    let make = |path: PathBuf| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    for part in ["objects/info", "objects/pack", "refs/heads", "refs/tags", KNOWN] {
        make(mirror.join(part))?;
    }
    match symlink("../objects/pack", mirror.join(KNOWN).join("pack")) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    make(folder.join("hooks"))?;
    let hook = folder.join("hooks/pre-receive");
    keys::write(&hook, HOOK.as_bytes())?;
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o700))?;
    keys::write(&mirror.join("config"), CONFIG.as_bytes())?;
    if !mirror.join("HEAD").exists() {
        keys::write(&mirror.join("HEAD"), b"ref: refs/heads/main\n")?;
    }
    let begins = |with: &'static str| move |name: &str| name.starts_with(with);
    // What a gate that was killed was receiving, and what it had locked.
    remove(&mirror.join("objects"), 0, &begins("tmp_"))?;
    remove(&mirror.join("objects/pack"), 0, &begins("tmp_"))?;
    unlock(mirror)
}

/// Removes every lock that a git left.
fn unlock(mirror: &Path) -> io::Result<()> {
    let lock = |name: &str| name.ends_with(".lock");
    remove(mirror, 0, &lock)?;
    remove(&mirror.join("refs"), DEEPEST, &lock)
}

/// How deep in folders a ref can be: its name has 255 bytes.
const DEEPEST: usize = 128;

/// Removes what has such a name in a folder, and in so many levels of folders below it.
fn remove(folder: &Path, levels: usize, named: &impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        match (named(&entry.file_name().to_string_lossy()), is_folder) {
            (true, true) => fs::remove_dir_all(entry.path())?,
            (true, false) => fs::remove_file(entry.path())?,
            (false, true) if levels > 0 => remove(&entry.path(), levels - 1, named)?,
            (false, _) => {}
        }
    }
    Ok(())
}
