//! The process that stops idle bottles of tasks. Each `$BOTTLE_HOME` has at most one reaper. The reaper runs as long as
//! a bottle of a task runs.

use std::process::Stdio;
use std::time::Duration;

use bottle_host::{Host, Settings};
use bottle_instance::environments::{Environment, Environments as Records};
use bottle_keeper::client;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use bottle_protocol::session::process::ProcessState;
use jiff::{SignedDuration, Timestamp};

use super::home::{Environments, unusable};
use crate::connect::{connect, unexpected_answer};
use crate::failure::Failure;
use crate::processes::ask;
use crate::stop::stop;

/// The role of the reaper process on its command line.
pub const ROLE: &str = "__reaper";

/// The shortest and the longest pause between two checks of the bottles.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The time between SIGTERM and SIGKILL of an idle bottle's agent.
const GRACE: Duration = Duration::from_secs(10);

/// The maximum time to wait until a bottle says which processes it runs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Starts the reaper in the background if no reaper runs. The caller's bottle already runs, so a reaper that is about
/// to exit finds the bottle and continues.
///
/// # Errors
/// When the process cannot be started.
pub(super) fn spawn(host: &Host, records: &Records) -> Result<(), Failure> {
    if records.reap().map_err(|error| unusable(&error))?.is_none() {
        return Ok(());
    }
    let mut command = client::background(host, ROLE);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The reaper usually outlives this process. If the reaper ends earlier, the async runtime collects its exit status.
    let spawned = command.spawn().map(drop);
    spawned.map_err(|error| Failure::cannot("start the process that stops idle bottles", error))
}

/// Stops idle bottles of tasks, until no bottle of a task runs.
///
/// # Errors
/// When the directory of environments or the settings cannot be used.
pub async fn run(host: &Host) -> Result<(), Failure> {
    // `setsid` fails only if the process already leads a session.
    let _ = rustix::process::setsid();
    let environments = Environments::of(host)?;
    while let Some(lock) = environments.records.reap().map_err(|error| unusable(&error))? {
        let is_off = environments.watch().await?;
        drop(lock);
        // A command that starts a bottle while this process holds the lock starts no other reaper, and relies on this
        // check.
        if is_off || environments.running()?.is_empty() {
            break;
        }
    }
    Ok(())
}

impl Environments<'_> {
    /// Stops idle bottles until no bottle of a task runs. Returns true immediately if the settings turn off the
    /// stopping of idle bottles.
    async fn watch(&self) -> Result<bool, Failure> {
        loop {
            // The settings are read in each round, because the user may change them.
            let Some(idle) = Settings::load(self.host)?.environments.idle else { return Ok(true) };
            let running = self.running()?;
            if running.is_empty() {
                return Ok(false);
            }
            for environment in running {
                // If a bottle cannot be stopped now, the next round tries again.
                let _ = self.stop_if_idle(&environment, idle).await;
            }
            tokio::time::sleep((idle / 4).clamp(PAUSE_MIN, PAUSE_MAX)).await;
        }
    }

    fn running(&self) -> Result<Vec<Environment>, Failure> {
        Ok(self.all()?.into_iter().filter(|found| self.is_running(&found.slug)).collect())
    }

    async fn stop_if_idle(&self, environment: &Environment, idle: Duration) -> Result<(), Failure> {
        let Environment { task, slug, last_used, parent, .. } = environment;
        let Some(_unused) = self.unused(slug)? else { return Ok(()) };
        // A command may have used the bottle after the list of environments was read.
        let last_used = self.records.get(slug).map_or(*last_used, |found| found.last_used);
        if !is_idle(last_used, Timestamp::now(), idle) {
            return Ok(());
        }
        if has_work(self.host, slug).await? {
            let recorded = self.records.record_use(task, slug, Timestamp::now(), parent.clone());
            return recorded.map_err(|error| unusable(&error));
        }
        stop(self.host, slug, GRACE, |_| {}).await.map(drop)
    }
}

fn is_idle(last_used: Timestamp, now: Timestamp, idle: Duration) -> bool {
    // If the clock was set back, the duration is negative, and the bottle is not idle.
    now.duration_since(last_used) >= SignedDuration::try_from(idle).unwrap_or(SignedDuration::MAX)
}

/// Whether the bottle runs processes that a client started, other than services. The agent does not count, because it
/// only keeps the bottle running.
async fn has_work(host: &Host, slug: &Slug) -> Result<bool, Failure> {
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
    let late = |_| Failure::failed(format!("{slug} does not say what runs in it"));
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
