//! From a plan to a running agent, in phases that the types keep in order.
//!
//! ```text
//! Planned ──network──► Networked ──guard──► SidecarsReady ──provision──► Provisioned ──start──► Running
//!                                   │ bundle started, provisioned, healthy
//!                                   │ pid 1 started (at once; nothing but the guest runs in it)
//! ```
//! There is no way to start an agent without a [`Provisioned`], and none to get one without every guard's
//! word. What a phase makes stands in the ledger before it exists, so undoing needs no phase's memory:
//! [`undo`] removes what the ledger names, after a failure, an interrupt or a crash alike.

mod canary;
mod conversation;
mod environment;
mod guest;
pub mod isolation;
pub mod order;
mod sidecars;
mod workspace;

pub use canary::Canary;
pub use guest::agent_end;
use workspace::AskedReady;

use std::collections::BTreeMap;

use bottle_channel::{Channel, Stream};
use bottle_contract::names::Name;
use bottle_contract::session::guest::{Attempt, Reach, SecretText};
use bottle_contract::terminal::inert;
use tokio::task::JoinHandle;

use self::order::LaunchOrder;
use crate::backend::{Backend, BackendError, LAYERS, ProgressSink, Site};
use crate::forge::ForgeError;
use crate::host::{Host, roots};
use crate::instance::Claim;
use crate::instance::deploy_keys::{self, KeyError, Tokens};
use crate::instance::transcripts::Transcripts;

/// What every phase works with.
pub struct Work<'a> {
    /// The machine.
    pub host: &'a Host,
    /// The backend that launches.
    pub backend: &'a dyn Backend,
    /// The plan, what was prepared for it, and the secrets.
    pub order: &'a LaunchOrder,
    /// The bottle's folder, lock and ledger.
    pub claim: &'a Claim,
    /// Is told how much of the working directory is copied.
    pub told: ProgressSink,
    /// What this launch puts into the agent's environment for nobody to use.
    pub canary: Canary,
    /// The private halves of the deploy keys that were made for it, by the repositories' names.
    pub deploy_keys: BTreeMap<Name, SecretText>,
}

impl Work<'_> {
    fn site(&self) -> Site<'_> {
        Site {
            plan: &self.order.plan,
            state: self.claim.folder(),
            ledger: self.claim,
            origin: &self.order.origin,
        }
    }
}

/// Nothing exists but the claim.
pub struct Planned<'a>(Work<'a>);

/// The private network and the place of the proxy exist.
pub struct Networked<'a> {
    work: Work<'a>,
    roots: JoinHandle<String>,
}

/// Every daemon of the bundle answered and holds its secrets; pid 1 waits.
pub struct SidecarsReady<'a> {
    work: Work<'a>,
    bundle: Channel,
    guest: Channel,
    trust: Trust,
    ready: Option<AskedReady>,
}

/// What programs in the bottle have to trust, PEM.
struct Trust {
    /// The proxy's own authority.
    authority: String,
    /// The machine's roots.
    roots: String,
}

/// Pid 1 has everything that the agent needs.
pub struct Provisioned<'a> {
    work: Work<'a>,
    bundle: Channel,
    guest: Channel,
}

/// The agent runs.
pub struct Running {
    /// To the bundle.
    pub bundle: Channel,
    /// To pid 1.
    pub guest: Channel,
    /// Brings the agent's end.
    pub agent: Stream,
}

impl<'a> Planned<'a> {
    /// The first phase. Touches nothing.
    #[must_use]
    pub fn new(work: Work<'a>) -> Self {
        Self(work)
    }

    /// Makes the private network and the place of the proxy.
    ///
    /// # Errors
    /// [`LaunchError`]; see [`undo`].
    pub async fn network(self) -> Result<Networked<'a>, LaunchError> {
        // Hundreds of small files on many machines: read while everything else is made.
        let roots = tokio::task::spawn_blocking(roots::of_this_machine);
        self.0.backend.make_network(&self.0.site()).await?;
        Ok(Networked { work: self.0, roots })
    }
}

impl<'a> Networked<'a> {
    /// Starts the bundle and pid 1 side by side and waits for every guard's word.
    ///
    /// # Errors
    /// [`LaunchError`]; both attempts have ended by then.
    pub async fn guard(self) -> Result<SidecarsReady<'a>, LaunchError> {
        // Joined, not raced: the first failure is reported, and nothing is being made while it is undone.
        let waiting = async {
            let guest = guest::start(&self.work).await?;
            let ready = workspace::ask_ready(&self.work, &guest).await?;
            Ok::<_, LaunchError>((guest, ready))
        };
        let (guarded, waiting) = tokio::join!(sidecars::raise(&self.work, self.roots), waiting);
        let (bundle, trust) = guarded?;
        let (guest, ready) = waiting?;
        Ok(SidecarsReady { bundle, trust, guest, ready, work: self.work })
    }
}

impl<'a> SidecarsReady<'a> {
    /// Gives pid 1 certificates, environment, files and the workspace, and has it try every way out meanwhile.
    ///
    /// # Errors
    /// [`LaunchError`], [`LaunchError::Isolation`] among them; see [`undo`].
    pub async fn provision(mut self) -> Result<Provisioned<'a>, LaunchError> {
        let ready = self.ready.take();
        // A hole is reported before anything else that failed.
        let (measured, filled) = tokio::join!(guest::measure(&self.work, &self.guest), self.fill(ready));
        measured.and(filled)?;
        Ok(Provisioned { work: self.work, bundle: self.bundle, guest: self.guest })
    }

    async fn fill(&self, ready: Option<AskedReady>) -> Result<(), LaunchError> {
        guest::provision(&self.work, &self.guest, &self.trust).await?;
        workspace::fill(&self.work, &self.guest, ready).await?;
        if self.work.order.resumed.as_ref().is_some_and(|resumed| resumed.give_back) {
            let transcripts = Transcripts::of(&self.work.host.home, &self.work.claim.record());
            let paths = &self.work.order.plan.transcript;
            conversation::give_back(&self.guest, transcripts.folder(), paths).await?;
        }
        Ok(())
    }
}

impl Provisioned<'_> {
    /// Starts the agent.
    ///
    /// # Errors
    /// [`LaunchError`], with `ProgramMissing` or `ProgramRefused` when it is the agent's own program.
    pub async fn start_agent(self) -> Result<Running, LaunchError> {
        let agent = guest::start_agent(&self.work, &self.guest).await?;
        Ok(Running { bundle: self.bundle, guest: self.guest, agent })
    }
}

/// Removes everything that the ledger names, last made first, and what a launch that was cut off made
/// without getting to write it down; revokes its deploy keys. What an earlier launch left in the layers stays. The
/// answer is what could not be looked at, removed or revoked.
pub async fn undo(host: &Host, backend: &dyn Backend, claim: &Claim, tokens: &Tokens) -> Vec<String> {
    // Side by side: a forge that hangs holds nothing else up.
    let (mut left, keys) = tokio::join!(remove(backend, claim), deploy_keys::revoke(host, claim, tokens));
    left.extend(keys);
    left
}

async fn remove(backend: &dyn Backend, claim: &Claim) -> Vec<String> {
    let record = claim.record();
    let kept = record.kept;
    let mut resources = record.resources;
    resources.reverse();
    let mut left = Vec::new();
    match backend.enumerate().await {
        Ok(found) => {
            let unwritten = found.into_iter().filter(|found| found.slug == record.slug);
            let unwritten: Vec<_> = unwritten.filter(|found| !resources.contains(found)).collect();
            resources.splice(0..0, unwritten);
        }
        Err(error) => left.push(error.to_string()),
    }
    resources.retain(|resource| !kept || resource.kind != LAYERS);
    left.extend(backend.remove(&resources).await.err().map(|error| error.to_string()));
    left
}

/// Attempts that did not end as they must, in a row.
fn holes(attempts: &[Attempt]) -> String {
    let words = attempts.iter().map(|attempt| {
        let Attempt { target, via, seen, result, .. } = attempt;
        let result =
            if *result == Reach::Reached { "was reached" } else { "could not be shown to be closed" };
        inert(&format!("{target} {result} by {via} ({seen})"))
    });
    words.collect::<Vec<_>>().join("; ")
}

/// Why a launch did not get to a running agent.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The backend could not.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A process inside did not answer, or not what it must.
    #[error("the {who} {what}")]
    Peer {
        /// `bundle` or `guest`.
        who: &'static str,
        /// What it did, as the rest of the sentence.
        what: String,
    },
    /// Something of the host that the launch needs is not as it must be.
    #[error("{0}")]
    Host(String),
    /// A forge did not give a deploy key.
    #[error(transparent)]
    Forge(ForgeError),
    /// The bottle reached what it must not, or could not be shown not to.
    #[error("isolation could not be proven: {}", holes(.0))]
    Isolation(Vec<Attempt>),
    /// The agent's program is not in the bottle.
    #[error("{0}")]
    ProgramMissing(String),
    /// The agent's program is there and cannot be run.
    #[error("{0}")]
    ProgramRefused(String),
    /// The user or a signal stopped it.
    #[error("interrupted")]
    Interrupted,
}

impl From<KeyError> for LaunchError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Forge(error) => Self::Forge(error),
            KeyError::Host(message) => Self::Host(message),
        }
    }
}

impl LaunchError {
    fn guest(what: impl Into<String>) -> Self {
        Self::Peer { who: "guest", what: what.into() }
    }

    fn bundle(what: impl Into<String>) -> Self {
        Self::Peer { who: "bundle", what: what.into() }
    }
}
