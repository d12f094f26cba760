//! Launches an agent from a plan. Each phase of the launch is a type, so that the compiler enforces the order of the
//! phases.
//!
//! ```text
//! Planned ──network──► Networked ──start_sidecars──► SidecarsReady ──provision──► Provisioned ──start_agent──► Running
//!                                   │ bundle started, provisioned, healthy
//!                                   │ pid 1 started (in parallel; only the guest runs in it)
//! ```
//! [`open_kept`] opens the files of a kept bottle without a launch: only pid 1 runs, with neither a network nor
//! secrets.
//!
//! Only a [`Provisioned`] value can start an agent. Such a value exists only if every sidecar is ready. Each phase
//! records a resource in the resource log before it creates the resource. If the container engine assigns the
//! resource's id, the phase records the resource immediately after its creation. After a failure, an interrupt or a
//! crash, [`undo`] finds every resource in the resource log or by its label.

mod canary;
mod connection;
mod context;
mod conversation;
mod environment;
mod error;
mod git_dir;
mod git_format;
mod given_record;
mod guest;
pub mod isolation;
mod kept;
pub mod order;
mod services;
mod sidecars;
mod tar_entries;
mod truststore;
mod workspace;
mod workspace_archive;
mod workspace_files;

pub use canary::Canary;
pub use connection::{connect, connect_bundle};
pub use context::LaunchContext;
pub use environment::TERMINAL_HINTS;
pub use error::{LaunchError, Peer};
pub use git_dir::{CopiedWorktrees, GitDir};
pub use guest::agent_end;
pub use kept::open_kept;
pub use workspace_files::{FileSelection, Objects, WorkspaceFiles};

use bottle_backend::{Backend, LAYERS};
use bottle_channel::{Channel, Stream};
use bottle_host::{Host, causes, roots};
use bottle_instance::Claim;
use bottle_instance::deploy_keys::{self, Tokens};
use bottle_instance::transcripts::Transcripts;
use tokio::task::JoinHandle;

use self::context::Trust;
use self::workspace::PendingReadyTime;

/// The phase in which only the claim on the bottle's directory exists.
pub struct Planned<'a>(LaunchContext<'a>);

/// The phase in which the private network and the directory of the proxy's sockets exist.
pub struct Networked<'a> {
    context: LaunchContext<'a>,
    roots: JoinHandle<String>,
}

/// The phase in which every sidecar is ready and has its secrets. Pid 1 runs, but has not received its configuration
/// and files.
pub struct SidecarsReady<'a> {
    context: LaunchContext<'a>,
    bundle: Channel,
    guest: Channel,
    trust: Trust,
    ready: Option<PendingReadyTime>,
}

/// The phase in which pid 1 has received everything that the agent needs.
pub struct Provisioned<'a> {
    context: LaunchContext<'a>,
    bundle: Channel,
    guest: Channel,
}

/// The phase in which the agent runs.
pub struct Running {
    /// The channel to the bundle.
    pub bundle: Channel,
    /// The channel to pid 1.
    pub guest: Channel,
    /// Reports the agent's exit.
    pub agent: Stream,
}

impl<'a> Planned<'a> {
    /// Creates the first phase. Has no side effects.
    #[must_use]
    pub fn new(context: LaunchContext<'a>) -> Self {
        Self(context)
    }

    /// Creates the private network and the directory of the proxy's sockets.
    ///
    /// # Errors
    /// [`LaunchError`]. After an error, the caller must call [`undo`].
    pub async fn network(self) -> Result<Networked<'a>, LaunchError> {
        // The root certificates are read in parallel with the next phases, because on many machines they are hundreds
        // of small files.
        let roots = tokio::task::spawn_blocking(roots::of_this_machine);
        self.0.backend.make_network(&self.0.launch()).await?;
        Ok(Networked { context: self.0, roots })
    }
}

impl<'a> Networked<'a> {
    /// Starts the bundle and pid 1 in parallel, and waits until every sidecar is ready.
    ///
    /// # Errors
    /// The [`LaunchError`] of the bundle or of pid 1. The error is returned only after both start attempts have
    /// finished.
    pub async fn start_sidecars(self) -> Result<SidecarsReady<'a>, LaunchError> {
        // The start attempts of the bundle and of pid 1 both finish before a failure is reported, so that neither
        // creates resources while the launch is undone.
        let starting_guest = async {
            let guest = guest::start(&self.context).await?;
            let ready = workspace::request_ready_time(&self.context, &guest).await?;
            Ok::<_, LaunchError>((guest, ready))
        };
        let (sidecars, guest) = tokio::join!(sidecars::start(&self.context, self.roots), starting_guest);
        let (bundle, trust) = sidecars?;
        let (guest, ready) = guest?;
        Ok(SidecarsReady { bundle, trust, guest, ready, context: self.context })
    }
}

impl<'a> SidecarsReady<'a> {
    /// Sends certificates, environment, files, the workspace and saved conversations to pid 1, and runs the isolation
    /// probe in parallel.
    ///
    /// # Errors
    /// [`LaunchError`], for example [`LaunchError::Isolation`]. After an error, the caller must call [`undo`].
    pub async fn provision(mut self) -> Result<Provisioned<'a>, LaunchError> {
        let ready = self.ready.take();
        let (probed, filled) =
            tokio::join!(guest::probe_isolation(&self.context, &self.guest), self.fill(ready));
        // If both futures fail, the failure of the isolation probe is reported.
        probed.and(filled)?;
        Ok(Provisioned { context: self.context, bundle: self.bundle, guest: self.guest })
    }

    async fn fill(&self, ready: Option<PendingReadyTime>) -> Result<(), LaunchError> {
        guest::provision(&self.context, &self.guest, &self.trust).await?;
        workspace::fill(&self.context, &self.guest, ready).await?;
        if self.context.order.resumed.as_ref().is_some_and(|resumed| resumed.give_back) {
            let transcripts = Transcripts::of(&self.context.host.home, &self.context.claim.record());
            let paths = &self.context.order.plan.transcript;
            conversation::restore_transcripts(&self.guest, transcripts.directory(), paths).await?;
        }
        Ok(())
    }
}

impl Provisioned<'_> {
    /// Starts the bottle's services, and waits until all services are ready.
    ///
    /// # Errors
    /// [`LaunchError::Service`] if a service does not become ready. After an error, the caller must call [`undo`].
    pub async fn start_services(self) -> Result<Self, LaunchError> {
        services::start(&self.guest, &self.context.order.plan.services).await?;
        Ok(self)
    }

    /// Starts the agent.
    ///
    /// # Errors
    /// [`LaunchError`], for example `ProgramMissing` or `ProgramRefused` when the agent's program cannot be executed.
    pub async fn start_agent(self) -> Result<Running, LaunchError> {
        let agent = guest::start_agent(&self.context, &self.guest).await?;
        Ok(Running { bundle: self.bundle, guest: self.guest, agent })
    }
}

/// Undoes a launch. Removes every resource in the resource log, newest first, and resources of an interrupted launch
/// that the resource log does not contain. Revokes the launch's deploy keys. Does not remove the kept layers of an
/// earlier launch. Returns messages about failures.
pub async fn undo(host: &Host, backend: &dyn Backend, claim: &Claim, tokens: &Tokens) -> Vec<String> {
    // The deploy keys are revoked while the resources are removed, so that a forge that does not respond does not delay
    // the removal.
    let (mut left, keys) =
        tokio::join!(remove_launch(backend, claim), deploy_keys::revoke(host, claim, tokens));
    left.extend(keys);
    left
}

/// Removes every resource of a launch as [`undo`] does, but does not revoke the deploy keys. Returns messages about
/// failures.
pub async fn remove_launch(backend: &dyn Backend, claim: &Claim) -> Vec<String> {
    let record = claim.record();
    let kept = record.kept;
    let mut resources = record.resources;
    resources.reverse();
    let mut left = Vec::new();
    match backend.enumerate().await {
        Ok(found) => {
            let unrecorded = found.into_iter().filter(|found| found.slug == record.slug);
            let unrecorded: Vec<_> = unrecorded.filter(|found| !resources.contains(found)).collect();
            resources.splice(0..0, unrecorded);
        }
        Err(error) => left.push(error.to_string()),
    }
    resources.retain(|resource| !kept || resource.kind != LAYERS);
    left.extend(backend.remove(&resources).await.err().map(|error| causes::one_line(&error)));
    left
}
