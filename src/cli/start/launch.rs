//! Launches a plan: reads secrets, starts the keeper, and handles Ctrl-C at any time.

use std::collections::BTreeMap;
use std::time::Duration;

use bottle_channel::{Channel, ChannelError, StreamReceiver};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::SecretText;

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
use crate::keeper::protocol::{KeeperEvent, LaunchFailure, Phase};
use crate::launch::order::LaunchOrder;
use crate::plan::sensitive_env::{self, SensitiveEnv};
use crate::plan::{Plan, Workspace};
use crate::secrets::{self, Ask, SecretError, Secrets};

/// How long the command waits for the keeper to remove the resources of an interrupted launch.
const UNDO_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads every secret of the plan; asks on the terminal for missing ones.
pub(super) async fn secrets(
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
pub(super) fn marked(host: &Host, plan: &Plan, output: &Output) -> Result<Vec<SecretText>, CliError> {
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
    let kind = match failure.exit {
        exit::BACKEND => Kind::Backend,
        exit::ISOLATION => Kind::Isolation,
        exit::CANNOT_RUN | exit::NOT_FOUND => Kind::Program,
        exit::INTERRUPTED => Kind::Interrupted,
        _ => Kind::Failed,
    };
    // The codes 126 and 127 are for scripts. On a terminal no agent has run yet, so the codes for failures
    // before a launch apply.
    let code = match kind {
        Kind::Program if order.plan.agent.terminal.is_some() => exit::BACKEND,
        _ => failure.exit,
    };
    CliError::from_failure(kind, failure).exit(code)
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
pub(super) fn report_detached(slug: &Slug, output: &Output) -> Result<u8, CliError> {
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
        Phase::Provision => "preparing the bottle with a copy of the directory",
        Phase::Agent => "starting the agent",
        Phase::Undo => "undoing the launch",
    }
}
