//! Tears a bottle down and keeps its unsaved work.
//!
//! ```text
//! agent exit │ stop │ client lost ─► agent's output ─► conversations ─► pid 1, bundle ─► work? ─► resources ─►
//! directory
//!                                    to logs/ if       copied out                        │      deploy keys
//!                                    not attached                                        │
//!   unsaved work, a failed agent with conversations, or the bottle of a task: layers and directory stay
//!   none of these, but a snapshot or a conversation: the directory stays, because it names them
//!   nothing: everything is removed, except the logs if the agent failed, no client attached, or `learn` is set
//! ```
//!
//! - `decision`: decides what is kept, and why · `unsaved`: finds the unsaved work in the workspace
//! - `report`: the facts about the bottle's files for the report at the bottle's end

mod decision;
mod report;
mod unsaved;

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::{Backend, PausedBy, Resource};
use bottle_channel::{Channel, ChannelError, Event, Stream};
use bottle_host::{Host, causes};
use bottle_instance::audit::Trail;
use bottle_instance::deploy_keys::{self, Tokens};
use bottle_instance::environments::Environments;
use bottle_instance::record::{Measured, Record, Status};
use bottle_instance::transcripts::Transcripts;
use bottle_instance::work::{self, Unsaved};
use bottle_instance::{Claim, learn, snapshots};
use bottle_policy::secret::Secret;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::guest::{
    Changed, Exit, GuestEvent, GuestRequest, Logs, Overrun, SCROLLBACK, STDERR, STDOUT,
};
use bottle_scan::Redactor;
use tokio::task::{JoinHandle, spawn_blocking};

pub(super) use self::decision::End;
use self::decision::{Directory, Found, Keeping, Talked};
use self::report::{live_changes, retrieval};
pub(super) use self::unsaved::unsaved;
use self::unsaved::{STEP_TIMEOUT, end_guest, is_lost, search, unsaved_at_end};
use super::protocol::Ended;
use super::{activity, budget, log, transcript};
use crate::launch::agent_end;

/// How long the measurement of the kept files may take. The measurement runs in parallel with other steps.
const MEASURED_WITHIN: Duration = Duration::from_millis(300);

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
    /// Ends the bottle and returns the result. Every step that waits for the bottle's processes has a deadline. After
    /// these steps, the backend removes all remaining processes and resources. Also returns files of the bottle that
    /// were only moved away. The caller removes these files after it has reported the result.
    pub(super) async fn run(mut self, end: End) -> (Ended, Vec<Resource>) {
        let _ = self.claim.update(|record| record.status = Status::Ending);
        let search = search(self.backend, &self.claim).await;
        if end.exit.is_none() {
            self.unpause().await;
        }
        self.save_terminal_size().await;
        // If the agent still runs, it can write output until it is stopped, so the log is followed.
        let output = Logs { tail: None, follow: end.exit.is_none() };
        let output = tokio::spawn(read_output(self.guest.open(&GuestRequest::Logs(output)).await));
        let exit = match end.exit {
            Some(exit) => Some(exit),
            None => self.stop_agent(end).await,
        };
        // The output is saved in the bottle's directory. If the directory is not kept, the output is removed with it.
        self.save_output(output).await;
        let overrun = self.overrun().await;
        let conversation = self.save_conversations().await;
        // Pid 1 searches for unsaved work after all other processes have ended. If a process still ran, it could write
        // files after the search, and these files would be lost.
        let found = self.end_processes(search.as_ref()).await;
        let lost = search.is_some() && found.is_none() && is_lost(self.backend, &self.claim).await;
        let unsaved = match lost {
            true => Unsaved::default(),
            false => unsaved_at_end(self.backend, &self.claim, search.as_ref(), found).await,
        };
        // An error is ignored, because a cleanup removes abandoned snapshots later.
        let _ = snapshots::remove_abandoned(self.backend, &self.claim).await;
        let had = Found {
            unsaved,
            lost,
            is_task: self.is_task(),
            conversation: conversation.found,
            snapshot: self.claim.has_snapshot(),
            learn: self.claim.record().learn,
        };
        let keeping = Keeping::of(&end, exit, had);
        let _ = self.claim.update(|record| {
            record.lost = lost;
            record.kept_for = keeping.why.clone();
        });
        // The deploy keys are revoked while the resources are removed, so that a forge that does not respond does not
        // delay the removal.
        let revoking = deploy_keys::revoke(self.host, &self.claim, &self.tokens);
        let ((mut left, moved), keys, size) =
            tokio::join!(self.remove_resources(&keeping), revoking, self.measure(keeping.files()));
        left.extend(keys);
        if size.is_some() {
            let _ = self.claim.update(|record| record.size = size);
        }
        // `records_task` ends when pid 1 and the bundle have ended and all received records are written.
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
        let kept = if keeping.files() { self.backend.kept_workspace(&slug) } else { None };
        let left = finish(self.claim, exit, &keeping, left);
        let ended = Ended {
            agent: exit,
            cause: end.cause,
            overrun,
            lost,
            kept: kept.map(|path| path.display().to_string()),
            kept_for: keeping.why,
            retrieval,
            resumable: keeping.resumable,
            transcript: conversation.copied_to.map(|path| path.display().to_string()),
            live,
            learned: learned.map(|(learned, _)| learned.hosts.len()),
            audit,
            left,
        };
        (ended, moved)
    }

    /// Continues a bottle that something other than `bottle` paused, because paused processes cannot end.
    async fn unpause(&self) {
        let slug = self.claim.record().slug;
        match tokio::time::timeout(STEP_TIMEOUT, self.backend.recover(&slug, PausedBy::Other)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("{}", causes::one_line(&error)),
            Err(_) => tracing::warn!("cannot find out in time whether {slug} is paused"),
        }
    }

    /// Records the size of the agent's terminal. `bottle` needs this size to render the saved output.
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

    /// Returns the resource limit that the bottle exceeded. Asks pid 1 if the backend reports no exceeded limit.
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
                // If the agent had conversations, they now exist only in the bottle.
                Conversation { found: Talked::Unknown, copied_to: None }
            }
        }
    }

    /// Stops all processes of the bottle except pid 1. Returns the agent's exit, if it is known.
    async fn stop_agent(&mut self, end: End) -> Option<Exit> {
        let grace_ms = u64::try_from(end.grace.as_millis()).unwrap_or(u64::MAX);
        let stopping = async {
            let mut stop = self.guest.open(&GuestRequest::EndProcesses { grace_ms }).await.ok()?;
            let (exit, _) = tokio::join!(agent_end(&mut self.agent), stop.receive::<GuestEvent>());
            exit
        };
        tokio::time::timeout(end.grace + STEP_TIMEOUT, stopping).await.ok().flatten()
    }

    /// Whether the bottle is the environment of a task. The files of such a bottle stay until the user runs `bottle env
    /// rm`.
    fn is_task(&self) -> bool {
        let slug = self.claim.record().slug;
        Environments::has(&self.host.home, &slug)
    }

    /// Returns the size of the kept files. If the measurement takes too long, returns the last measured size.
    async fn measure(&self, keep: bool) -> Option<Measured> {
        if !keep {
            return None;
        }
        let measured = activity::measure(self.backend, &self.claim);
        tokio::time::timeout(MEASURED_WITHIN, measured).await.ok().flatten().or(self.size)
    }

    /// Writes the agent's buffered output to `logs/agent.log`. Masks the secrets in the output.
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

    /// Ends pid 1 and the bundle. Returns the unsaved work that pid 1 found, or `None` if pid 1 did not answer.
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

    /// Removes the bottle's resources. Returns messages about failures, and the files that were only moved away.
    async fn remove_resources(&self, keeping: &Keeping) -> (Vec<String>, Vec<Resource>) {
        if !keeping.files() {
            // The record is updated before the removal. Otherwise, after a crash, a command could mistake the remaining
            // resources for kept files.
            let _ = self.claim.update(|record| record.kept = false);
        }
        let mut resources: Vec<Resource> = self.claim.record().resources;
        resources.retain(|resource| !keeping.keeps(resource));
        resources.reverse();
        match self.backend.move_away(&resources).await {
            Ok(moved) => (Vec::new(), moved),
            Err(error) => (vec![causes::one_line(&error)], Vec::new()),
        }
    }
}

/// Returns the bottle's unused tokens to its budgets. If this fails, a later process that needs these tokens ends the
/// leases.
async fn end_leases(host: &Host, directory: &Path, record: &Record) {
    let (host, directory, record) = (host.clone(), directory.to_owned(), record.clone());
    let ended = spawn_blocking(move || budget::end_leases(&host, &directory, &record)).await;
    if let Ok(Err(error)) = ended {
        tracing::warn!("cannot end the bottle's leases: {}", causes::one_line(&error));
    }
}

/// The result of copying the agent's conversations.
struct Conversation {
    found: Talked,
    copied_to: Option<PathBuf>,
}

/// Keeps the bottle's directory, leaves it for its logs or a later cleanup, or removes it. Returns messages about
/// failures.
fn finish(claim: Claim, exit: Option<Exit>, keeping: &Keeping, mut left: Vec<String>) -> Vec<String> {
    // If usage records cannot be collected from the directory, this counts as a failure, so that the directory is not
    // removed.
    let collected = claim.collect_usage();
    left.extend(collected.err().map(|error| error.to_string()));
    let cleared = left.is_empty();
    let update = |status: Option<Status>| {
        claim.update(|record| {
            record.agent_exit = exit;
            record.status = status.unwrap_or(record.status);
            if cleared {
                record.resources.retain(|resource| keeping.keeps(resource));
            }
        })
    };
    let done = match keeping.directory(cleared) {
        Directory::Kept => update(None).and_then(|()| claim.preserve(keeping.files())),
        Directory::Ended => update(Some(Status::Ended)),
        Directory::Removed => {
            log::close();
            claim.remove()
        }
    };
    left.extend(done.err().map(|error| error.to_string()));
    left
}

/// Reads the agent's output to the end of the stream. Whenever the output exceeds `2 * SCROLLBACK` bytes, keeps only
/// the last `SCROLLBACK` bytes.
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
