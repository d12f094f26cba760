//! Launches bottles in keeper processes: one bottle, or several concurrently.

use std::cell::RefCell;
use std::pin::Pin;

use bottle_channel::{Channel, StreamReceiver};
use bottle_host::Host;
use bottle_host::process::ProcessId;
use bottle_instance::{State, Store};
use bottle_keeper::client::{self, Launched};
use bottle_keeper::launch::order::LaunchOrder;
use bottle_keeper::protocol::{KeeperEvent, LaunchFailure, LaunchFailureKind, Phase};
use bottle_plan::Workspace;
use bottle_policy::names::Slug;
use futures_util::stream::{self, Stream, StreamExt};

use crate::connect::keeper_lost;
use crate::failure::{Failure, Kind};

/// The maximum number of bottles that are started at the same time. Each start keeps a processor busy for a part of the
/// time.
const AT_ONCE: usize = 4;

/// The progress of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The launch began this phase.
    Phase(&'static str),
    /// The launch has copied this many bytes during the activity with this description.
    Copied(&'static str, u64),
}

/// The failure of a bottle's start.
#[derive(Debug)]
pub struct NotStarted {
    /// Why the bottle did not start.
    pub failure: Failure,
    /// The bottle's resources that could not be removed. A cleanup tries again to remove them.
    pub left: Vec<String>,
    /// Whether the keeper reported that the launch failed and was undone. Otherwise the connection to the keeper was
    /// lost, or the keeper did not start.
    pub is_undone: bool,
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self { failure, left: Vec::new(), is_undone: false }
    }
}

impl NotStarted {
    fn of(failure: LaunchFailure) -> Self {
        let kind = match failure.kind {
            LaunchFailureKind::Backend => Kind::Backend,
            LaunchFailureKind::Isolation => Kind::Isolation,
            LaunchFailureKind::ProgramMissing => Kind::ProgramMissing,
            LaunchFailureKind::ProgramRefused => Kind::ProgramRefused,
            LaunchFailureKind::Interrupted => Kind::Interrupted,
            LaunchFailureKind::Other => Kind::Failed,
        };
        let left = failure.left.clone();
        Self { failure: Failure::from_launch(kind, failure), left, is_undone: true }
    }
}

/// A launch that a keeper carries out. If the value is dropped before the launch has ended, the keeper removes
/// everything that the launch created.
#[derive(Debug)]
pub struct Launching {
    slug: Slug,
    workspace: Workspace,
    channel: Channel,
    events: StreamReceiver,
    phase: Option<Phase>,
}

impl Launching {
    /// Starts a keeper, which launches the bottle.
    ///
    /// # Errors
    /// When there is no runtime directory, or no keeper can be started.
    pub async fn begin(host: &Host, order: &LaunchOrder) -> Result<Self, Failure> {
        host.open_runtime()?;
        let launched = client::launch(host, order).await;
        let Launched { channel, progress: events } =
            launched.map_err(|error| Failure::from_error(Kind::Failed, &error))?;
        let (slug, workspace) = (order.plan.identity.slug.clone(), order.plan.workspace);
        Ok(Self { slug, workspace, channel, events, phase: None })
    }

    /// Waits until the agent runs. Can be called again if the future was dropped.
    ///
    /// # Errors
    /// When the bottle did not start. The keeper has then removed the bottle's resources as far as possible.
    pub async fn started(&mut self, report: &(dyn Fn(Progress) + Sync)) -> Result<(), NotStarted> {
        loop {
            let event = self.events.message::<KeeperEvent>().await;
            match event.map_err(|error| keeper_lost(error).about(&self.slug))? {
                KeeperEvent::Phase(phase) => {
                    self.phase = Some(phase);
                    report(Progress::Phase(phase_text(phase, self.workspace)));
                }
                // The last report of copied bytes may arrive after the next phase has begun, and is then ignored.
                KeeperEvent::Copied(copied) if self.phase == Some(Phase::Provision) => {
                    report(Progress::Copied("copying the directory", copied.bytes));
                }
                KeeperEvent::Copied(copied) if self.phase == Some(Phase::Sidecars) => {
                    report(Progress::Copied("merging the layers of the bottle's files", copied.bytes));
                }
                KeeperEvent::Running { .. } => return Ok(()),
                KeeperEvent::Failed(failure) => return Err(NotStarted::of(failure)),
                _ => {}
            }
        }
    }

    /// Interrupts the launch. [`Self::started`] then returns after the launch is undone.
    pub fn interrupt(&self, host: &Host) {
        interrupt(host, &self.slug);
    }

    /// Returns the connection of the bottle's first client. Dropping the connection ends a bottle that is not detached.
    pub fn into_channel(self) -> Channel {
        self.channel
    }
}

/// Sends SIGINT to the keeper, which is in another process group and so does not get the terminal's signal. If the
/// keeper cannot be found, it still notices that the client's connection closes.
fn interrupt(host: &Host, slug: &Slug) {
    if let Some(State::Alive(record)) = Store::of(host).state(slug)
        && let Some(Ok(keeper)) = record.keeper.map(|keeper| keeper.parse::<ProcessId>())
        && let Err(error) = keeper.interrupt()
    {
        tracing::warn!("cannot interrupt the keeper: {error}");
    }
}

/// A launch order and the result of its launch.
type Ended<'a> = (&'a LaunchOrder, Result<(), NotStarted>);

/// Several launches of background bottles. Only a few of the launches run at the same time. After a failure, no further
/// launch begins.
pub struct SideBySide<'a> {
    host: &'a Host,
    shared: &'a Running,
    launches: Pin<Box<dyn Stream<Item = Option<Ended<'a>>> + 'a>>,
}

/// The launches of a [`SideBySide`] that currently run.
#[derive(Debug, Default)]
pub struct Running(RefCell<RunningNow>);

#[derive(Debug, Default)]
struct RunningNow {
    slugs: Vec<Slug>,
    stopped: bool,
}

impl<'a> SideBySide<'a> {
    /// Creates the launches of these orders. `shared` must be empty.
    pub fn begin(host: &'a Host, orders: &'a [LaunchOrder], shared: &'a Running) -> Self {
        let launches = stream::iter(orders).map(move |order| async move {
            let slug = &order.plan.identity.slug;
            if !shared.begin(slug) {
                return None;
            }
            let launched = launch(host, order).await;
            shared.end(slug, launched.is_ok());
            Some((order, launched))
        });
        Self { host, shared, launches: Box::pin(launches.buffered(AT_ONCE)) }
    }

    /// Returns the next launch that ended, in the order of the launch orders. `None` after the last launch. Can be
    /// called again if the future was dropped.
    pub async fn next(&mut self) -> Option<Ended<'a>> {
        loop {
            // A launch that did not begin has no result.
            if let Some(ended) = self.launches.next().await? {
                return Some(ended);
            }
        }
    }

    /// Interrupts the running launches. No further launch begins.
    pub fn interrupt(&self) {
        let mut running = self.shared.0.borrow_mut();
        running.stopped = true;
        running.slugs.iter().for_each(|slug| interrupt(self.host, slug));
    }
}

impl Running {
    /// Records that a launch begins. Returns false if no further launch may begin.
    fn begin(&self, slug: &Slug) -> bool {
        let mut running = self.0.borrow_mut();
        if !running.stopped {
            running.slugs.push(slug.clone());
        }
        !running.stopped
    }

    /// Records that a launch ended. After a failed launch, no further launch begins, because it would fail for the same
    /// reason.
    fn end(&self, slug: &Slug, succeeded: bool) {
        let mut running = self.0.borrow_mut();
        running.slugs.retain(|one| one != slug);
        running.stopped |= !succeeded;
    }
}

async fn launch(host: &Host, order: &LaunchOrder) -> Result<(), NotStarted> {
    Launching::begin(host, order).await?.started(&|_| ()).await
}

/// Describes a launch phase for the user.
fn phase_text(phase: Phase, workspace: Workspace) -> &'static str {
    match phase {
        Phase::Keys => "registering deploy keys",
        Phase::Network => "creating the network",
        Phase::Sidecars => "starting the sidecars",
        Phase::Provision if workspace == Workspace::Empty => "preparing the bottle",
        Phase::Provision if workspace == Workspace::Repository => {
            "preparing the bottle with a copy of the repository"
        }
        Phase::Provision => "preparing the bottle with a copy of the directory",
        Phase::Services => "starting the services",
        Phase::Agent => "starting the agent",
        Phase::Undo => "undoing the launch",
    }
}
