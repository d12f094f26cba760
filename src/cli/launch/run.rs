//! Launches a plan: starts the keeper, and handles Ctrl-C at any time.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_host::Host;
use bottle_keeper::launch::order::LaunchOrder;
use bottle_lib::launch::{self, Launching, NotStarted, Running, SideBySide};
use bottle_policy::names::Slug;
use tokio::time::{Instant, sleep_until};

use super::launch_failed;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress::Progress;
use crate::console::signals::{Signals, interrupted};

/// How long the command waits for the keeper to remove the resources of an interrupted launch.
const UNDO_TIMEOUT: Duration = Duration::from_secs(30);

/// Launches the plan and shows the progress. On Ctrl-C, removes the resources that were created.
pub(crate) async fn launch(
    host: &Host,
    order: &LaunchOrder,
    signals: &mut Signals,
    output: &Output,
) -> Result<Channel, CliError> {
    let progress = Progress::start(output);
    let report = |now| match now {
        launch::Progress::Phase(text) => progress.phase(text),
        launch::Progress::Copied(text, bytes) => progress.bytes(text, bytes, None),
    };
    let mut launching = Launching::begin(host, order).await?;
    let signal = tokio::select! {
        started = launching.started(&report) => {
            drop(progress);
            return finished(started, None, order, output).map(|()| launching.into_channel());
        }
        number = signals.end() => number,
    };
    launching.interrupt(host);
    let undone = tokio::select! {
        undone = tokio::time::timeout(UNDO_TIMEOUT, launching.started(&report)) => undone,
        // After a second Ctrl-C this command exits, and the keeper continues to remove the resources.
        number = signals.end() => {
            drop(progress);
            return Err(interrupted(number).hint("`bottle list` shows leftovers"));
        }
    };
    drop(progress);
    match undone {
        Ok(started) => finished(started, Some(signal), order, output).map(|()| launching.into_channel()),
        Err(_) => Err(interrupted(signal).hint("the launch is still being undone; `bottle list` shows it")),
    }
}

/// Launches bottles that run in the background, a few at the same time. After a failure, launches no further bottles.
/// On Ctrl-C, removes the resources of unfinished launches. Returns the bottles that run, in the order of `orders`, and
/// the first failure.
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
    let progress = Progress::start(output);
    progress.phase(&format!("starting {} bottles", orders.len()));
    let running = Running::default();
    let mut launches = SideBySide::begin(host, orders, &running);
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
                launches.interrupt();
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
            Some((order, Ok(()))) => {
                started.push(order.plan.identity.slug.clone());
                progress.set_text(&format!("starting bottles: {} of {}", started.len(), orders.len()));
            }
            Some((order, ended)) => result = result.and(finished(ended, signal, order, output)),
        }
    }
}

fn finished(
    ended: Result<(), NotStarted>,
    signal: Option<u8>,
    order: &LaunchOrder,
    output: &Output,
) -> Result<(), CliError> {
    let slug = &order.plan.identity.slug;
    match (ended, signal) {
        (Ok(()), None) => Ok(()),
        // The agent started before the signal arrived. The bottle ends because this client exits.
        (Ok(()), Some(number)) => Err(interrupted(number).about(slug)),
        (Err(NotStarted { failure, left, is_undone }), signal) => {
            for left in &left {
                output.warn(format!("not undone: {left}; `bottle cleanup` tries again"));
            }
            match signal.filter(|_| is_undone) {
                Some(number) => Err(interrupted(number)
                    .about(slug)
                    .hint_if(left.is_empty().then_some("everything created so far was removed"))),
                None => Err(launch_failed(failure, order.plan.agent.terminal.is_some()).about(slug)),
            }
        }
    }
}

/// Prints the slug of a detached bottle.
pub(crate) fn report_detached(slug: &Slug, output: &Output) -> Result<u8, CliError> {
    output.json_or(&serde_json::json!({"slug": slug}), || output.print(slug.as_str()))?;
    output.note(format!("`bottle attach {slug}` attaches to it, `bottle stop {slug}` stops it"));
    Ok(exit::DONE)
}
