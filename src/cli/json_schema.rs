//! The JSON output that scripts rely on. A later version may add fields, but does not remove or rename any.

use bottle_contract::decide::Reason;
use bottle_contract::lock_out::LockOut;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{Attempt, Exit, Reach};
use bottle_queue::{Pending, State};
use jiff::Timestamp;
use serde::Serialize;

use super::live;
use super::session::Clip;
use super::supervise::Unsaved;
use crate::backend::portable_image::RootKind;
use crate::backend::{Check, Snapshot, Unused};
use crate::host::budget::Window;
use crate::instance::audit::Entry;
use crate::instance::proxy_log::Warning;
use crate::instance::record::Service;
use crate::keeper::protocol::{Ended, Resumable};
use crate::launch::isolation::{Control, JudgedAttempt};
use crate::ledger::{Group, Response, Totals};
use crate::plan::CopiedFolder;

/// The document that `bottle exec --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Executed {
    /// The exit code of `bottle exec`.
    pub(crate) exit: u8,
    /// The exit code of the command. `None` if a signal ended it, or if its end is unknown.
    pub(crate) code: Option<u8>,
    /// The signal that ended the command.
    pub(crate) signal: Option<u8>,
    /// Whether the command was ended because its time limit passed.
    pub(crate) timed_out: bool,
    /// Whether the user interrupted the command, so that its end is unknown.
    pub(crate) interrupted: bool,
    /// The time from the start of the command to its end.
    pub(crate) duration_ms: u64,
    pub(crate) stdout: ExecutedOutput,
    /// `None` with `--merge`.
    pub(crate) stderr: Option<ExecutedOutput>,
}

/// An element of the array that `bottle ps --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct BottleProcess {
    /// `None` for the agent.
    pub(crate) handle: Option<String>,
    pub(crate) name: Option<String>,
    /// The process id inside the bottle.
    pub(crate) pid: u32,
    pub(crate) command: Vec<String>,
    pub(crate) terminal: bool,
    pub(crate) started_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    #[serde(flatten)]
    pub(crate) state: ProcessEnd,
    /// The number of its processes that run.
    pub(crate) processes: u32,
    pub(crate) cpu_seconds: f64,
    pub(crate) memory_bytes: u64,
}

/// Whether a process runs, and how it ended.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessEnd {
    /// `running`, `exited` or `killed`.
    pub(crate) state: &'static str,
    pub(crate) code: Option<u8>,
    pub(crate) signal: Option<u8>,
}

/// The document that `bottle process start --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct StartedProcess {
    pub(crate) handle: String,
    pub(crate) pid: u32,
}

/// The document that `bottle process wait --until REGEX --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct MatchedLine {
    /// The line, without its break.
    pub(crate) line: String,
    /// The position behind the line.
    pub(crate) next: u64,
}

/// An entry of the document that `bottle service list --json` prints, and the document of `bottle service start` and
/// `bottle service stop`.
#[derive(Debug, Serialize)]
pub(crate) struct BottleService {
    /// Its name.
    pub(crate) name: String,
    /// `starting`, `ready`, `restarting`, `exited`, `failed` or `stopped`.
    pub(crate) state: &'static str,
    /// When it was last ready, in UTC.
    pub(crate) ready_at: Option<Timestamp>,
    /// How often it was started again.
    pub(crate) restarts: u64,
    /// The handle of the process of its last run.
    pub(crate) handle: Option<String>,
    /// The exit code of its last run.
    pub(crate) code: Option<u8>,
    /// The signal that killed its last run.
    pub(crate) signal: Option<u8>,
    /// Why it failed, exited or is started again.
    pub(crate) why: Option<String>,
}

/// The document that `bottle process log --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessOutput {
    /// Bytes that are not UTF-8 are U+FFFD.
    pub(crate) text: String,
    /// The position of the first byte of the text, counted from the first byte of the output.
    pub(crate) from: u64,
    /// The position at which the next part begins.
    pub(crate) next: u64,
    /// The position behind the last byte so far.
    pub(crate) end: u64,
    /// The number of bytes behind the wanted position that are not kept any more.
    pub(crate) lost: u64,
    #[serde(flatten)]
    pub(crate) state: ProcessEnd,
}

/// An entry of a workspace: the document that `bottle fs stat --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntry {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// `file`, `directory`, `symlink` or `other`.
    pub(crate) kind: &'static str,
    pub(crate) size_bytes: u64,
    /// The permission bits as octal digits.
    pub(crate) mode: String,
    pub(crate) modified: Option<Timestamp>,
    /// The number of its hard links.
    pub(crate) links: u64,
    /// The target of a symlink. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) target: Option<String>,
}

/// A path of a workspace.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntryPath {
    /// The path from the workspace on. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) path: String,
    /// The path, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path_base64: Option<String>,
}

/// The document that `bottle fs ls --json` and `bottle fs glob --json` print.
#[derive(Debug, Serialize)]
pub(crate) struct FileEntries {
    pub(crate) entries: Vec<FileEntry>,
    /// The value of `--after` for the next part. `None` at the end.
    pub(crate) next: Option<String>,
    /// The number of folders that could not be read.
    pub(crate) unreadable: u64,
}

/// The document that `bottle fs read --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct FileContent {
    /// `None` if the part is not UTF-8.
    pub(crate) text: Option<String>,
    /// The part, if it is not UTF-8.
    pub(crate) base64: Option<String>,
    /// The position of the first byte.
    pub(crate) offset: u64,
    /// The position at which the next part begins.
    pub(crate) next: u64,
    pub(crate) size_bytes: u64,
}

/// The document that `bottle fs write --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct WrittenFile {
    pub(crate) size_bytes: u64,
    /// Whether the file did not exist before.
    pub(crate) created: bool,
}

/// The document that `bottle fs patch --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct PatchedFiles {
    pub(crate) files: Vec<PatchedFile>,
    /// Whether the files were written. False with `--check`.
    pub(crate) applied: bool,
}

/// A file of a patch.
#[derive(Debug, Serialize)]
pub(crate) struct PatchedFile {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// `created`, `changed` or `deleted`.
    pub(crate) change: &'static str,
    /// The number of hunks, or of replaced texts.
    pub(crate) places: u64,
}

/// The document that `bottle fs rm --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RemovedFiles {
    /// The number of entries, with those in folders.
    pub(crate) entries: u64,
}

/// The document that `bottle fs reset --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ResetFiles {
    pub(crate) slug: String,
    /// The commit to which the files were put back; absent if the workspace was empty at its start, and with `folders`.
    pub(crate) base: Option<String>,
    /// The folders of the workspace, if several directories were copied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) folders: Vec<ComparedFolder>,
    pub(crate) files: Vec<ResetFile>,
    /// Whether the files were changed. False with `--dry-run`.
    pub(crate) applied: bool,
}

/// A file that differs from the start.
#[derive(Debug, Serialize)]
pub(crate) struct ResetFile {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// `remove` for a file that was created since the start, otherwise `restore`.
    pub(crate) action: &'static str,
}

/// The document that `bottle fs import --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ImportedFiles {
    /// The number of entries of the archive.
    pub(crate) entries: u64,
}

/// The document that `bottle fs grep --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct FileMatches {
    pub(crate) matches: Vec<FileMatch>,
    /// The number of files that were searched.
    pub(crate) files: u64,
    /// The number of files and folders that were left out, because they are binary or cannot be read.
    pub(crate) skipped: u64,
    /// Why the search ended early. `None` if it did not.
    pub(crate) stopped: Option<String>,
}

/// A line that matches.
#[derive(Debug, Serialize)]
pub(crate) struct FileMatch {
    #[serde(flatten)]
    pub(crate) path: FileEntryPath,
    /// The number of the line, from 1.
    pub(crate) line: u64,
    /// The line, or a part of a long one around the match. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) text: String,
    /// Whether the line is longer than the text.
    pub(crate) cut: bool,
}

/// An output stream of a command.
#[derive(Debug, Serialize)]
pub(crate) struct ExecutedOutput {
    /// The whole output, or its beginning and its end. Bytes that are not UTF-8 are U+FFFD.
    pub(crate) text: String,
    /// The size of the whole output.
    pub(crate) bytes: u64,
    /// The number of bytes that are missing in the middle of the text.
    pub(crate) omitted: u64,
}

impl ExecutedOutput {
    pub(crate) fn of(clip: &Clip) -> Self {
        Self { text: clip.text(), bytes: clip.bytes(), omitted: clip.omitted() }
    }
}

/// An element of the array that `bottle list active --json` prints.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ActiveBottle {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    /// The colour given with `--color-label`.
    pub(crate) color: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) bottles: Vec<String>,
    /// The bottle from whose files this one was made with `bottle fork`.
    pub(crate) forked_from: Option<String>,
    /// The client of `bottle mcp` that started the bottle.
    pub(crate) parent: Option<String>,
    pub(crate) backend: Option<String>,
    /// The address of the engine that has the bottle, if the backend has an engine.
    pub(crate) engine: Option<String>,
    pub(crate) mode: Option<&'static str>,
    pub(crate) status: &'static str,
    pub(crate) started_at: Option<Timestamp>,
    /// The directory in which `bottle start` was run.
    pub(crate) cwd: Option<String>,
    /// Whether the bottle has a copy of that directory, or of its repository only with [`ActiveBottle::live`].
    pub(crate) copied_cwd: bool,
    /// Whether the directory itself is the bottle's workspace (`--cwd=live`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) live: bool,
    /// The directories that were copied into folders of the workspace, if there are several. The first one is `cwd`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) folders: Vec<CopiedFolder>,
    /// The number of this bottle's pending proposals.
    pub(crate) pending: u32,
    /// What the agent of a running bottle does: `working`, `asking` (a proposal needs an answer) or `idle`. `None` if
    /// that is not known.
    pub(crate) activity: Option<&'static str>,
    /// When the agent last wrote output, or a model last answered it.
    pub(crate) active_at: Option<Timestamp>,
    /// The disk space in bytes of the bottle's own files, if it was measured.
    pub(crate) disk_bytes: Option<u64>,
    /// When the disk space was measured.
    pub(crate) measured_at: Option<Timestamp>,
    /// The sidecars of a running bottle.
    pub(crate) services: Vec<Service>,
    /// Why all traffic of this bottle is denied, which is then locked. `None` if it is not locked.
    pub(crate) locked: Option<LockOut>,
    /// Why the bottle is paused because of a budget. `None` if it is not.
    pub(crate) paused: Option<String>,
    /// Whether its requests to models are denied because of `bottle budget stop --policy cutoff`.
    pub(crate) cut_off: bool,
    /// Why the bottle's record cannot be read, if it cannot.
    pub(crate) problem: Option<String>,
    /// The address of the engine that commands use now.
    #[serde(skip)]
    pub(crate) selected_engine: Option<String>,
}

impl ActiveBottle {
    /// The address of the engine that has the bottle, if commands use another one now.
    pub(crate) fn other_engine(&self) -> Option<&str> {
        self.engine.as_deref().filter(|address| self.selected_engine.as_deref() != Some(*address))
    }
}

/// An element of the array that `bottle usage --json` prints: one response of a model.
#[derive(Debug, Serialize)]
pub(crate) struct UsageRecord {
    pub(crate) time: Timestamp,
    pub(crate) slug: String,
    /// The id of the launch; absent in records of older versions.
    pub(crate) run: Option<String>,
    pub(crate) agent: String,
    /// The bottle manifests that were chosen, in order.
    pub(crate) bottles: Vec<String>,
    /// All bottle manifests that were merged, in order.
    pub(crate) lineage: Vec<String>,
    /// The agent's template for a response on its provider route, otherwise the host.
    pub(crate) provider: String,
    pub(crate) host: String,
    pub(crate) api: String,
    pub(crate) model: Option<String>,
    /// `main` or `subagent`, if the client says so.
    pub(crate) source: Option<String>,
    pub(crate) tokens: Tokens,
    /// Whether a count is estimated.
    pub(crate) estimated: bool,
    /// Whether the response was interrupted.
    pub(crate) interrupted: bool,
    pub(crate) id: String,
}

/// Numbers of tokens. `input` excludes the tokens read from or written to the provider's cache.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Tokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) total: u64,
}

impl From<&Totals> for Tokens {
    fn from(totals: &Totals) -> Self {
        Self {
            input: totals.input,
            output: totals.output,
            cache_read: totals.cache_read,
            cache_write: totals.cache_write,
            total: totals.total(),
        }
    }
}

impl From<Response> for UsageRecord {
    fn from(response: Response) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Self {
            time: response.time,
            slug: response.slug,
            run: response.labels.run,
            agent: response.labels.agent,
            bottles: response.labels.bottles,
            lineage: response.labels.lineage,
            provider: response.key,
            host: response.host,
            api: response.api,
            model: some(response.model),
            source: some(response.source),
            tokens: (&response.totals).into(),
            estimated: response.totals.estimated > 0,
            interrupted: response.interrupted,
            id: response.id,
        }
    }
}

/// An element of the array that `bottle usage --by … --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct UsageGroup {
    /// The common value; empty if it is unknown.
    pub(crate) name: String,
    pub(crate) tokens: Tokens,
    /// The number of responses.
    pub(crate) responses: u64,
    /// The number of responses with an estimated count.
    pub(crate) estimated: u64,
    /// The cost by `rates.yml`, if there is such a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Money>,
}

/// An amount of money.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Money {
    pub(crate) amount: f64,
    pub(crate) currency: String,
    /// Whether some models have no rate, so that the amount is higher.
    pub(crate) partial: bool,
}

impl From<&Group> for UsageGroup {
    fn from(Group { name, totals }: &Group) -> Self {
        Self {
            name: name.clone(),
            tokens: totals.into(),
            responses: totals.responses,
            estimated: totals.estimated,
            cost: None,
        }
    }
}

/// An element of the array that `bottle budget --json` prints, and the output of `bottle budget add --json`.
#[derive(Debug, Serialize)]
pub(crate) struct BudgetLine {
    /// `host`, `ceiling`, `agent:NAME`, `bottle:NAME` or `run:SLUG`.
    pub(crate) scope: String,
    /// A template for its provider route, a host, or `all`.
    pub(crate) provider: String,
    pub(crate) window: Window,
    /// Tokens that responses used in the current window.
    pub(crate) spent: u64,
    /// Tokens that are reserved for requests without a response.
    pub(crate) reserved: u64,
    /// The declared limit and the top-ups of the current window.
    pub(crate) limit: u64,
    /// The declared limit.
    pub(crate) declared: u64,
    pub(crate) left: u64,
    /// With `--agent`: whether it governs this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) governs: Option<bool>,
    /// The file and line, or the flag.
    pub(crate) origin: String,
}

/// The output of `bottle cleanup --json`. With `--dry-run`, the lists contain what would be stopped and removed.
#[derive(Debug, Serialize)]
pub(crate) struct CleanupReport {
    /// Whether nothing was removed, because of `--dry-run`.
    pub(crate) dry_run: bool,
    /// Running bottles that were stopped (`--all`).
    pub(crate) stopped: Vec<String>,
    /// Bottles without a keeper that were removed, or preserved because of the work in their workspace.
    pub(crate) removed: Vec<Leftover>,
    /// References of removed snapshots that no bottle refers to.
    pub(crate) snapshots: Vec<String>,
    /// Removed images, volumes and other resources that no bottle used.
    pub(crate) unused: Vec<Unused>,
    /// Removed unused folders and sockets.
    pub(crate) files: Vec<String>,
    /// Slugs of bottles whose old usage records were removed.
    pub(crate) usage: Vec<String>,
    /// Resources that `cleanup` intentionally did not remove, each with the reason.
    pub(crate) left: Vec<String>,
    /// The error of each removal that failed. A failure does not prevent the other removals.
    pub(crate) errors: Vec<String>,
}

/// The output of `bottle prune --json`. With `--dry-run`, the lists contain what would be removed.
#[derive(Debug, Serialize)]
pub(crate) struct PruneReport {
    /// Whether nothing was removed, because of `--dry-run`.
    pub(crate) dry_run: bool,
    /// Old records of bottles that do not exist any more.
    pub(crate) records: Vec<PrunedRecord>,
    /// Images, volumes and other resources that no bottle uses.
    pub(crate) unused: Vec<Unused>,
    /// Slugs of bottles whose records stay, because the bottles run or are kept.
    pub(crate) existing: Vec<String>,
    /// What could not be inspected or removed. A failure does not prevent the other removals.
    pub(crate) errors: Vec<String>,
}

/// A record that `prune` removed.
#[derive(Debug, Serialize)]
pub(crate) struct PrunedRecord {
    /// `conversations`, `proposal`, `audit-log` or `crash-log`.
    pub(crate) kind: &'static str,
    /// The bottle that it belonged to. `None` for a crash log.
    pub(crate) slug: Option<String>,
    /// Its file or folder.
    pub(crate) path: String,
    /// The disk space that its removal frees.
    pub(crate) bytes: u64,
}

/// A bottle without a keeper that `cleanup` removed or preserved.
#[derive(Debug, Serialize)]
pub(crate) struct Leftover {
    pub(crate) slug: String,
    pub(crate) backend: String,
    pub(crate) why: String,
    /// Whether the bottle was stopped and preserved, because its workspace has work. Otherwise it was removed.
    pub(crate) work_kept: bool,
    /// Deploy keys that were revoked at forges. `errors` names the keys that could not be revoked.
    pub(crate) deploy_keys: Vec<String>,
}

/// The output of `bottle dashboard --web --json`.
#[derive(Debug, Serialize)]
pub(crate) struct WebDashboard {
    /// The link that opens the dashboard once.
    pub(crate) url: String,
}

/// The output of `bottle mcp --http --json`.
#[derive(Debug, Serialize)]
pub(crate) struct McpServer {
    /// The address of the server.
    pub(crate) url: String,
}

/// The output of `bottle mcp token --json`.
#[derive(Debug, Serialize)]
pub(crate) struct McpToken {
    pub(crate) token: String,
    /// The entry for the token file, in YAML.
    pub(crate) entry: String,
}

/// The output of `bottle discard --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Discarded {
    pub(crate) slug: String,
    /// Whether the bottle's snapshot still exists.
    pub(crate) snapshot: bool,
}

/// An element of the array that `bottle env ls --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ListedEnvironment {
    pub(crate) task: String,
    pub(crate) slug: String,
    /// `running`, `preserved`, or `gone` if the bottle does not exist any more.
    pub(crate) state: &'static str,
    /// Whether a command of `bottle env run` runs in it.
    pub(crate) in_use: bool,
    pub(crate) created_at: Timestamp,
    /// When a command last began or ended.
    pub(crate) last_used: Timestamp,
}

/// An element of the array that `bottle env rm --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RemovedEnvironment {
    pub(crate) task: String,
    pub(crate) slug: String,
}

/// The output of `bottle stop --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Stopped {
    pub(crate) slug: String,
    /// The code with which the agent exited, if it exited by itself or after SIGTERM.
    pub(crate) code: Option<u8>,
    /// The signal that ended the agent.
    pub(crate) signal: Option<u8>,
    /// What `bottle resume` would start from: `files` or `snapshot`. `None` if nothing is preserved.
    pub(crate) preserved: Option<&'static str>,
    /// The path of the preserved workspace on the host, if there is unsaved work.
    pub(crate) workspace: Option<String>,
    /// The folder of the agent's copied conversations.
    pub(crate) conversations: Option<String>,
    /// What the agent changed in the directory of `--cwd=live`. `None` for other bottles, and if no agent ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<Live>,
    /// What could not be removed. `bottle cleanup` tries again.
    pub(crate) left: Vec<String>,
}

/// What an agent changed in the directory of `--cwd=live`, and that has an effect outside of the bottle.
#[derive(Debug, Serialize)]
pub(crate) struct Live {
    /// The directory.
    pub(crate) folder: String,
    pub(crate) files: Vec<LiveFile>,
    /// How many further files there are.
    pub(crate) more: usize,
    /// Why some files are unknown. `None` if all were checked.
    pub(crate) unknown: Option<String>,
    /// Whether the `.git` of the directory was moved or replaced while the bottle ran.
    pub(crate) repository_moved: bool,
}

/// An element of [`Live::files`].
#[derive(Debug, Serialize)]
pub(crate) struct LiveFile {
    /// The path, relative to the directory.
    pub(crate) path: String,
    /// What effect the file has.
    pub(crate) why: String,
}

impl Stopped {
    pub(crate) fn of(slug: &Slug, ended: &Ended) -> Self {
        let (code, signal) = match ended.agent {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        Self {
            slug: slug.to_string(),
            code,
            signal,
            preserved: ended.resumable.map(|resumable| match resumable {
                Resumable::Kept => "files",
                Resumable::Snapshot => "snapshot",
            }),
            workspace: ended.kept.clone(),
            conversations: ended.transcript.clone(),
            live: ended.live.as_ref().map(live::described),
            left: ended.left.clone(),
        }
    }
}

/// The output of `bottle commit --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Committed {
    #[serde(flatten)]
    pub(crate) snapshot: Snapshot,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
    /// The command that starts a bottle from the snapshot.
    pub(crate) resume: String,
    /// The command that exports the snapshot for use on another machine.
    pub(crate) moved_by: Option<String>,
}

/// The output of `bottle export --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Exported {
    pub(crate) slug: String,
    /// The name of the exported snapshot; absent when the bottle was exported as it was.
    pub(crate) name: Option<String>,
    pub(crate) file: String,
    /// The size of the archive.
    pub(crate) bytes: u64,
    /// `complete` for a root file system; `home` for only the agent's home and the workspace.
    pub(crate) root: RootKind,
    /// The public key that signed the archive; absent when it is not signed.
    pub(crate) key: Option<String>,
    /// The rules whose findings were accepted.
    pub(crate) accepted: Vec<String>,
    /// The accepted findings.
    pub(crate) found: Vec<FoundSecret>,
}

/// A finding of the secret scanner in a bottle's files.
#[derive(Debug, Serialize)]
pub(crate) struct FoundSecret {
    pub(crate) rule: String,
    pub(crate) path: String,
    /// The kind of credential, without its value.
    pub(crate) preview: String,
}

/// The output of `bottle import --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Imported {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    pub(crate) agent: String,
    pub(crate) bottles: Vec<String>,
    pub(crate) backend: String,
    /// As in the output of `bottle export --json`.
    pub(crate) root: RootKind,
    /// The bottle's slug on the machine of the exporter.
    pub(crate) exported_from: String,
    pub(crate) made_at: Timestamp,
    /// The rules whose findings the exporter accepted.
    pub(crate) accepted: Vec<String>,
    pub(crate) signature: SignedBy,
    /// The command that starts the bottle.
    pub(crate) resume: String,
}

/// The signature of an archive.
#[derive(Debug, Serialize)]
pub(crate) struct SignedBy {
    /// `none`; `own` for the key of this home; `known` for a key in `settings.yml`; `unknown`.
    pub(crate) status: &'static str,
    pub(crate) key: Option<String>,
    /// The key's name in `settings.yml`.
    pub(crate) name: Option<String>,
}

/// The output of `bottle pull --json`. An array of these with `--all-forks`, and if several directories were copied.
#[derive(Debug, Serialize)]
pub(crate) struct Pulled {
    pub(crate) slug: String,
    /// The folder of the workspace; absent for the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The updated branch, without `refs/heads/`.
    pub(crate) branch: String,
    /// The branch's previous commit; absent when the branch is new.
    pub(crate) before: Option<String>,
    pub(crate) after: String,
    /// The commit of earlier uncommitted work that the branch no longer has; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replaced: Option<String>,
    /// The number of fetched commits that are not reachable from `HEAD`.
    pub(crate) commits: u64,
    /// The number of uncommitted files that the last commit of the branch contains, with `--uncommitted`.
    pub(crate) taken: usize,
    /// The number of uncommitted files in the bottle that were not pulled.
    pub(crate) uncommitted: usize,
    /// The number of branches in the bottle with commits that this repository does not have.
    pub(crate) elsewhere: usize,
}

/// The output of `bottle diff --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) slug: String,
    /// The folders of the workspace that were compared, if several directories were copied. Paths in the texts begin
    /// with the folder.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) folders: Vec<ComparedFolder>,
    /// The bottle that the workspace is compared with; absent when it is compared with a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) other: Option<String>,
    /// The base commit of the comparison; absent when there is none, and with `folders`.
    pub(crate) base: Option<String>,
    /// A patch from the base to the workspace, or from the workspace to the other bottle's one. With `--stat` or
    /// `--name-only`, the text that these flags show.
    pub(crate) diff: String,
    /// A unified diff from the base to the bottle's last commit, limited to files that differ between this
    /// commit and the workspace.
    pub(crate) committed: String,
    /// Whether the diff was truncated.
    pub(crate) cut: bool,
}

/// A folder of a workspace that was compared.
#[derive(Debug, Serialize)]
pub(crate) struct ComparedFolder {
    pub(crate) name: String,
    /// The base commit of the comparison; absent when there is none.
    pub(crate) base: Option<String>,
}

/// The output of `bottle apply --json`. An array of these if several directories were copied.
#[derive(Debug, Serialize)]
pub(crate) struct Applied {
    pub(crate) slug: String,
    /// The folder of the workspace; absent for the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The directory whose files change.
    pub(crate) folder: String,
    /// Whether the files were changed.
    pub(crate) applied: bool,
    /// The paths of the files that change, relative to the directory.
    pub(crate) changed: Vec<String>,
    /// Those of them that both sides changed, without a conflict.
    pub(crate) merged: Vec<String>,
    /// The number of changed files of the bottle that the directory already has.
    pub(crate) already: usize,
    pub(crate) conflicts: Vec<Conflict>,
    /// Changed files that programs on this machine run or obey by themselves.
    pub(crate) used_by_tools: Vec<String>,
}

/// A file that `bottle apply` cannot merge.
#[derive(Debug, Serialize)]
pub(crate) struct Conflict {
    pub(crate) path: String,
    pub(crate) cause: &'static str,
    /// Whether the file now has conflict markers. Otherwise it is unchanged.
    pub(crate) markers: bool,
}

/// An element of the array that `bottle list snapshots --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ListedSnapshot {
    pub(crate) slug: String,
    pub(crate) label: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) backend: String,
    /// The address of the engine that has the snapshot, if the backend has an engine.
    pub(crate) engine: Option<String>,
    pub(crate) reference: String,
    /// The name that the user gave it, if any.
    pub(crate) name: Option<String>,
    /// The reference of the snapshot that it continues. That one may have been removed.
    pub(crate) parent: Option<String>,
    pub(crate) made_at: Timestamp,
    pub(crate) bytes: Option<u64>,
    /// `ready`; `gone` when the snapshot was removed by other means; `elsewhere` when it is on another
    /// engine, or its engine does not answer; `unknown` when the backend did not answer; `unnamed` when the snapshot's
    /// bottle has no record.
    pub(crate) status: &'static str,
}

/// An element of the array that `bottle list agents --json` and `bottle list bottles --json` print.
#[derive(Debug, Serialize)]
pub(crate) struct NamedManifest {
    pub(crate) name: String,
    /// Where the file comes from.
    pub(crate) from: &'static str,
    pub(crate) file: String,
    /// If this file shadows another of the same name: where the shadowed file comes from.
    pub(crate) replaces: Option<&'static str>,
}

/// An element of the array that `bottle doctor --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct BackendHealth {
    pub(crate) backend: &'static str,
    #[serde(flatten)]
    pub(crate) check: Check,
}

/// A proposal as `bottle supervise list --json` and `bottle supervise show --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Question {
    pub(crate) id: String,
    pub(crate) slug: String,
    pub(crate) tool: &'static str,
    /// The first line of the justification.
    pub(crate) summary: String,
    /// The justification: untrusted text from the bottle.
    pub(crate) justification: String,
    /// The proposed routes, or the report: untrusted text from the bottle.
    pub(crate) proposed_file: String,
    /// For a finding: lines of the request or push around it, with the values redacted; untrusted text from the
    /// bottle.
    pub(crate) excerpt: Vec<String>,
    /// Requests that the proposed routes would newly allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gains: Option<Vec<String>>,
    /// With `show`: the scanner's last warnings in the proxy's log of this bottle, newest first; untrusted text from
    /// the bottle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warnings: Option<Vec<Warning>>,
    pub(crate) arrived_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    /// How many times the agent made the same proposal after it was rejected.
    pub(crate) asked_before: u32,
    /// Whether the process that made the proposal no longer waits for the answer.
    pub(crate) stale: bool,
}

impl From<&Pending> for Question {
    fn from(pending: &Pending) -> Self {
        let proposal = &pending.proposal;
        Self {
            id: proposal.id.to_string(),
            slug: proposal.bottle_slug.to_string(),
            tool: proposal.tool.name(),
            summary: proposal.justification.lines().next().unwrap_or_default().to_owned(),
            justification: proposal.justification.clone(),
            proposed_file: proposal.proposed_file.clone(),
            excerpt: proposal.excerpt.clone(),
            gains: None,
            warnings: None,
            arrived_at: proposal.arrival_timestamp,
            expires_at: proposal.expires_at,
            asked_before: proposal.asked_before,
            stale: matches!(pending.state, State::Expired | State::Stale),
        }
    }
}

/// The output of `bottle supervise approve --json` and `bottle supervise reject --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Answered {
    pub(crate) id: String,
    pub(crate) slug: String,
    /// `approved`, `rejected`, or `dismissed` when no process waited for the answer.
    pub(crate) status: &'static str,
    /// With `--scope save`: the file that the routes were added to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<String>,
    /// With `--scope save`: the routes, and why they were not written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsaved: Option<Unsaved>,
}

/// The output of `bottle allow --json` and `bottle deny --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ChangedRoutes {
    pub(crate) slug: String,
    /// The changed hosts, in canonical form.
    pub(crate) host: String,
    /// The revision of the routes after the change.
    pub(crate) revision: u64,
    /// Whether the routes differ from the previous ones.
    pub(crate) changed: bool,
    /// The routes that now decide about these hosts, each as an entry of `egress.routes`, in YAML.
    pub(crate) routes: Vec<String>,
    /// Requests that are newly allowed, in words.
    pub(crate) gains: Vec<String>,
    /// Requests that are no longer allowed, in words.
    pub(crate) losses: Vec<String>,
    /// How the change weakens the protection, in words.
    pub(crate) weakenings: Vec<String>,
    /// The command that undoes the change; absent if nothing changed.
    pub(crate) undo: Option<String>,
    /// With `--save`: the file that was changed in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<String>,
    /// With `--save`: the routes, and why the file was not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsaved: Option<Unsaved>,
}

/// An element of the array that `bottle audit show --json` prints: the entry of the audit log, without its hashes.
#[derive(Debug, Serialize)]
pub(crate) struct AuditLine {
    pub(crate) slug: String,
    pub(crate) seq: u64,
    pub(crate) time: Timestamp,
    pub(crate) by: String,
    pub(crate) entry: Entry,
}

/// An element of the array that `bottle audit verify --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedLog {
    pub(crate) slug: String,
    pub(crate) whole: bool,
    /// The number of lines in the log; 0 if the chain is broken.
    pub(crate) lines: u64,
    /// The hash of the last line, if the chain is intact.
    pub(crate) head: Option<String>,
    /// What is wrong with the chain; absent if the chain is intact.
    pub(crate) why: Option<String>,
}

/// The output of `bottle learn --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LearnReport {
    pub(crate) slug: String,
    /// The learned routes, as `egress.routes` writes them.
    pub(crate) routes: Option<String>,
    /// Requests that the routes newly allow.
    pub(crate) opens: Vec<String>,
    pub(crate) hosts: Vec<LearntHost>,
    /// The generalizations with which the routes allow more than was requested.
    pub(crate) rules: Vec<String>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Whether the routes are now a pending proposal, which `bottle supervise` shows.
    pub(crate) asked: bool,
}

/// How many times a host was requested.
#[derive(Debug, Serialize)]
pub(crate) struct LearntHost {
    pub(crate) host: String,
    pub(crate) times: usize,
}

/// A host for which no route was learned.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) host: String,
    pub(crate) times: usize,
    pub(crate) why: String,
}

/// An element of the array that `bottle probe --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct ProbeAttempt {
    pub(crate) target: String,
    pub(crate) via: String,
    pub(crate) result: Reach,
    /// What the probe observed.
    pub(crate) seen: String,
    /// Whether the same target answers a connection from outside the bottle: `answered`, `not-needed`,
    /// `missing`.
    pub(crate) control: Control,
}

impl From<&JudgedAttempt> for ProbeAttempt {
    fn from(tried: &JudgedAttempt) -> Self {
        let Attempt { target, via, result, seen, .. } = tried.attempt.clone();
        Self { target, via, result, seen, control: tried.control }
    }
}

/// The output of `bottle rules check --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RuleAnswer {
    /// `allow`, `deny` or `ask`.
    pub(crate) verdict: &'static str,
    pub(crate) mode: &'static str,
    /// Whether the command was proved to only read.
    pub(crate) read_only: bool,
    pub(crate) findings: Vec<RuleFinding>,
}

/// One finding of [`RuleAnswer`].
#[derive(Debug, Serialize)]
pub(crate) struct RuleFinding {
    pub(crate) rule: &'static str,
    /// Whether the rule denies in each mode.
    pub(crate) floor: bool,
    /// The words of the command that the rule is about.
    pub(crate) command: Vec<String>,
    pub(crate) why: String,
    /// The entry of the settings that approves it, as a file and a line.
    pub(crate) approved_by: Option<String>,
}

/// The output of `bottle rules list --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RuleOverview {
    pub(crate) mode: &'static str,
    pub(crate) rules: Vec<RuleShown>,
    /// The approvals in the settings.
    pub(crate) allow: Vec<RuleApproval>,
}

/// One rule of [`RuleOverview`].
#[derive(Debug, Serialize)]
pub(crate) struct RuleShown {
    pub(crate) rule: &'static str,
    pub(crate) floor: bool,
    pub(crate) finds: &'static str,
}

/// One approval of [`RuleOverview`].
#[derive(Debug, Serialize)]
pub(crate) struct RuleApproval {
    pub(crate) rule: &'static str,
    pub(crate) prefix: Vec<String>,
    /// The file and line of the entry.
    pub(crate) origin: String,
}

/// The output of `bottle policy check --json`.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyAnswer {
    /// `allow`, `deny` or `ask`.
    pub(crate) verdict: &'static str,
    pub(crate) reason: Option<Reason>,
    pub(crate) sentence: String,
    /// The host pattern of the route that decided.
    pub(crate) route: Option<String>,
    /// The file and line of the manifest that defines this route.
    pub(crate) origin: Option<String>,
    /// What the scanner found without blocking the request, as it is logged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}
