//! Tears a bottle down and preserves its unsaved work.
//!
//! ```text
//! agent exit │ stop │ client lost ─► agent's output ─► conversations ─► pid 1, bundle ─► work? ─► resources ─►
//! directory
//!                                    to logs/ if       copied out                        │      deploy keys
//!                                    not attached                                        │
//!   unsaved work, a failed agent with conversations, or the bottle of a task: layers and directory stay, `.preserve`
//!   none of these, but a snapshot or a conversation: the directory stays, because it names them
//!   nothing: everything is removed, except the logs if the agent failed, no client attached, or `learn` is set
//! ```

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::{Backend, BackendError, LAYERS, PausedBy, Resource};
use bottle_channel::{Channel, ChannelError, Event, Stream};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::guest::{
    Changed, Changes, Exit, GuestEvent, GuestRequest, Logs, Overrun, SCROLLBACK, STDERR, STDOUT, Stop,
};
use bottle_guest::changed_files::SEARCH_WITHIN;
use bottle_host::causes;
use bottle_host::{Host, clock};
use bottle_instance::audit::Trail;
use bottle_instance::deploy_keys::{self, Tokens};
use bottle_instance::environments::Environments;
use bottle_instance::learn;
use bottle_instance::live_changes::{self, Before, LiveChanges};
use bottle_instance::live_tree::LiveTree;
use bottle_instance::record::{KeptFor, Measured, Record, Status};
use bottle_instance::snapshots;
use bottle_instance::transcripts::Transcripts;
use bottle_instance::work::{self, Unsaved};
use bottle_instance::{Claim, engines, given};
use bottle_repository::Given;
use tokio::task::{JoinHandle, spawn_blocking};

use bottle_scan::Redactor;

use super::protocol::{EndCause, EndChoice, Ended, Resumable, Retrieval};
use super::{activity, budget, log, transcript};
use crate::launch::agent_end;

/// Time limit of a teardown step that waits for pid 1, for the bundle or for the last usage records. After it, the
/// teardown continues without the result. Stopping the agent additionally has the agent's grace period.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for pid 1 to answer what changed in the workspace. Pid 1 itself ends a long search, so it only lacks
/// processor time. After this limit, the backend searches, or the bottle counts as having unsaved work.
const WORK_TIMEOUT: Duration = SEARCH_WITHIN.saturating_add(Duration::from_secs(20));

/// Time limit to measure the preserved files, which runs in parallel with other steps.
const MEASURED_WITHIN: Duration = Duration::from_millis(300);

/// Why the bottle ends, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        let search = search(self.backend, &self.claim).await;
        if end.exit.is_none() {
            self.unpause().await;
        }
        self.save_terminal_size().await;
        // The output of an agent that is stopped goes on meanwhile.
        let output = Logs { tail: None, follow: end.exit.is_none() };
        let output = tokio::spawn(read_output(self.guest.open(&GuestRequest::Logs(output)).await));
        let exit = match end.exit {
            Some(exit) => Some(exit),
            None => self.stop_agent(end).await,
        };
        let failed = exit != Some(Exit::Code(0));
        let by_itself = matches!(end.cause, EndCause::AgentExited | EndCause::GuestDied);
        let keep_logs = !end.attached || (failed && end.cause == EndCause::AgentExited);
        // If nothing of the bottle is preserved, its directory is removed with the output.
        self.save_output(output).await;
        let overrun = self.overrun().await;
        let conversation = self.save_conversations().await;
        // Pid 1 searches for unsaved work after all other processes ended. A process that still ran could write files
        // after the search, and those files would be lost.
        let found = self.end_processes(search.as_ref()).await;
        let lost = search.is_some() && found.is_none() && self.is_lost().await;
        let unsaved = match lost {
            true => Unsaved::default(),
            false => self.unsaved(search.as_ref(), found).await,
        };
        let had = Had {
            is_task: self.is_task(),
            lost,
            failed: failed && by_itself,
            conversation: conversation.found,
        };
        let kept_for = kept_for(end.choice, unsaved, had);
        let keep = kept_for.as_ref().is_some_and(|why| *why != KeptFor::Conversation);
        let _ = self.claim.update(|record| record.lost = lost);
        let logs = keep_logs || self.claim.record().learn;
        // If this fails, a cleanup removes them.
        let _ = snapshots::remove_abandoned(self.backend, &self.claim).await;
        let conversation_only = kept_for == Some(KeptFor::Conversation);
        let snapshot = self.claim.has_snapshot();
        let keeping = Keeping { layers: keep, directory: snapshot || conversation_only, logs };
        let resumable = match (keep, snapshot, conversation_only) {
            (true, ..) => Some(Resumable::Kept),
            (false, true, _) => Some(Resumable::Snapshot),
            (false, false, true) => Some(Resumable::Conversation),
            (false, false, false) => None,
        };
        let _ = self.claim.update(|record| record.kept_for = kept_for.clone());
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
        end_leases(self.host, self.claim.directory(), &record).await;
        let learned = if record.learn { learn::of_bottle(self.claim.directory()) } else { Ok(None) };
        let learned = learned.unwrap_or_else(|error| {
            tracing::warn!("cannot learn from the denied requests: {error}");
            None
        });
        let live = live_changes(&record, self.claim.directory()).await;
        let retrieval = retrieval(&record, self.claim.directory());
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
            kept_for: kept_for.filter(|_| preserved),
            retrieval,
            resumable: resumable.filter(|_| preserved),
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
        match tokio::time::timeout(STEP_TIMEOUT, self.backend.recover(&slug, PausedBy::Other)).await {
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
    async fn save_conversations(&self) -> Conversation {
        let record = self.claim.record();
        let transcripts = Transcripts::of(&self.host.home, &record);
        match transcript::save(&transcripts, &record.transcript, &self.guest, &self.secrets).await {
            Ok(found) => Conversation {
                found: if found { Talked::Copied } else { Talked::No },
                copied_to: found.then(|| transcripts.directory().to_owned()),
            },
            Err(why) => {
                tracing::warn!("{why:#}");
                // The agent may have had conversations, which are only in the bottle then.
                Conversation { found: Talked::Unknown, copied_to: None }
            }
        }
    }

    /// Stops the agent, and all other processes except pid 1. Returns the agent's exit, if it is known.
    async fn stop_agent(&mut self, end: End) -> Option<Exit> {
        let grace_ms = u64::try_from(end.grace.as_millis()).unwrap_or(u64::MAX);
        let stopping = async {
            let mut stop = self.guest.open(&GuestRequest::EndProcesses { grace_ms }).await.ok()?;
            let (exit, _) = tokio::join!(agent_end(&mut self.agent), stop.receive::<GuestEvent>());
            exit
        };
        tokio::time::timeout(end.grace + STEP_TIMEOUT, stopping).await.ok().flatten()
    }

    /// What would be lost with the files: as pid 1 reports; if it does not, as the backend reports. A workspace that
    /// cannot be searched counts as unsaved work. If the workspace never became ready for an agent, only layers that an
    /// earlier launch preserved count.
    async fn unsaved(&self, search: Option<&Changed>, found: Option<Unsaved>) -> Unsaved {
        let record = self.claim.record();
        match (search, found) {
            (None, _) => kept_before(&record),
            (Some(_), Some(unsaved)) => unsaved,
            (Some(search), None) => {
                let found = engines::find_work(self.backend, self.claim.directory(), &record, search).await;
                found.unwrap_or_else(|error| unknown(&error))
            }
        }
    }

    /// Whether the bottle belongs to a task of `bottle env`, whose files stay until `bottle env rm`.
    fn is_task(&self) -> bool {
        let slug = self.claim.record().slug;
        Environments::has(&self.host.home, &slug)
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
        let (record, directory) = (self.claim.record(), self.claim.directory());
        engines::require(self.backend, directory, &record).await.is_ok()
            && matches!(engines::has_layers(self.backend, &record).await, Ok(false))
    }

    /// Writes the agent's buffered output to `logs/agent.log`. Secrets in it are masked.
    async fn save_output(&self, mut output: JoinHandle<Vec<u8>>) {
        let path = self.claim.directory().join("logs/agent.log");
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

    /// Ends pid 1 and the bundle. Returns what pid 1 found, if it answered.
    async fn end_processes(&self, search: Option<&Changed>) -> Option<Unsaved> {
        let bundle = async {
            if let Ok(mut stream) = self.bundle.open(&BundleRequest::Stop).await {
                let _ = stream.receive::<BundleEvent>().await;
            }
        };
        let (found, _) =
            tokio::join!(end_guest(&self.guest, search), tokio::time::timeout(STEP_TIMEOUT, bundle));
        match (search, found) {
            (Some(search), Some(changes)) => Some(work::judge(self.claim.directory(), search, changes).await),
            _ => None,
        }
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
    let (directory, state) = (live.path.clone(), state.to_owned());
    let find = move || {
        let tree = LiveTree::take(&state, live_changes::BOUNDS.entries).unwrap_or_else(|error| {
            tracing::warn!("cannot read the tree of the directory at the start: {error}");
            None
        });
        live_changes::find(&live, &tree.map_or(Before::Time(since), Before::Tree))
    };
    let found = spawn_blocking(find).await;
    let failed = |why: String| LiveChanges { directory, unknown: Some(why), ..LiveChanges::default() };
    Some(match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => failed(error.to_string()),
        Err(error) => failed(error.to_string()),
    })
}

/// Gives the bottle's unused tokens back to its budgets. If that fails, the next command that needs them does so.
async fn end_leases(host: &Host, directory: &Path, record: &Record) {
    let (host, directory, record) = (host.clone(), directory.to_owned(), record.clone());
    let ended = spawn_blocking(move || budget::end_leases(&host, &directory, &record)).await;
    if let Ok(Err(error)) = ended {
        tracing::warn!("cannot end the bottle's leases: {}", causes::one_line(&error));
    }
}

/// What would be lost with the workspace of a running bottle. Sends the question on the guest's open channel.
pub(super) async fn unsaved(backend: &dyn Backend, claim: &Claim, guest: &Channel) -> Unsaved {
    let Some(search) = search(backend, claim).await else { return kept_before(&claim.record()) };
    let query = async {
        let mut stream = guest.open(&GuestRequest::Changed(search.clone())).await.ok()?;
        changes_in(stream.receive().await)
    };
    match tokio::time::timeout(WORK_TIMEOUT, query).await.ok().flatten() {
        Some(changes) => work::judge(claim.directory(), &search, changes).await,
        None => unknown(&BackendError::failed("pid 1 does not answer")),
    }
}

/// Ends pid 1, after it searched for changes. Returns what it found, if it answered.
///
/// A search takes longer than other steps, above all on a busy machine. The backend's own search is no substitute before
/// pid 1 is gone, because both would use its transport.
async fn end_guest(guest: &Channel, search: Option<&Changed>) -> Option<Changes> {
    let answer = async {
        let stop = GuestRequest::Stop(Stop { grace_ms: 0, work: search.cloned() });
        let mut stream = guest.open(&stop).await.ok()?;
        changes_in(stream.receive().await)
    };
    let within = if search.is_some() { WORK_TIMEOUT } else { STEP_TIMEOUT };
    tokio::time::timeout(within, answer).await.ok().flatten()
}

async fn search(backend: &dyn Backend, claim: &Claim) -> Option<Changed> {
    work::search(backend, claim.directory(), &claim.record()).await
}

/// What would be lost with a workspace in which no agent ran: what an earlier launch preserved.
fn kept_before(record: &Record) -> Unsaved {
    if record.kept { Unsaved::work() } else { Unsaved::default() }
}

/// What pid 1 found; `None` if it did not answer.
fn changes_in(answer: Result<GuestEvent, ChannelError>) -> Option<Changes> {
    match answer {
        Ok(GuestEvent::Changed(changes)) => Some(changes),
        _ => None,
    }
}

fn unknown(error: &BackendError) -> Unsaved {
    let found = Unsaved::unknown(error);
    let why = found.unknown.as_deref().unwrap_or_default();
    tracing::warn!("cannot search the workspace for unsaved work, so it is preserved: {why}");
    found
}

/// What a bottle had besides its files.
#[derive(Debug, Clone, Copy)]
struct Had {
    /// Whether it belongs to a task.
    is_task: bool,
    /// Whether its files are gone.
    lost: bool,
    /// Whether its agent failed, and was not stopped.
    failed: bool,
    conversation: Talked,
}

/// Whether an agent had conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Talked {
    No,
    /// They are copied out.
    Copied,
    /// It may have had some, which are only in its bottle.
    Unknown,
}

/// Why a bottle's files, or its conversation, are kept. `None` if nothing is.
fn kept_for(choice: EndChoice, unsaved: Unsaved, had: Had) -> Option<KeptFor> {
    let Had { is_task, lost, failed, conversation } = had;
    match (choice, conversation) {
        (EndChoice::Discard, _) => None,
        (EndChoice::Keep, Talked::Copied) if lost => Some(KeptFor::Conversation),
        (EndChoice::Keep, _) if lost => None,
        (EndChoice::Keep, _) if unsaved.is_any() => Some(KeptFor::Unsaved(unsaved)),
        (EndChoice::Keep, _) if is_task => Some(KeptFor::Task),
        (EndChoice::Keep, Talked::Copied | Talked::Unknown) if failed => Some(KeptFor::Failure),
        (EndChoice::Keep, Talked::Unknown) => Some(KeptFor::Unsaved(Unsaved {
            unknown: Some("its conversation could not be copied".to_owned()),
            ..Unsaved::default()
        })),
        (EndChoice::Keep, Talked::Copied) => Some(KeptFor::Conversation),
        (EndChoice::Keep, Talked::No) => None,
    }
}

/// The result of copying the agent's conversations.
struct Conversation {
    found: Talked,
    copied_to: Option<PathBuf>,
}

struct Keeping {
    layers: bool,
    /// The directory, because it names a snapshot or a conversation.
    directory: bool,
    logs: bool,
}

/// Preserves the bottle's directory, keeps it for its logs or for a later cleanup, or removes it. Returns the failures,
/// and whether the directory is preserved.
fn finish(claim: Claim, exit: Option<Exit>, keeping: Keeping, mut left: Vec<String>) -> (Vec<String>, bool) {
    let preserved = keeping.layers || keeping.directory;
    // The directory stays while it contains usage records that could not be collected.
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

/// What brings the work out of a bottle with this record, whose state is in this directory.
fn retrieval(record: &Record, state: &Path) -> Retrieval {
    let is_recorded = |name: &str| matches!(Given::origin(&given::record(state, name)), Ok(Some(_)));
    let mut names = record.directories.iter().map(|directory| directory.name.as_str()).chain([""]);
    if record.is_of_repository() {
        Retrieval::Repository
    } else if record.copied_cwd && names.any(is_recorded) {
        Retrieval::Directory
    } else {
        Retrieval::Files
    }
}

#[cfg(test)]
mod tests {
    use bottle_channel::Side;
    use bottle_contract::session::{Hello, Role};
    use jiff::Timestamp;

    use super::*;

    /// A first process that answers this late.
    async fn guest_that_answers_after(delay: Duration) -> Channel {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let hello = Hello::of(Role::Guest);
            let (_channel, mut incoming, _) =
                Channel::establish(theirs, Side::Accepted, hello).await.expect("a keeper");
            let request = incoming.next().await.expect("a request");
            assert!(matches!(request.parse(), Ok(GuestRequest::Stop(Stop { work: Some(_), .. }))));
            let stream = request.accept();
            tokio::time::sleep(delay).await;
            let _ = stream.message(&GuestEvent::Changed(Changes::default())).await;
            let _ = stream.end().await;
            std::future::pending::<()>().await;
        });
        let (channel, ..) =
            Channel::establish(ours, Side::Dialed, Hello::of(Role::Keeper)).await.expect("a guest");
        channel
    }

    /// On a busy machine, pid 1 needs more than the time of other steps.
    #[tokio::test(start_paused = true)]
    async fn a_slow_search_is_waited_for() {
        let search = Changed::since(Timestamp::MIN);
        for (delay, answers) in [
            (Duration::ZERO, true),
            (STEP_TIMEOUT * 2, true),
            (SEARCH_WITHIN + STEP_TIMEOUT, true),
            (WORK_TIMEOUT * 2, false),
        ] {
            let guest = guest_that_answers_after(delay).await;
            assert_eq!(end_guest(&guest, Some(&search)).await.is_some(), answers, "{delay:?}");
        }
    }

    #[test]
    fn what_is_kept_has_a_reason() {
        let nothing = Unsaved::default;
        let ignored = || Unsaved { ignored: 1, ..Unsaved::default() };
        let (no, yes, unknown) = (Talked::No, Talked::Copied, Talked::Unknown);
        let had = |conversation| Had { is_task: false, lost: false, failed: false, conversation };
        let failed = |conversation| Had { failed: true, ..had(conversation) };
        let task = Had { is_task: true, ..had(yes) };
        let lost = |conversation| Had { lost: true, is_task: true, ..had(conversation) };
        let conversation = Some(KeptFor::Conversation);
        for (unsaved, had, wanted) in [
            (nothing(), had(no), None),
            (nothing(), failed(no), None),
            (nothing(), had(yes), conversation.clone()),
            (nothing(), failed(yes), Some(KeptFor::Failure)),
            (nothing(), failed(unknown), Some(KeptFor::Failure)),
            (nothing(), task, Some(KeptFor::Task)),
            (Unsaved::work(), task, Some(KeptFor::Unsaved(Unsaved::work()))),
            (Unsaved::work(), failed(yes), Some(KeptFor::Unsaved(Unsaved::work()))),
            (ignored(), had(no), Some(KeptFor::Unsaved(ignored()))),
            (nothing(), lost(no), None),
            (nothing(), lost(yes), conversation),
        ] {
            assert_eq!(kept_for(EndChoice::Keep, unsaved.clone(), had), wanted, "{unsaved:?} {had:?}");
            assert_eq!(kept_for(EndChoice::Discard, unsaved, had), None, "{had:?}");
        }
        // A conversation that could not be copied is only in the files.
        let kept = kept_for(EndChoice::Keep, nothing(), had(unknown));
        assert!(matches!(kept, Some(KeptFor::Unsaved(Unsaved { unknown: Some(_), .. }))), "{kept:?}");
    }
}
