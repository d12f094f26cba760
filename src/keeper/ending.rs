//! Tearing a bottle down, and keeping what is worth it.
//!
//! ```text
//! agent ended │ stop │ client gone ─► agent's output ─► conversations ─► pid 1, bundle ─► work? ─► resources ─► folder
//!                                     to logs/ if       copied out                        │      deploy keys
//!                                     nobody saw it                                       │
//!   there is work, or a failed agent has conversations: layers and folder stay, `.preserve`
//!   neither, and there is a snapshot: the folder stays, which names it
//!   none of it: all goes, logs stay after a failure
//! ```

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use bottle_channel::{Channel, ChannelError, Event, Stream};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::guest::{
    Changed, Exit, GuestEvent, GuestRequest, Logs, Overrun, SCROLLBACK, STDERR, STDOUT, Stop,
};
use jiff::Timestamp;
use tokio::task::JoinHandle;

use bottle_scan::Redactor;

use super::protocol::{EndCause, EndChoice, Ended, Resumable};
use super::transcript;
use crate::backend::{Backend, BackendError, LAYERS, Resource};
use crate::host::Host;
use crate::instance::Claim;
use crate::instance::audit::Trail;
use crate::instance::deploy_keys::{self, Tokens};
use crate::instance::freeze;
use crate::instance::record::Status;
use crate::instance::transcripts::Transcripts;
use crate::launch::agent_end;
use crate::learn;

/// How much longer than the agent's grace pid 1 may take, and how long the bundle may.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long pid 1 may look for work while a user waits to be asked about it.
const LOOKED_WITHIN: Duration = Duration::from_secs(30);

/// What is known of the end when it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) cause: EndCause,
    pub(super) exit: Option<Exit>,
    pub(super) grace: Duration,
    /// Whether anybody was ever attached.
    pub(super) seen: bool,
    /// What a user said about unsaved work.
    pub(super) choice: EndChoice,
}

/// What is torn down.
pub(super) struct Scene<'a> {
    /// The machine.
    pub(super) host: &'a Host,
    pub(super) backend: &'a dyn Backend,
    pub(super) claim: Claim,
    pub(super) guest: Channel,
    pub(super) bundle: Channel,
    pub(super) agent: Stream,
    /// Writes down what the bundle counted.
    pub(super) counting: JoinHandle<()>,
    pub(super) secrets: Vec<Secret>,
    pub(super) tokens: Tokens,
}

impl Scene<'_> {
    /// Ends everything and says what came of it. Every step has its deadline; the backend's removal then
    /// takes what did not end by itself.
    pub(super) async fn tear_down(mut self, end: End) -> Ended {
        let _ = self.claim.update(|record| record.status = Status::Ending);
        let since = work_since(self.backend, &self.claim).await;
        let (exit, stopped) = match end.exit {
            Some(exit) => (Some(exit), None),
            None => self.stop_agent(end, since).await,
        };
        let failed = exit != Some(Exit::Code(0));
        let keep_logs = !end.seen || (failed && end.cause == EndCause::AgentExited);
        if keep_logs {
            self.save_output().await;
        }
        let overrun = self.overrun().await;
        let conversation = self.save_conversations(exit).await;
        // Pid 1 looks when nothing else runs: what does could write after, and its work would be discarded.
        let looked = self.end_processes(since).await.or(stopped);
        let keep = end.choice == EndChoice::Keep
            && (self.holds_work(since, looked).await || failed && conversation.worth_keeping);
        let logs = keep_logs || self.claim.record().learn;
        let keeping = Keeping { layers: keep, snapshot: self.claim.has_snapshot(), logs };
        // Side by side: a forge that hangs holds nothing else up.
        let revoking = deploy_keys::revoke(self.host, &self.claim, &self.tokens);
        let (mut left, keys) = tokio::join!(self.remove_resources(keep), revoking);
        left.extend(keys);
        // It ends with the bundle, when all is written that it was told of.
        if tokio::time::timeout(PATIENCE, &mut self.counting).await.is_err() {
            self.counting.abort();
        }
        let record = self.claim.record();
        let learned = if record.learn { learn::of_bottle(self.claim.folder()) } else { Ok(None) };
        let learned = learned.unwrap_or_else(|error| {
            tracing::warn!("what was refused cannot be learned from: {error}");
            None
        });
        let slug = record.slug;
        let audit = Trail::of(&self.host.home, &slug).kept_head();
        let kept = if keep { self.backend.kept_workspace(&slug) } else { None };
        let (left, preserved) = finish(self.claim, exit, keeping, left);
        Ended {
            agent: exit,
            cause: end.cause,
            overrun,
            kept: kept.map(|path| path.display().to_string()),
            resumable: preserved.then_some(if keep { Resumable::Kept } else { Resumable::Snapshot }),
            transcript: conversation.copied_to.map(|path| path.display().to_string()),
            learned: learned.map(|(learned, _)| learned.hosts.len()),
            audit,
            left,
        }
    }

    /// The limit that the bottle went beyond: as the system knows it, else as pid 1 does.
    async fn overrun(&self) -> Option<Overrun> {
        let asked = async {
            if let Some(overrun) = self.backend.overrun(&self.claim.record().slug).await {
                return Some(overrun);
            }
            let mut stream = self.guest.open(&GuestRequest::Status).await.ok()?;
            match stream.receive().await {
                Ok(GuestEvent::Status { overrun, .. }) => overrun,
                _ => None,
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
    }

    /// Copies the agent's conversations out, where pid 1 is still there to do it.
    async fn save_conversations(&self, exit: Option<Exit>) -> Conversation {
        let record = self.claim.record();
        let transcripts = Transcripts::of(&self.host.home, &record);
        match transcript::save(&transcripts, &record.transcript, &self.guest, &self.secrets).await {
            Ok(found) => Conversation {
                worth_keeping: found,
                copied_to: found.then(|| transcripts.folder().to_owned()),
            },
            Err(why) => {
                tracing::warn!("{why}");
                // What nobody could look at may be there: a bottle that broke is kept for it.
                let worth_keeping = exit.is_none() && !record.transcript.is_empty();
                Conversation { worth_keeping, copied_to: None }
            }
        }
    }

    /// How the agent ended, and whether pid 1 found work, as far as either is known.
    async fn stop_agent(&mut self, end: End, since: Option<Timestamp>) -> (Option<Exit>, Option<bool>) {
        let grace_ms = u64::try_from(end.grace.as_millis()).unwrap_or(u64::MAX);
        let request = GuestRequest::Stop(Stop { grace_ms, work_since: since });
        let Ok(mut stop) = self.guest.open(&request).await else { return (None, None) };
        let ended = async { (agent_end(&mut self.agent).await, work_in(stop.receive().await)) };
        tokio::time::timeout(end.grace + PATIENCE, ended).await.unwrap_or_default()
    }

    /// Whether there is anything that would be lost: what pid 1 found, else what the backend finds. A
    /// workspace that cannot be looked at holds work.
    async fn holds_work(&self, since: Option<Timestamp>, looked: Option<bool>) -> bool {
        let record = self.claim.record();
        match (since, looked) {
            (None, _) => record.kept,
            (Some(_), Some(work)) => work,
            (Some(since), None) => looked_at(self.backend.holds_work(&record.slug, since).await),
        }
    }

    /// Writes the agent's kept output to `logs/agent.log`, redacted: its own secrets may be in it.
    async fn save_output(&self) {
        let path = self.claim.folder().join("logs/agent.log");
        let Ok(output) = tokio::time::timeout(PATIENCE, kept_output(&self.guest)).await else { return };
        let redactor = match Redactor::new(&self.secrets) {
            Ok(redactor) => redactor,
            Err(error) => {
                tracing::warn!("the agent's output is not kept: {error}");
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

    /// Whether pid 1 found work, when it was still there to be asked.
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
        let (looked, _) =
            tokio::join!(tokio::time::timeout(PATIENCE, guest), tokio::time::timeout(PATIENCE, bundle));
        looked.ok().flatten()
    }

    async fn remove_resources(&self, keep: bool) -> Vec<String> {
        if !keep {
            // First, so that nobody who finds the rest takes it for kept work.
            let _ = self.claim.update(|record| record.kept = false);
        }
        let mut doomed: Vec<Resource> = self.claim.record().resources;
        doomed.retain(|resource| !keep || resource.kind != LAYERS);
        doomed.reverse();
        match self.backend.remove(&doomed).await {
            Ok(()) => Vec::new(),
            Err(error) => vec![error.to_string()],
        }
    }
}

/// Whether the workspace of a bottle that runs holds anything that would be lost: asked over its own channel,
/// beside which there is no other.
pub(super) async fn holds_work(backend: &dyn Backend, claim: &Claim, guest: &Channel) -> bool {
    let Some(since) = work_since(backend, claim).await else { return claim.record().kept };
    let asked = async {
        let mut stream = guest.open(&GuestRequest::Changed(Changed { since })).await.ok()?;
        work_in(stream.receive().await)
    };
    let silent = || BackendError::failed("pid 1 does not say");
    let looked = tokio::time::timeout(LOOKED_WITHIN, asked).await.ok().flatten();
    looked_at(looked.ok_or_else(silent))
}

async fn work_since(backend: &dyn Backend, claim: &Claim) -> Option<Timestamp> {
    freeze::work_since(backend, claim.folder(), &claim.record()).await
}

/// What pid 1 said of work.
fn work_in(said: Result<GuestEvent, ChannelError>) -> Option<bool> {
    match said {
        Ok(GuestEvent::Changed { work }) => Some(work),
        _ => None,
    }
}

fn looked_at(looked: Result<bool, BackendError>) -> bool {
    looked.unwrap_or_else(|error| {
        tracing::warn!("the workspace could not be looked at, so it is kept: {error}");
        true
    })
}

/// What became of the agent's conversations.
struct Conversation {
    /// Whether a failed agent's bottle is kept for them.
    worth_keeping: bool,
    copied_to: Option<PathBuf>,
}

struct Keeping {
    layers: bool,
    snapshot: bool,
    logs: bool,
}

/// The folder's end: preserved, left with its logs, or gone. Answers what failed, and whether it is preserved.
fn finish(claim: Claim, exit: Option<Exit>, keeping: Keeping, mut left: Vec<String>) -> (Vec<String>, bool) {
    let preserved = keeping.layers || keeping.snapshot;
    // Its folder stays as long as it holds what was not written down.
    let gathered = claim.gather_usage();
    left.extend(gathered.err().map(|error| error.to_string()));
    let done = if preserved {
        let cleared = left.is_empty();
        let wrote = claim.update(|record| {
            record.agent_exit = exit;
            if cleared {
                record.resources.retain(|resource| keeping.layers && resource.kind == LAYERS);
            }
        });
        wrote.and_then(|()| claim.preserve(keeping.layers))
    } else if keeping.logs || !left.is_empty() {
        claim.update(|record| {
            record.agent_exit = exit;
            record.status = Status::Ended;
            if left.is_empty() {
                record.resources.clear();
            }
        })
    } else {
        super::let_go_of_log();
        claim.remove()
    };
    left.extend(done.err().map(|error| error.to_string()));
    (left, preserved)
}

async fn kept_output(guest: &Channel) -> Vec<u8> {
    let mut output = Vec::new();
    let Ok(mut stream) = guest.open(&GuestRequest::Logs(Logs { tail: None, follow: false })).await else {
        return output;
    };
    while let Some(event) = stream.next().await {
        match event {
            Event::Data { fd: STDOUT | STDERR, bytes } if output.len() + bytes.len() <= 2 * SCROLLBACK => {
                output.extend_from_slice(&bytes);
            }
            Event::Message(_) => {}
            _ => break,
        }
    }
    output
}
