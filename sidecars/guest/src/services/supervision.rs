//! Supervises one service: starts the service, waits until it is ready, and starts it again when it ends.

use std::sync::Arc;
use std::time::Duration;

use bottle_protocol::session::guest::Exit;
use bottle_protocol::session::service::{ServiceInfo, ServiceState};
use jiff::Timestamp;
use tokio::time::Instant;

use super::readiness;
use super::supervised::Supervised;
use crate::guest::Guest;
use crate::process_registry::Started;
use crate::processes;

/// The delay before the first restart. Each further restart doubles the delay.
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// The maximum delay before a restart.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// If a run lasted at least this long, the next delay is [`FIRST_DELAY`] again.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// The time between SIGTERM and SIGKILL for a run that did not become ready.
const FAILED_GRACE: Duration = Duration::from_secs(1);

/// The reason why a run of a service ended.
enum RunEnd {
    /// The process exited by itself.
    Exited(Exit),
    /// The service was not ready in time. The text is the result of the last check.
    NotReady(String),
    /// A stop was requested, with the given time between SIGTERM and SIGKILL.
    Stopped(Duration),
}

/// Runs a service until it ends and is not restarted.
pub(super) async fn supervise(guest: Arc<Guest>, supervised: Arc<Supervised>) {
    let Supervised { service, .. } = &*supervised;
    let mut delay = FIRST_DELAY;
    loop {
        let process = service.process.clone();
        let mut run = match processes::start(&guest, process, Some(service.name.clone())) {
            Ok(run) => run,
            Err(failure) => {
                let info = supervised.enter(ServiceState::Failed, |info| info.why = Some(failure.message));
                return report(&guest, info);
            }
        };
        let begun = Instant::now();
        let earlier = supervised.info().process;
        supervised.enter(ServiceState::Starting, |info| {
            info.process = Some(run.handle.clone());
            (info.exit, info.why) = (None, None);
        });
        // Only the output of the last two runs is kept.
        if let Some(earlier) = earlier {
            guest.processes.forget_runs_before(&service.name, &earlier);
        }
        let end = tokio::select! {
            end = run_once(&guest, &supervised, &mut run) => end,
            grace = supervised.stop_requested() => RunEnd::Stopped(grace),
        };
        let Some((state, why)) = settle(&guest, &supervised, &mut run, end).await else { return };
        if state != ServiceState::Restarting {
            return report(&guest, supervised.enter(state, |info| info.why = Some(why)));
        }
        if begun.elapsed() >= STABLE_AFTER {
            delay = FIRST_DELAY;
        }
        report(&guest, supervised.enter(state, |info| info.why = Some(why)));
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            _ = supervised.stop_requested() => {
                supervised.enter(ServiceState::Stopped, |info| info.why = None);
                return;
            }
        }
        delay = (delay * 2).min(LONGEST_DELAY);
        supervised.info.send_modify(|info| info.restarts += 1);
    }
}

/// Waits until a run is ready, and then until it ends.
async fn run_once(guest: &Arc<Guest>, supervised: &Supervised, run: &mut Started) -> RunEnd {
    tokio::select! {
        biased;
        ready = readiness::wait(guest, &supervised.service) => {
            if let Err(problem) = ready {
                return RunEnd::NotReady(problem);
            }
        }
        exit = run.exit.ended() => return RunEnd::Exited(exit),
    }
    // A check can succeed although the run has just ended, for example if another program listens on the service's
    // port.
    if run.exit.now().is_none() {
        supervised.enter(ServiceState::Ready, |info| info.ready_at = Some(Timestamp::now()));
    }
    RunEnd::Exited(run.exit.ended().await)
}

/// Ends the processes of a run, and returns the next state of the service with the reason. Returns `None` if the
/// service was stopped on request.
async fn settle(
    guest: &Guest,
    supervised: &Supervised,
    run: &mut Started,
    end: RunEnd,
) -> Option<(ServiceState, String)> {
    let was_ready = supervised.info().ready_at.is_some();
    let grace = match end {
        RunEnd::Stopped(grace) => grace,
        RunEnd::Exited(_) | RunEnd::NotReady(_) => FAILED_GRACE,
    };
    // Remaining processes of the run would still occupy the service's port, so the complete session is ended.
    let exit = processes::end_session(run.pid, &mut run.exit, grace).await;
    if exit.is_none() {
        guest.report_problem(format!(
            "the service {} does not end, because it waits in the kernel",
            supervised.name()
        ));
    }
    let exit = exit.unwrap_or(Exit::Signal(9));
    supervised.info.send_modify(|info| info.exit = Some(exit));
    let restarts = supervised.service.restart.restarts(exit) && was_ready;
    match end {
        RunEnd::Stopped(_) => {
            supervised.enter(ServiceState::Stopped, |info| info.why = None);
            None
        }
        RunEnd::NotReady(problem) => {
            let limit = Duration::from_millis(supervised.service.start_period_ms);
            let why = format!("it was not ready after {limit:?}: {problem}");
            Some((if restarts { ServiceState::Restarting } else { ServiceState::Failed }, why))
        }
        RunEnd::Exited(exit) if restarts => Some((ServiceState::Restarting, ended(exit))),
        RunEnd::Exited(exit) if was_ready => Some((ServiceState::Exited, ended(exit))),
        RunEnd::Exited(exit) => Some((ServiceState::Failed, format!("{} before it was ready", ended(exit)))),
    }
}

fn ended(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("it exited with code {code}"),
        Exit::Signal(signal) => format!("it was killed by signal {signal}"),
    }
}

/// Notifies the watchers of the end of a service.
fn report(guest: &Guest, info: ServiceInfo) {
    // Sending fails only if there is no watcher.
    let _ = guest.services.ends.send(info);
}
