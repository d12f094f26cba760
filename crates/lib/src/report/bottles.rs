//! The JSON output of the commands that list, stop and remove bottles.

use bottle_backend::Unused;
use bottle_instance::live_changes::LiveChanges;
use bottle_instance::record::{KeptFor, Service};
use bottle_keeper::protocol::{Ended, Resumable};
use bottle_plan::CopiedDirectory;
use bottle_policy::lock_out::LockOut;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::Exit;
use jiff::Timestamp;
use serde::Serialize;

/// An element of the array that `bottle list active --json` prints.
#[derive(Debug, Default, Serialize)]
pub struct ActiveBottle {
    /// The slug of the bottle.
    pub slug: String,
    /// The label that the user gave the bottle, if any.
    pub label: Option<String>,
    /// The colour of the label, as given with `--color-label`.
    pub color: Option<String>,
    /// The name of the bottle's agent manifest. `None` if the bottle's record cannot be read.
    pub agent: Option<String>,
    /// The bottle manifests that were chosen, in order.
    pub bottles: Vec<String>,
    /// The bottle from whose files `bottle fork` made this bottle.
    pub forked_from: Option<String>,
    /// The client of `bottle mcp` that started the bottle.
    pub parent: Option<String>,
    /// The name of the bottle's backend.
    pub backend: Option<String>,
    /// The address of the engine that holds the bottle, if the backend has an engine.
    pub engine: Option<String>,
    /// `attached` if the bottle ends with the client that started it, otherwise `detached`.
    pub mode: Option<&'static str>,
    /// `starting`, `running`, `ending`, `ended` or `kept`, or another word if the bottle's keeper or record is missing.
    pub status: &'static str,
    /// The reason why a kept bottle is kept, as in `bottle stop --json`. `None` if the bottle has only a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_for: Option<&'static str>,
    /// When the bottle was started, or last resumed.
    pub started_at: Option<Timestamp>,
    /// The directory in which `bottle start` was run.
    pub cwd: Option<String>,
    /// Whether the bottle has a copy of the directory [`ActiveBottle::cwd`]. With [`ActiveBottle::live`], whether the
    /// bottle has a copy of that directory's repository only.
    pub copied_cwd: bool,
    /// Whether the directory [`ActiveBottle::cwd`] itself is the bottle's workspace (`--cwd=live`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// The directories that were copied into the workspace, if there are several. The first directory is `cwd`.
    #[serde(rename = "folders", skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<CopiedDirectory>,
    /// The number of this bottle's pending proposals.
    pub pending: u32,
    /// What the agent of a running bottle does: `working`, `asking` (a proposal needs an answer) or `idle`. `None` if
    /// the activity is unknown.
    pub activity: Option<&'static str>,
    /// When the agent last wrote output, or when a model last answered the agent.
    pub active_at: Option<Timestamp>,
    /// The disk space in bytes of the bottle's own files, if it was measured.
    pub disk_bytes: Option<u64>,
    /// When the disk space was measured.
    pub measured_at: Option<Timestamp>,
    /// The sidecars of a running bottle. If the bottle has no keeper at the moment and its backend cannot tell which
    /// sidecars run, only those that are known to be down.
    pub services: Vec<Service>,
    /// Why this bottle is locked, so that all its traffic is denied. `None` if the bottle is not locked.
    pub locked: Option<LockOut>,
    /// Why a budget paused the bottle. `None` if the bottle is not paused.
    pub paused: Option<String>,
    /// Whether the bottle's requests to models are denied because of `bottle budget stop --policy cutoff`.
    pub cut_off: bool,
    /// Why the bottle's record cannot be read. `None` if the record can be read.
    pub problem: Option<String>,
    /// The address of the engine that commands use now.
    #[serde(skip)]
    pub selected_engine: Option<String>,
}

impl ActiveBottle {
    /// The address of the engine that holds the bottle, if commands now use another engine.
    pub fn other_engine(&self) -> Option<&str> {
        self.engine.as_deref().filter(|address| self.selected_engine.as_deref() != Some(*address))
    }
}

/// The output of `bottle cleanup --json`. With `--dry-run`, the lists contain the items that would be stopped and
/// removed.
#[derive(Debug, Serialize)]
pub struct CleanupReport {
    /// Whether nothing was removed, because of `--dry-run`.
    pub dry_run: bool,
    /// Running bottles that were stopped (`--all`).
    pub stopped: Vec<String>,
    /// Bottles without a keeper that were removed, or kept because of the work in their workspace.
    pub removed: Vec<Leftover>,
    /// References of the removed snapshots, to which no bottle refers.
    pub snapshots: Vec<String>,
    /// Removed images, volumes and other resources that no bottle used.
    pub unused: Vec<Unused>,
    /// Removed unused directories and sockets.
    pub files: Vec<String>,
    /// Slugs of bottles whose old usage records were removed.
    pub usage: Vec<String>,
    /// Resources that `cleanup` intentionally did not remove, each with the reason.
    pub left: Vec<String>,
    /// The error of each removal that failed. A failure does not prevent the other removals.
    pub errors: Vec<String>,
}

/// The output of `bottle prune --json`. With `--dry-run`, the lists contain the items that would be removed.
#[derive(Debug, Serialize)]
pub struct PruneReport {
    /// Whether nothing was removed, because of `--dry-run`.
    pub dry_run: bool,
    /// Old records of bottles that do not exist any more.
    pub records: Vec<PrunedRecord>,
    /// Images, volumes and other resources that no bottle uses.
    pub unused: Vec<Unused>,
    /// Slugs of bottles whose records are not removed, because the bottles run or are kept.
    pub existing: Vec<String>,
    /// The errors of failed inspections and removals. A failure does not prevent the other removals.
    pub errors: Vec<String>,
}

/// A record that `prune` removed.
#[derive(Debug, Serialize)]
pub struct PrunedRecord {
    /// `bottle`, `conversations`, `proposal`, `audit-log` or `crash-log`.
    pub kind: &'static str,
    /// The bottle to which the record belonged. `None` for a crash log.
    pub slug: Option<String>,
    /// The path of the record's file or directory.
    pub path: String,
    /// The disk space in bytes that the removal of the record frees.
    pub bytes: u64,
}

/// A bottle without a keeper that `cleanup` removed or kept.
#[derive(Debug, Serialize)]
pub struct Leftover {
    /// The slug of the bottle.
    pub slug: String,
    /// The name of the bottle's backend.
    pub backend: String,
    /// Why the bottle had no keeper.
    pub why: String,
    /// Whether the bottle was stopped and kept, because its workspace contains work. Otherwise the bottle was removed.
    pub work_kept: bool,
    /// Deploy keys that were revoked at forges. `errors` names the keys that could not be revoked.
    pub deploy_keys: Vec<String>,
}

/// The output of `bottle discard --json`.
#[derive(Debug, Serialize)]
pub struct Discarded {
    /// The slug of the bottle.
    pub slug: String,
    /// Whether the bottle's snapshot still exists.
    pub snapshot: bool,
}

/// An element of the array that `bottle env ls --json` prints.
#[derive(Debug, Serialize)]
pub struct ListedEnvironment {
    /// The id of the task, which the client chose.
    pub task: String,
    /// The slug of the task's bottle.
    pub slug: String,
    /// `running`, `kept`, or `gone` if the bottle does not exist any more.
    pub state: &'static str,
    /// Whether a command of `bottle env run` runs in the bottle.
    pub in_use: bool,
    /// When the bottle was created.
    pub created_at: Timestamp,
    /// When a command in the bottle last began or ended.
    pub last_used: Timestamp,
    /// The disk space in bytes of the bottle's own files, if it was measured.
    pub disk_bytes: Option<u64>,
}

/// An element of the array that `bottle env rm --json` prints.
#[derive(Debug, Serialize)]
pub struct RemovedEnvironment {
    /// The id of the task.
    pub task: String,
    /// The slug of the bottle that was removed.
    pub slug: String,
}

/// The output of `bottle stop --json`.
#[derive(Debug, Serialize)]
pub struct Stopped {
    /// The slug of the bottle.
    pub slug: String,
    /// The code with which the agent exited, if it exited by itself or after SIGTERM.
    pub code: Option<u8>,
    /// The signal that ended the agent.
    pub signal: Option<u8>,
    /// The state from which `bottle resume` would start: `files`, `snapshot` or `conversation`. `None` if nothing is
    /// kept.
    pub kept: Option<&'static str>,
    /// Why the files or the conversation are kept: `work`, `ignored-files`, `unknown` (the workspace could not be
    /// searched), `failure`, `task` or `conversation`.
    pub kept_for: Option<&'static str>,
    /// The path of the workspace on the host, if the bottle's files are kept. Git does not work in this directory,
    /// because the workspace's repository borrows objects from a path in the bottle.
    pub workspace: Option<String>,
    /// The directory of the agent's copied conversations.
    pub conversations: Option<String>,
    /// The agent's changes in the directory of `--cwd=live`. `None` for a bottle without such a directory, and if no
    /// agent ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
    /// The resources that could not be removed. `bottle cleanup` tries again to remove them.
    pub left: Vec<String>,
}

/// The agent's changes in the directory of `--cwd=live` that have an effect outside of the bottle.
#[derive(Debug, Serialize)]
pub struct Live {
    /// The path of the directory.
    #[serde(rename = "folder")]
    pub directory: String,
    /// The first of the changed files.
    pub files: Vec<LiveFile>,
    /// The number of changed files that `files` does not contain.
    pub more: usize,
    /// Why some files could not be checked. `None` if all files were checked.
    pub unknown: Option<String>,
    /// Whether the `.git` of the directory was moved or replaced while the bottle ran.
    pub repository_moved: bool,
}

/// An element of [`Live::files`].
#[derive(Debug, Serialize)]
pub struct LiveFile {
    /// The path, relative to the directory.
    pub path: String,
    /// The effect of the file outside of the bottle.
    pub why: String,
}

impl Live {
    fn of(changes: &LiveChanges) -> Self {
        let files = changes
            .files
            .iter()
            .map(|file| LiveFile { path: file.path.display().to_string(), why: file.why.clone() });
        Self {
            directory: changes.directory.display().to_string(),
            files: files.collect(),
            more: changes.more,
            unknown: changes.unknown.clone(),
            repository_moved: changes.repository_moved,
        }
    }
}

/// Why the files of a bottle are kept, in one word.
pub fn kept_word(kept_for: &KeptFor) -> &'static str {
    match kept_for {
        KeptFor::Unsaved(unsaved) if unsaved.work => "work",
        KeptFor::Unsaved(unsaved) if unsaved.unknown.is_some() => "unknown",
        KeptFor::Unsaved(_) => "ignored-files",
        KeptFor::Failure => "failure",
        KeptFor::Task => "task",
        KeptFor::Conversation => "conversation",
    }
}

impl Stopped {
    /// Returns the output document about a bottle that ended.
    pub fn of(slug: &Slug, ended: &Ended) -> Self {
        let (code, signal) = match ended.agent {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        Self {
            slug: slug.to_string(),
            code,
            signal,
            kept: ended.resumable.map(|resumable| match resumable {
                Resumable::Kept => "files",
                Resumable::Snapshot => "snapshot",
                Resumable::Conversation => "conversation",
            }),
            kept_for: ended.kept_for.as_ref().map(kept_word),
            workspace: ended.kept.clone(),
            conversations: ended.transcript.clone(),
            live: ended.live.as_ref().map(Live::of),
            left: ended.left.clone(),
        }
    }
}
