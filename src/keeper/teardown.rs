//! Tears a bottle down and preserves its unsaved work.
//!
//! ```text
//! agent exit │ stop │ client lost ─► agent's output ─► conversations ─► pid 1, bundle ─► work? ─► resources ─► folder
//!                                    to logs/ if       copied out                        │      deploy keys
//!                                    not attached                                        │
//!   unsaved work, or a failed agent with conversations: layers and folder stay, `.preserve`
//!   neither, but a snapshot: the folder stays, because it names the snapshot
//!   none of these: everything is removed, except the logs if the agent failed, no client attached, or `learn` is set
//! ```

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_channel::{Channel, ChannelError, Event, Stream};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::guest::{
    Changed, Exit, GuestEvent, GuestRequest, Logs, Overrun, SCROLLBACK, STDERR, STDOUT, Stop,
};
use jiff::Timestamp;
use tokio::task::{JoinHandle, spawn_blocking};

use bottle_scan::Redactor;

use super::protocol::{EndCause, EndChoice, Ended, Resumable};
use super::{activity, budget, log, transcript};
use crate::backend::{Backend, BackendError, LAYERS, Resource};
use crate::causes;
use crate::host::{Host, clock};
use crate::instance::audit::Trail;
use crate::instance::deploy_keys::{self, Tokens};
use crate::instance::live_changes::{self, Before, LiveChanges};
use crate::instance::live_tree::LiveTree;
use crate::instance::record::{Measured, Record, Status};
use crate::instance::snapshots;
use crate::instance::transcripts::Transcripts;
use crate::instance::{Claim, engines};
use crate::launch::agent_end;
use crate::learn;

/// Time limit of a teardown step that waits for pid 1, for the bundle or for the last usage records. After it, the
/// teardown continues without the result. Stopping the agent additionally has the agent's grace period.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for pid 1 to search the workspace for unsaved work while the user waits. After it, the bottle counts as
/// having unsaved work.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit to measure the preserved files, which runs in parallel with other steps.
const MEASURED_WITHIN: Duration = Duration::from_millis(300);

/// Why the bottle ends, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) cause: EndCause,
    pub(super) exit: Option<Exit>,
    pub(super) grace: Duration,
    /// Whether a client was attached at any time.
    pub(super) attached: bool,
    /// The user's decision about unsaved work.
    pub(super) choice: EndChoice,
}

/// The inputs of the teardown.
pub(super) struct Teardown<'a> {
    pub(super) host: &'a Host,
    pub(super) backend: &'a dyn Backend,
    pub(super) claim: Claim,
    pub(super) guest: Channel,
    pub(super) bundle: Channel,
    pub(super) agent: Stream,
    /// The task that writes token usage, the access log and the output of processes to disk.
    pub(super) records_task: JoinHandle<()>,
    pub(super) secrets: Vec<Secret>,
    pub(super) tokens: Tokens,
    /// The last measured size of the bottle.
    pub(super) size: Option<Measured>,
}

impl Teardown<'_> {
    /// Ends the bottle and reports the result. Every step that waits for the bottle's processes has a deadline; the
    /// backend then removes the processes and resources that remain. Also returns files of the bottle that were only
    /// moved away; the caller removes them after it reported the result.
    pub(super) async fn run(mut self, end: End) -> (Ended, Vec<Resource>) {
        let _ = self.claim.update(|record| record.status = Status::Ending);
        let since = work_since(self.backend, &self.claim).await;
        if end.exit.is_none() {
            self.unpause().await;
        }
        self.save_terminal_size().await;
        // Pid 1 exits after an agent that it stops, so the output is read meanwhile.
        let output = Logs { tail: None, follow: end.exit.is_none() };
        let output = tokio::spawn(read_output(self.guest.open(&GuestRequest::Logs(output)).await));
        let (exit, stopped) = match end.exit {
            Some(exit) => (Some(exit), None),
            None => self.stop_agent(end, since).await,
        };
        let failed = exit != Some(Exit::Code(0));
        let keep_logs = !end.attached || (failed && end.cause == EndCause::AgentExited);
        // If nothing of the bottle is preserved, its folder is removed with the output.
        self.save_output(output).await;
        let overrun = self.overrun().await;
        let conversation = self.save_conversations(exit).await;
        // Pid 1 searches for unsaved work after all other processes ended. A process that still ran could write files
        // after the search, and those files would be lost.
        let found = self.end_processes(since).await.or(stopped);
        let lost = since.is_some() && found.is_none() && self.is_lost().await;
        let keep = end.choice == EndChoice::Keep
            && !lost
            && (self.has_work(since, found).await || failed && conversation.worth_keeping);
        let _ = self.claim.update(|record| record.lost = lost);
        let logs = keep_logs || self.claim.record().learn;
        // If this fails, a cleanup removes them.
        let _ = snapshots::remove_abandoned(self.backend, &self.claim).await;
        let keeping = Keeping { layers: keep, snapshot: self.claim.has_snapshot(), logs };
        // Revoking runs in parallel with the removal, so that a forge that does not respond does not delay the removal.
        let revoking = deploy_keys::revoke(self.host, &self.claim, &self.tokens);
        let ((mut left, moved), keys, size) =
            tokio::join!(self.remove_resources(keep), revoking, self.measure(keep));
        left.extend(keys);
        if size.is_some() {
            let _ = self.claim.update(|record| record.size = size);
        }
        // The task ends after pid 1 and the bundle ended and all received records are written.
        if tokio::time::timeout(STEP_TIMEOUT, &mut self.records_task).await.is_err() {
            self.records_task.abort();
        }
        let record = self.claim.record();
        end_leases(self.host, &record).await;
        let learned = if record.learn { learn::of_bottle(self.claim.folder()) } else { Ok(None) };
        let learned = learned.unwrap_or_else(|error| {
            tracing::warn!("cannot learn from the denied requests: {error}");
            None
        });
        let live = live_changes(&record, self.claim.folder()).await;
        let slug = record.slug;
        let audit = Trail::of(&self.host.home, &slug).stored_head();
        let kept = if keep { self.backend.kept_workspace(&slug) } else { None };
        let (left, preserved) = finish(self.claim, exit, keeping, left);
        let ended = Ended {
            agent: exit,
            cause: end.cause,
            overrun,
            lost,
            kept: kept.map(|path| path.display().to_string()),
            resumable: preserved.then_some(if keep { Resumable::Kept } else { Resumable::Snapshot }),
            transcript: conversation.copied_to.map(|path| path.display().to_string()),
            live,
            learned: learned.map(|(learned, _)| learned.hosts.len()),
            audit,
            left,
        };
        (ended, moved)
    }

    /// Continues a bottle that something else paused, because its processes cannot end otherwise.
    async fn unpause(&self) {
        let slug = self.claim.record().slug;
        match tokio::time::timeout(STEP_TIMEOUT, self.backend.unpause(&slug)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("{}", causes::one_line(&error)),
            Err(_) => tracing::warn!("cannot find out in time whether {slug} is paused"),
        }
    }

    /// Records the size of the agent's terminal, with which its output is rendered.
    async fn save_terminal_size(&self) {
        let query = async {
            let mut stream = self.guest.open(&GuestRequest::Status).await.ok()?;
            match stream.receive().await {
                Ok(GuestEvent::Status { terminal, .. }) => terminal,
                _ => None,
            }
        };
        if let Ok(Some(size)) = tokio::time::timeout(STEP_TIMEOUT, query).await {
            let _ = self.claim.update(|record| record.terminal_size = Some(size));
        }
    }

    /// The resource limit that the bottle exceeded, as the backend reports it; if it reports none, as pid 1 reports it.
    async fn overrun(&self) -> Option<Overrun> {
        let query = async {
            if let Some(overrun) = self.backend.overrun(&self.claim.record().slug).await {
                return Some(overrun);
            }
            let mut stream = self.guest.open(&GuestRequest::Status).await.ok()?;
            match stream.receive().await {
                Ok(GuestEvent::Status { overrun, .. }) => overrun,
                _ => None,
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, query).await.ok().flatten()
    }

    /// Copies the agent's conversations out of the bottle if pid 1 still runs.
    async fn save_conversations(&self, exit: Option<Exit>) -> Conversation {
        let record = self.claim.record();
        let transcripts = Transcripts::of(&self.host.home, &record);
        match transcript::save(&transcripts, &record.transcript, &self.guest, &self.secrets).await {
            Ok(found) => Conversation {
                worth_keeping: found,
                copied_to: found.then(|| transcripts.folder().to_owned()),
            },
            Err(why) => {
                tracing::warn!("{why:#}");
                // The agent may have had conversations that could not be copied. A bottle that crashed is preserved
                // because of them.
                let worth_keeping = exit.is_none() && !record.transcript.is_empty();
                Conversation { worth_keeping, copied_to: None }
            }
        }
    }

    /// Stops the agent. Returns the agent's exit, and whether pid 1 found unsaved work; each is `None` if unknown.
    async fn stop_agent(&mut self, end: End, since: Option<Timestamp>) -> (Option<Exit>, Option<bool>) {
        let grace_ms = u64::try_from(end.grace.as_millis()).unwrap_or(u64::MAX);
        let request = GuestRequest::Stop(Stop { grace_ms, work_since: since });
        let Ok(mut stop) = self.guest.open(&request).await else { return (None, None) };
        let ended = async { (agent_end(&mut self.agent).await, work_in(stop.receive().await)) };
        tokio::time::timeout(end.grace + STEP_TIMEOUT, ended).await.unwrap_or_default()
    }

    /// Whether there is unsaved work: as pid 1 reports; if it does not, as the backend reports. A workspace that cannot
    /// be searched counts as unsaved work. If the workspace never became ready for an agent, only layers that an
    /// earlier launch preserved count.
    async fn has_work(&self, since: Option<Timestamp>, found: Option<bool>) -> bool {
        let record = self.claim.record();
        match (since, found) {
            (None, _) => record.kept,
            (Some(_), Some(work)) => work,
            (Some(since), None) => {
                let folder = self.claim.folder();
                work_or_unknown(engines::holds_work(self.backend, folder, &record, since).await)
            }
        }
    }

    /// The size of the files that are preserved: measured now, or as it was measured last if that takes long.
    async fn measure(&self, keep: bool) -> Option<Measured> {
        if !keep {
            return None;
        }
        let measured = activity::measure(self.backend, &self.claim);
        tokio::time::timeout(MEASURED_WITHIN, measured).await.ok().flatten().or(self.size)
    }

    /// Whether something else than `bottle` removed the bottle's files.
    async fn is_lost(&self) -> bool {
        let (record, folder) = (self.claim.record(), self.claim.folder());
        engines::require(self.backend, folder, &record).await.is_ok()
            && matches!(engines::has_layers(self.backend, &record).await, Ok(false))
    }

    /// Writes the agent's buffered output to `logs/agent.log`. Secrets in it are masked.
    async fn save_output(&self, mut output: JoinHandle<Vec<u8>>) {
        let path = self.claim.folder().join("logs/agent.log");
        let Ok(Ok(output)) = tokio::time::timeout(STEP_TIMEOUT, &mut output).await else {
            output.abort();
            return;
        };
        let redactor = match Redactor::new(&self.secrets) {
            Ok(redactor) => redactor,
            Err(error) => {
                tracing::warn!("cannot save the agent's output: {error}");
                return;
            }
        };
        let text = redactor.redact_bytes(&output);
        let file =
            std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(&text));
        if let Err(error) = written {
            tracing::warn!("{}: {error}", path.display());
        }
    }

    /// Ends pid 1 and the bundle. Returns whether pid 1 found unsaved work, if it answered.
    async fn end_processes(&self, since: Option<Timestamp>) -> Option<bool> {
        let guest = async {
            let stop = GuestRequest::Stop(Stop { grace_ms: 0, work_since: since });
            let mut stream = self.guest.open(&stop).await.ok()?;
            work_in(stream.receive().await)
        };
        let bundle = async {
            if let Ok(mut stream) = self.bundle.open(&BundleRequest::Stop).await {
                let _ = stream.receive::<BundleEvent>().await;
            }
        };
        let (found, _) = tokio::join!(
            tokio::time::timeout(STEP_TIMEOUT, guest),
            tokio::time::timeout(STEP_TIMEOUT, bundle)
        );
        found.ok().flatten()
    }

    /// Removes the bottle's resources. Returns the failures, and the files that were only moved away.
    async fn remove_resources(&self, keep: bool) -> (Vec<String>, Vec<Resource>) {
        if !keep {
            // The record says before the removal that nothing is preserved, so that no command mistakes the remaining
            // resources for preserved work.
            let _ = self.claim.update(|record| record.kept = false);
        }
        let mut resources: Vec<Resource> = self.claim.record().resources;
        resources.retain(|resource| !keep || resource.kind != LAYERS);
        resources.reverse();
        match self.backend.move_away(&resources).await {
            Ok(moved) => (Vec::new(), moved),
            Err(error) => (vec![causes::one_line(&error)], Vec::new()),
        }
    }
}

/// What the agent changed in the directory of `--cwd=live`. `None` without such a directory, and if no agent ran. All
/// processes of the bottle have ended.
async fn live_changes(record: &Record, state: &Path) -> Option<LiveChanges> {
    let live = record.live()?.clone();
    let since = record.changed_since(clock::boot_offset())?;
    let (folder, state) = (live.path.clone(), state.to_owned());
    let find = move || {
        let tree = LiveTree::take(&state, live_changes::BOUNDS.entries).unwrap_or_else(|error| {
            tracing::warn!("cannot read the tree of the directory at the start: {error}");
            None
        });
        live_changes::find(&live, &tree.map_or(Before::Time(since), Before::Tree))
    };
    let found = spawn_blocking(find).await;
    let failed = |why: String| LiveChanges { folder, unknown: Some(why), ..LiveChanges::default() };
    Some(match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => failed(error.to_string()),
        Err(error) => failed(error.to_string()),
    })
}

/// Gives the bottle's unused tokens back to its budgets. If that fails, the next command that needs them does so.
async fn end_leases(host: &Host, record: &Record) {
    let (host, record) = (host.clone(), record.clone());
    let ended = spawn_blocking(move || budget::end_leases(&host, &record)).await;
    if let Ok(Err(error)) = ended {
        tracing::warn!("cannot end the bottle's leases: {}", causes::one_line(&error));
    }
}

/// Whether the workspace of a running bottle has unsaved work. Sends the question on the guest's open channel.
pub(super) async fn has_work(backend: &dyn Backend, claim: &Claim, guest: &Channel) -> bool {
    let Some(since) = work_since(backend, claim).await else { return claim.record().kept };
    let query = async {
        let mut stream =
            guest.open(&GuestRequest::Changed(Changed { since, folders: Vec::new() })).await.ok()?;
        work_in(stream.receive().await)
    };
    let silent = || BackendError::failed("pid 1 does not answer");
    let found = tokio::time::timeout(WORK_TIMEOUT, query).await.ok().flatten();
    work_or_unknown(found.ok_or_else(silent))
}

async fn work_since(backend: &dyn Backend, claim: &Claim) -> Option<Timestamp> {
    snapshots::work_since(backend, claim.folder(), &claim.record()).await
}

/// Whether pid 1 found unsaved work; `None` if it did not answer.
fn work_in(answer: Result<GuestEvent, ChannelError>) -> Option<bool> {
    match answer {
        Ok(GuestEvent::Changed { work }) => Some(work),
        _ => None,
    }
}

/// Whether there is unsaved work. An unknown result counts as unsaved work.
fn work_or_unknown(found: Result<bool, BackendError>) -> bool {
    found.unwrap_or_else(|error| {
        let error = causes::one_line(&error);
        tracing::warn!("cannot search the workspace for unsaved work, so it is preserved: {error}");
        true
    })
}

/// The result of copying the agent's conversations.
struct Conversation {
    /// Whether the bottle of a failed agent is preserved because of its conversations.
    worth_keeping: bool,
    copied_to: Option<PathBuf>,
}

struct Keeping {
    layers: bool,
    snapshot: bool,
    logs: bool,
}

/// Preserves the bottle's folder, keeps it for its logs or for a later cleanup, or removes it. Returns the failures,
/// and whether the folder is preserved.
fn finish(claim: Claim, exit: Option<Exit>, keeping: Keeping, mut left: Vec<String>) -> (Vec<String>, bool) {
    let preserved = keeping.layers || keeping.snapshot;
    // The folder stays while it contains usage records that could not be collected.
    let collected = claim.collect_usage();
    left.extend(collected.err().map(|error| error.to_string()));
    let done = if preserved {
        let cleared = left.is_empty();
        let updated = claim.update(|record| {
            record.agent_exit = exit;
            if cleared {
                record.resources.retain(|resource| keeping.layers && resource.kind == LAYERS);
            }
        });
        updated.and_then(|()| claim.preserve(keeping.layers))
    } else if keeping.logs || !left.is_empty() {
        claim.update(|record| {
            record.agent_exit = exit;
            record.status = Status::Ended;
            if left.is_empty() {
                record.resources.clear();
            }
        })
    } else {
        log::close();
        claim.remove()
    };
    left.extend(done.err().map(|error| error.to_string()));
    (left, preserved)
}

/// Reads the agent's output to the end of the stream. Of more than `2 * SCROLLBACK` bytes, the last half stays.
async fn read_output(stream: Result<Stream, ChannelError>) -> Vec<u8> {
    let mut output = Vec::new();
    let Ok(mut stream) = stream else { return output };
    while let Some(event) = stream.next().await {
        match event {
            Event::Data { fd: STDOUT | STDERR, bytes } => {
                output.extend_from_slice(&bytes);
                if output.len() > 2 * SCROLLBACK {
                    output.drain(..output.len() - SCROLLBACK);
                }
            }
            Event::Message(_) => {}
            _ => break,
        }
    }
    output
}
