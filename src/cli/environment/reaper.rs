//! The process that stops idle bottles of tasks. It runs while one of them runs, once for each home.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use bottle_contract::names::Slug;
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use bottle_contract::session::process::ProcessState;
use bottle_host::{Host, Settings};
use bottle_instance::environments::{Environment, Environments};
use bottle_instance::{State, Store};
use bottle_keeper::client;
use bottle_lib::processes::ask;
use bottle_lib::stop::stop;
use jiff::{SignedDuration, Timestamp};

use super::unusable;
use crate::cli::connect::{connect, unexpected_answer};
use crate::console::error::CliError;
use crate::console::runtime::block_on;

/// The role of the process on its command line.
pub(crate) const ROLE: &str = "__reaper";

/// The shortest and the longest pause between two looks at the bottles.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The time between SIGTERM and SIGKILL of an idle bottle's agent.
const GRACE: Duration = Duration::from_secs(10);

/// The longest wait for an answer of a bottle.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Starts the reaper in the background if there is none. The caller's bottle runs already, so that a reaper that is
/// about to end finds it.
///
/// # Errors
/// Returns an error if the process cannot be started.
pub(super) fn spawn(host: &Host, environments: &Environments) -> Result<(), CliError> {
    if environments.reap().map_err(|error| unusable(&error))?.is_none() {
        return Ok(());
    }
    let mut command = client::background(host, ROLE).into_std();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Nothing waits for the process, which outlives this one.
    let spawned = command.spawn().map(drop);
    spawned.map_err(|error| CliError::cannot("start the process that stops idle bottles", error))
}

/// Stops bottles of tasks that are idle, until none runs.
#[must_use]
pub(crate) fn run(host: &Host) -> ExitCode {
    // An error means that the process already leads a session.
    let _ = rustix::process::setsid();
    match reap(host) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn reap(host: &Host) -> Result<(), CliError> {
    let environments = super::open(host)?;
    while let Some(lock) = environments.reap().map_err(|error| unusable(&error))? {
        let is_off = watch(host, &environments)?;
        drop(lock);
        // A command that found the lock taken relies on this second look.
        if is_off || running(host, &environments)?.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Stops idle bottles until none of a task runs. Returns true at once if the user turned that off.
fn watch(host: &Host, environments: &Environments) -> Result<bool, CliError> {
    loop {
        // The user may change the settings meanwhile.
        let Some(idle) = Settings::load(host)?.environments.idle else { return Ok(true) };
        let running = running(host, environments)?;
        if running.is_empty() {
            return Ok(false);
        }
        for environment in running {
            // A bottle that cannot be stopped now is tried again.
            let _ = stop_if_idle(host, environments, &environment, idle);
        }
        std::thread::sleep((idle / 4).clamp(PAUSE_MIN, PAUSE_MAX));
    }
}

fn running(host: &Host, environments: &Environments) -> Result<Vec<Environment>, CliError> {
    let all = environments.list().map_err(|error| unusable(&error))?;
    Ok(all.into_iter().filter(|found| is_running(host, &found.slug)).collect())
}

pub(super) fn is_running(host: &Host, slug: &Slug) -> bool {
    matches!(Store::of(host).state(slug), Some(State::Alive(_)))
}

fn stop_if_idle(
    host: &Host,
    environments: &Environments,
    environment: &Environment,
    idle: Duration,
) -> Result<(), CliError> {
    let slug = &environment.slug;
    let Some(_unused) = environments.keep_unused(slug).map_err(|error| unusable(&error))? else {
        return Ok(());
    };
    // A command may have used it since the list was read.
    let last_used = environments.get(slug).map_or(environment.last_used, |found| found.last_used);
    if !is_idle(last_used, Timestamp::now(), idle) {
        return Ok(());
    }
    block_on(async {
        if has_work(host, slug).await? {
            return environments
                .record_use(&environment.task, slug, Timestamp::now(), environment.parent.clone())
                .map_err(|error| unusable(&error));
        }
        Ok(stop(host, slug, GRACE, |_| {}).await.map(drop)?)
    })
}

fn is_idle(last_used: Timestamp, now: Timestamp, idle: Duration) -> bool {
    // A clock that was set back makes no bottle idle.
    now.duration_since(last_used) >= SignedDuration::try_from(idle).unwrap_or(SignedDuration::MAX)
}

/// Whether processes run in the bottle that a client started, besides services. The agent does not count, because it
/// only keeps the bottle running.
async fn has_work(host: &Host, slug: &Slug) -> Result<bool, CliError> {
    let asked = async {
        let channel = connect(host, slug).await?;
        let GuestEvent::Processes { processes } = ask(&channel, GuestRequest::ListProcesses, slug).await?
        else {
            return Err(unexpected_answer());
        };
        let GuestEvent::Services { services } = ask(&channel, GuestRequest::ListServices, slug).await? else {
            return Err(unexpected_answer());
        };
        let of_service = |handle| services.iter().any(|service| service.process.as_ref() == Some(handle));
        let is_work = |handle| !of_service(handle);
        let runs = processes.iter().filter(|process| process.state == ProcessState::Running);
        Ok(runs.filter_map(|process| process.handle.as_ref()).any(is_work))
    };
    let late = |_| CliError::failed(format!("{slug} does not say what runs in it"));
    tokio::time::timeout(ANSWERS_WITHIN, asked).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bottle_is_idle_after_the_time_of_the_settings() {
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let used = time("2026-01-31T12:00:00Z");
        for (now, idle) in [
            ("2026-01-31T12:00:00Z", false),
            ("2026-01-31T12:29:59Z", false),
            ("2026-01-31T12:30:00Z", true),
            ("2026-01-31T11:00:00Z", false),
        ] {
            assert_eq!(is_idle(used, time(now), Duration::from_secs(1800)), idle, "{now}");
        }
    }
}
