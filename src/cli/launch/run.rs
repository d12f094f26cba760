//! Launches a plan: reads secrets, starts the keeper, and handles Ctrl-C at any time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use bottle_channel::{Channel, ChannelError, StreamReceiver};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::SecretText;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep_until};

use crate::cli::connect::keeper_lost;
use crate::cli::error::{CliError, Kind};
use crate::cli::exit;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::session::{Signals, interrupted};
use crate::cli::terminal::{TerminalUser, interactive};
use crate::host::Host;
use crate::host::process::ProcessId;
use crate::instance::{State, Store};
use crate::keeper::client::{self, Launched};
use crate::keeper::protocol::{KeeperEvent, LaunchFailure, LaunchFailureKind, Phase};
use crate::launch::order::LaunchOrder;
use crate::plan::sensitive_env::{self, SensitiveEnv};
use crate::plan::{Plan, Workspace};
use crate::secrets::{self, Ask, SecretError, Secrets};

/// How long the command waits for the keeper to remove the resources of an interrupted launch.
const UNDO_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of bottles that one command starts at the same time. Each start keeps a processor busy for a part
/// of the time.
const AT_ONCE: usize = 4;

/// Reads every secret of the plan; asks on the terminal for missing ones.
pub(crate) async fn secrets(
    host: &Host,
    plan: &Plan,
    signals: &mut Signals,
    output: &Output,
) -> Result<BTreeMap<String, SecretText>, CliError> {
    if plan.secrets.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (host, needs) = (host.clone(), plan.secrets.clone());
    // Runs on a separate thread, so that signals are handled while the user thinks.
    let runtime = tokio::runtime::Handle::current();
    let resolving = tokio::task::spawn_blocking(move || -> Result<Secrets, SecretError> {
        let mut user = if interactive() { TerminalUser::find().ok() } else { None };
        let ask = user.as_mut().map(|user| user as &mut dyn Ask);
        runtime.block_on(secrets::resolve(&host, &needs, ask))
    });
    let resolved = tokio::select! {
        resolved = resolving => resolved,
        number = signals.end() => return Err(interrupted(number)),
    };
    let secrets = resolved.map_err(|error| CliError::cannot("read the secrets", error))??;
    for warning in &secrets.warnings {
        output.warn(warning);
    }
    Ok(secrets.values)
}

/// Returns the values of the variables that [`sensitive_env::VARIABLE`] names.
pub(crate) fn marked(host: &Host, plan: &Plan, output: &Output) -> Result<Vec<SecretText>, CliError> {
    let SensitiveEnv { values, names, short } = SensitiveEnv::of(host, plan).map_err(|error| {
        CliError::usage(error.to_string())
            .about(sensitive_env::VARIABLE)
            .hint("write prefixes of variable names, as in `AWS_,STRIPE_`")
    })?;
    if !names.is_empty() {
        output.note(format!("{} blocks the values of {}", sensitive_env::VARIABLE, names.join(", ")));
    }
    for name in short {
        output.warn(format!("cannot block the value of {name}: it is too short to scan for"));
    }
    Ok(values)
}

/// Launches the plan and shows the progress. On Ctrl-C, removes the resources that were created.
pub(crate) async fn launch(
    host: &Host,
    order: &LaunchOrder,
    signals: &mut Signals,
    output: &Output,
) -> Result<Channel, CliError> {
    host.open_runtime()?;
    let slug = &order.plan.identity.slug;
    let progress = Progress::start(output);
    let Launched { channel, progress: mut events } =
        client::launch(host, order).await.map_err(|error| CliError::from_error(Kind::Failed, &error))?;
    let signal = tokio::select! {
        answer = follow(&mut events, &order.plan, &progress) => {
            drop(progress);
            return finished(answer, None, order, output).map(|()| channel);
        }
        number = signals.end() => number,
    };
    interrupt_keeper(host, slug);
    let undone = tokio::select! {
        answer = tokio::time::timeout(UNDO_TIMEOUT, follow(&mut events, &order.plan, &progress)) => answer,
        // After a second Ctrl-C this command exits, and the keeper continues to remove the resources.
        number = signals.end() => {
            drop(progress);
            return Err(interrupted(number).hint("`bottle list` shows leftovers"));
        }
    };
    drop(progress);
    match undone {
        Ok(answer) => finished(answer, Some(signal), order, output).map(|()| channel),
        Err(_) => Err(interrupted(signal).hint("the launch is still being undone; `bottle list` shows it")),
    }
}

/// Launches bottles that run in the background, a few at the same time. After a failure, launches no further ones. On
/// Ctrl-C, removes the resources of unfinished launches. Returns the bottles that run, in the order of `orders`, and the
/// first failure.
pub(crate) async fn launch_all(
    host: &Host,
    orders: &[LaunchOrder],
    signals: &mut Signals,
    output: &Output,
) -> (Vec<Slug>, Result<(), CliError>) {
    let mut started = Vec::new();
    let result = launch_side_by_side(host, orders, &mut started, signals, output).await;
    (started, result)
}

async fn launch_side_by_side(
    host: &Host,
    orders: &[LaunchOrder],
    started: &mut Vec<Slug>,
    signals: &mut Signals,
    output: &Output,
) -> Result<(), CliError> {
    host.open_runtime()?;
    let progress = Progress::start(output);
    progress.phase(&format!("starting {} bottles", orders.len()));
    let shared = &RefCell::new(SideBySide::default());
    let launches = stream::iter(orders).map(|order| async move {
        let slug = &order.plan.identity.slug;
        if !shared.borrow_mut().begin(slug) {
            return None;
        }
        let launched = launch_without_progress(host, order).await;
        shared.borrow_mut().end(slug, matches!(launched, Ok(Ok(Ok(())))));
        Some((order, launched))
    });
    let mut launches = pin!(launches.buffered(AT_ONCE));
    let (mut result, mut interrupt) = (Ok(()), None);
    loop {
        let undone_by = interrupt.map_or_else(Instant::now, |(_, undone_by)| undone_by);
        let next = tokio::select! {
            next = launches.next() => next,
            number = signals.end() => {
                if interrupt.is_some() {
                    return Err(interrupted(number).hint("`bottle list` shows leftovers"));
                }
                interrupt = Some((number, Instant::now() + UNDO_TIMEOUT));
                shared.borrow_mut().stop().iter().for_each(|slug| interrupt_keeper(host, slug));
                continue;
            }
            () = sleep_until(undone_by), if interrupt.is_some() => {
                let hint = "the launches are still being undone; `bottle list` shows them";
                return result.and(interrupt.map_or(Ok(()), |(number, _)| Err(interrupted(number).hint(hint))));
            }
        };
        let signal = interrupt.map(|(number, _)| number);
        match next {
            None => return result.and(signal.map_or(Ok(()), |number| Err(interrupted(number)))),
            // The launch did not begin.
            Some(None) => {}
            Some(Some((order, Ok(Ok(Ok(())))))) => {
                started.push(order.plan.identity.slug.clone());
                progress.set_text(&format!("starting bottles: {} of {}", started.len(), orders.len()));
            }
            Some(Some((order, Ok(answer)))) => result = result.and(finished(answer, signal, order, output)),
            Some(Some((_, Err(error)))) => result = result.and(Err(error)),
        }
    }
}

/// The launches that run side by side.
#[derive(Debug, Default)]
struct SideBySide {
    running: Vec<Slug>,
    stopped: bool,
}

impl SideBySide {
    /// Begins a launch. Returns false if no further one may begin.
    fn begin(&mut self, slug: &Slug) -> bool {
        if !self.stopped {
            self.running.push(slug.clone());
        }
        !self.stopped
    }

    /// Ends a launch. After a failure, the others would fail for the same reason.
    fn end(&mut self, slug: &Slug, succeeded: bool) {
        self.running.retain(|running| running != slug);
        self.stopped |= !succeeded;
    }

    /// Prevents further launches. Returns those that run.
    fn stop(&mut self) -> Vec<Slug> {
        self.stopped = true;
        self.running.clone()
    }
}

async fn launch_without_progress(host: &Host, order: &LaunchOrder) -> Result<Answer, CliError> {
    let launched = client::launch(host, order).await;
    let Launched { channel, mut progress } =
        launched.map_err(|error| CliError::from_error(Kind::Failed, &error))?;
    let answer = follow(&mut progress, &order.plan, &Progress::Nothing).await;
    drop(channel);
    Ok(answer)
}

/// The result of a launch, if the keeper reported one.
type Answer = Result<Result<(), LaunchFailure>, ChannelError>;

async fn follow(events: &mut StreamReceiver, plan: &Plan, progress: &Progress) -> Answer {
    let mut now = None;
    loop {
        match events.message::<KeeperEvent>().await? {
            KeeperEvent::Phase(phase) => {
                now = Some(phase);
                progress.phase(phase_text(phase, plan.workspace));
            }
            // The last report of copied bytes may arrive after the next phase has begun.
            KeeperEvent::Copied(copied) if now == Some(Phase::Provision) => {
                progress.bytes("copying the directory", copied.bytes, None);
            }
            KeeperEvent::Copied(copied) if now == Some(Phase::Sidecars) => {
                progress.bytes("merging the layers of the bottle's files", copied.bytes, None);
            }
            KeeperEvent::Running { .. } => return Ok(Ok(())),
            KeeperEvent::Failed(failure) => return Ok(Err(failure)),
            _ => {}
        }
    }
}

fn finished(
    answer: Answer,
    signal: Option<u8>,
    order: &LaunchOrder,
    output: &Output,
) -> Result<(), CliError> {
    let slug = &order.plan.identity.slug;
    match (answer.map_err(|error| keeper_lost(error).about(slug))?, signal) {
        (Ok(()), None) => Ok(()),
        // The agent started before the signal arrived. Because this client exits, its bottle ends.
        (Ok(()), Some(number)) => Err(interrupted(number).about(slug)),
        (Err(failure), signal) => {
            for left in &failure.left {
                output.warn(format!("not undone: {left}; `bottle cleanup` tries again"));
            }
            match signal {
                Some(number) => Err(interrupted(number)
                    .about(slug)
                    .hint_if(failure.left.is_empty().then_some("everything created so far was removed"))),
                None => Err(failed(failure, order).about(slug)),
            }
        }
    }
}

fn failed(failure: LaunchFailure, order: &LaunchOrder) -> CliError {
    let kind = match failure.kind {
        LaunchFailureKind::Backend => Kind::Backend,
        LaunchFailureKind::Isolation => Kind::Isolation,
        LaunchFailureKind::ProgramMissing | LaunchFailureKind::ProgramRefused => Kind::Program,
        LaunchFailureKind::Interrupted => Kind::Interrupted,
        LaunchFailureKind::Other => Kind::Failed,
    };
    // The codes 126 and 127 are for scripts. On a terminal no agent has run yet, so the codes for failures
    // before a launch apply.
    let code = match kind {
        Kind::Program if order.plan.agent.terminal.is_some() => exit::BACKEND,
        _ => exit::of_launch(failure.kind),
    };
    CliError::from_launch(kind, failure).exit(code)
}

/// Sends SIGINT to the keeper, which is in another process group and so does not get the terminal's signal.
/// If the keeper cannot be found, it notices the closed connection instead.
fn interrupt_keeper(host: &Host, slug: &Slug) {
    if let Some(State::Alive(record)) = Store::of(host).state(slug)
        && let Some(Ok(keeper)) = record.keeper.map(|keeper| keeper.parse::<ProcessId>())
        && let Err(error) = keeper.interrupt()
    {
        tracing::warn!("cannot interrupt the keeper: {error}");
    }
}

/// Prints the slug of a detached bottle.
pub(crate) fn report_detached(slug: &Slug, output: &Output) -> Result<u8, CliError> {
    output.json_or(&serde_json::json!({"slug": slug}), || output.print(slug.as_str()))?;
    output.note(format!("`bottle attach {slug}` attaches to it, `bottle stop {slug}` stops it"));
    Ok(exit::DONE)
}

impl From<SecretError> for CliError {
    fn from(error: SecretError) -> Self {
        let hint = error.hint();
        let kind = match error {
            SecretError::Cancelled(_) => Kind::Interrupted,
            SecretError::Missing(_) | SecretError::Unreadable { .. } => Kind::Secret,
        };
        Self::from_error(kind, &error).hint_if(hint)
    }
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
