//! Tearing a bottle down, and keeping what is worth it.
//!
//! ```text
//! agent ended │ stop │ client gone ─► agent's output ─► work? ─► pid 1, bundle ─► resources ─► folder
//!                                     to logs/ if        │ yes: layers and folder stay, `.preserve`
//!                                     nobody saw it      │ no: all of it goes, logs stay after a failure
//! ```

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use bottle_channel::{Channel, Event, Stream};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::guest::{
    Exit, GuestEvent, GuestRequest, Logs, SCROLLBACK, STDERR, STDOUT, Stop,
};

use bottle_scan::Redactor;

use super::protocol::{EndCause, Ended};
use crate::backend::{Backend, LAYERS, Resource};
use crate::instance::Claim;
use crate::instance::record::Status;
use crate::launch::agent_end;

/// How much longer than the agent's grace pid 1 may take, and how long the bundle may.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the end when it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) cause: EndCause,
    pub(super) exit: Option<Exit>,
    pub(super) grace: Duration,
    /// Whether anybody was ever attached.
    pub(super) seen: bool,
}

/// What is torn down.
pub(super) struct Scene<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) claim: Claim,
    pub(super) guest: Channel,
    pub(super) bundle: Channel,
    pub(super) agent: Stream,
    pub(super) secrets: Vec<Secret>,
}

impl Scene<'_> {
    /// Ends everything and says what came of it. Every step has its deadline; the backend's removal then
    /// takes what did not end by itself.
    pub(super) async fn tear_down(mut self, end: End) -> Ended {
        let _ = self.claim.update(|record| record.status = Status::Ending);
        let exit = match end.exit {
            Some(exit) => Some(exit),
            None => self.stop_agent(end).await,
        };
        let failed = exit != Some(Exit::Code(0));
        let keep_logs = !end.seen || (failed && end.cause == EndCause::AgentExited);
        if keep_logs {
            self.save_output().await;
        }
        // In this order: what still runs could write after the look, and its work would be discarded.
        self.end_processes().await;
        let holds_work = self.holds_work().await;
        let left = self.remove_resources(holds_work).await;
        let slug = self.claim.record().slug;
        let kept = if holds_work {
            self.backend.kept_workspace(&slug).map(|path| path.display().to_string())
        } else {
            None
        };
        let left = finish(self.claim, exit, Keeping { holds_work, logs: keep_logs }, left);
        Ended { agent: exit, cause: end.cause, kept, left }
    }

    async fn stop_agent(&mut self, end: End) -> Option<Exit> {
        let grace_ms = u64::try_from(end.grace.as_millis()).unwrap_or(u64::MAX);
        let mut stop = self.guest.open(&GuestRequest::Stop(Stop { grace_ms })).await.ok()?;
        let ended = async {
            let exit = agent_end(&mut self.agent).await;
            let _ = stop.receive::<GuestEvent>().await;
            exit
        };
        tokio::time::timeout(end.grace + PATIENCE, ended).await.ok().flatten()
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

    async fn holds_work(&self) -> bool {
        let record = self.claim.record();
        let Some(since) = record.workspace_ready else { return false };
        match self.backend.holds_work(&record.slug, since).await {
            Ok(work) => work,
            Err(error) => {
                tracing::warn!("the workspace could not be looked at, so it is kept: {error}");
                true
            }
        }
    }

    async fn end_processes(&self) {
        let guest = async {
            let stop = GuestRequest::Stop(Stop { grace_ms: 0 });
            if let Ok(mut stream) = self.guest.open(&stop).await {
                let _ = stream.receive::<GuestEvent>().await;
            }
        };
        let bundle = async {
            if let Ok(mut stream) = self.bundle.open(&BundleRequest::Stop).await {
                let _ = stream.receive::<BundleEvent>().await;
            }
        };
        let _ = tokio::join!(tokio::time::timeout(PATIENCE, guest), tokio::time::timeout(PATIENCE, bundle));
    }

    async fn remove_resources(&self, holds_work: bool) -> Vec<String> {
        let mut doomed: Vec<Resource> = self.claim.record().resources;
        doomed.retain(|resource| !holds_work || resource.kind != LAYERS);
        doomed.reverse();
        match self.backend.remove(&doomed).await {
            Ok(()) => Vec::new(),
            Err(error) => vec![error.to_string()],
        }
    }
}

struct Keeping {
    holds_work: bool,
    logs: bool,
}

/// The folder's end: preserved, left with its logs, or gone.
fn finish(claim: Claim, exit: Option<Exit>, keeping: Keeping, mut left: Vec<String>) -> Vec<String> {
    let done = if keeping.holds_work {
        claim.update(|record| record.agent_exit = exit).and_then(|()| claim.preserve())
    } else if keeping.logs || !left.is_empty() {
        claim.update(|record| {
            record.agent_exit = exit;
            record.status = Status::Ended;
            if left.is_empty() {
                record.resources.clear();
            }
        })
    } else {
        claim.remove()
    };
    left.extend(done.err().map(|error| error.to_string()));
    left
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
