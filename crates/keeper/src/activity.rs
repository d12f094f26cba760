//! Reports what the agent does and how large the bottle is, for `bottle list`. The keeper measures the activity and the
//! size only when a command requests them, so that an idle bottle costs nothing.

use std::time::Duration;

use bottle_backend::Backend;
use bottle_channel::Channel;
use bottle_host::causes;
use bottle_instance::Claim;
use bottle_instance::record::Measured;
use bottle_protocol::session::bundle::Daemon;
use bottle_protocol::session::guest::{AgentState, GuestEvent, GuestRequest};
use bottle_protocol::session::process::{ProcessInfo, ProcessState};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::health::health;
use super::protocol::Activity;
use super::shared::{Command, Shared};

/// An agent is reported as working if it wrote output or received a response from a model within this time.
const RECENT: Duration = Duration::from_secs(5);

/// How long pid 1 and the sidecars may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(700);

/// The interval between the two readings of the processor time.
const SAMPLE: Duration = Duration::from_millis(100);

/// If the agent uses at least this much processor time within [`SAMPLE`], in milliseconds, it is reported as working. A
/// program that only waits for input and sometimes updates its screen uses less.
const BUSY_MS: u64 = 20;

/// How long a request waits for the first measurement of the size. The measurement of a small bottle takes less time.
const FIRST_SIZE_WITHIN: Duration = Duration::from_millis(300);

/// If the last measurement is at least this old, the size is measured again when a command requests it.
const SIZE_AGE: SignedDuration = SignedDuration::from_secs(60);

/// Answers [`super::protocol::KeeperRequest::Activity`].
pub(super) async fn report(shared: &Shared) -> Activity {
    let _ = shared.commands.send(Command::Measure).await;
    let guest = shared.guest.borrow().clone();
    let (agent, model, size) = tokio::join!(agent(guest.as_ref()), models(shared), size(&shared.size));
    let answered_at = *shared.answered.borrow();
    Activity { size, ..judge(agent, model, answered_at, Timestamp::now()) }
}

/// Combines the reports about the agent. From pid 1: whether the agent or its programs work, and how long the agent has
/// written no output. From the sidecars: whether a model is responding (`model`), and when a model last responded
/// (`answered_at`).
fn judge(
    (works, quiet): (Option<bool>, Option<Duration>),
    model: bool,
    answered_at: Option<Timestamp>,
    now: Timestamp,
) -> Activity {
    let wrote_at = quiet.and_then(|quiet| now.checked_sub(quiet).ok());
    let answers = model || answered_at.is_some_and(|at| is_recent(now, at));
    Activity {
        // If pid 1 does not answer, the bottle is paused, and no response of a model reaches the agent.
        works: works.map(|works| works || answers),
        active_at: if model { Some(now) } else { wrote_at.max(answered_at) },
        size: None,
    }
}

fn is_recent(now: Timestamp, at: Timestamp) -> bool {
    now.duration_since(at).unsigned_abs() < RECENT
}

/// Returns whether the agent works, because it wrote output recently or its programs use the processor. Also returns
/// the time since the agent's last output.
async fn agent(guest: Option<&Channel>) -> (Option<bool>, Option<Duration>) {
    let Some(guest) = guest else { return (None, None) };
    let status = tokio::time::timeout(ANSWERS_WITHIN, ask(guest, &GuestRequest::Status)).await;
    let Ok(Some(GuestEvent::Status { agent, quiet_ms, .. })) = status else { return (None, None) };
    let quiet = quiet_ms.map(Duration::from_millis);
    if agent != AgentState::Running {
        return (Some(false), quiet);
    }
    let works = quiet.is_some_and(|quiet| quiet < RECENT) || uses_processor(guest).await;
    (Some(works), quiet)
}

async fn uses_processor(guest: &Channel) -> bool {
    let sample = async {
        let before = processor_ms(ask(guest, &GuestRequest::ListProcesses).await?)?;
        tokio::time::sleep(SAMPLE).await;
        let after = processor_ms(ask(guest, &GuestRequest::ListProcesses).await?)?;
        Some(after.saturating_sub(before) >= BUSY_MS)
    };
    tokio::time::timeout(SAMPLE + ANSWERS_WITHIN, sample).await.ok().flatten().unwrap_or(false)
}

/// The processor time of the agent, and of the processes that continue to run after their clients disconnect.
fn processor_ms(answer: GuestEvent) -> Option<u64> {
    let GuestEvent::Processes { processes } = answer else { return None };
    let running = processes.iter().filter(|process: &&ProcessInfo| process.state == ProcessState::Running);
    Some(running.fold(0, |sum: u64, process| sum.saturating_add(process.cpu_ms)))
}

async fn ask(guest: &Channel, request: &GuestRequest) -> Option<GuestEvent> {
    guest.open(request).await.ok()?.receive().await.ok()
}

/// Whether a model is responding to a request of the agent now.
async fn models(shared: &Shared) -> bool {
    let daemons =
        tokio::time::timeout(ANSWERS_WITHIN, health(&shared.decisions.bundle())).await.unwrap_or_default();
    daemons.iter().filter_map(|daemon: &Daemon| daemon.model_requests).any(|requests| requests > 0)
}

/// Returns the last measured size. Waits for the first measurement for at most [`FIRST_SIZE_WITHIN`].
async fn size(size: &watch::Sender<Option<Measured>>) -> Option<Measured> {
    let mut measured = size.subscribe();
    let first = measured.wait_for(Option::is_some);
    tokio::time::timeout(FIRST_SIZE_WITHIN, first).await.ok()?.ok().and_then(|size| *size)
}

/// Whether the size has to be measured.
pub(super) fn is_due(size: Option<Measured>, now: Timestamp) -> bool {
    // If the clock was set back, the measurement is in the future. `abs` prevents that this stops further measurements.
    size.is_none_or(|size| now.duration_since(size.at).abs() >= SIZE_AGE)
}

/// Measures the size of a bottle. Returns `None` if the backend cannot measure it.
pub(super) async fn measure(backend: &dyn Backend, claim: &Claim) -> Option<Measured> {
    let slug = claim.record().slug;
    match backend.size(&slug).await {
        Ok(bytes) => Some(Measured { bytes: bytes?, at: Timestamp::now() }),
        Err(error) => {
            tracing::warn!("{}", causes::one_line(&error));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_works_or_a_model_answers_it() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let quiet = |seconds| Some(Duration::from_secs(seconds));
        let (yes, no) = (Some(true), Some(false));
        for (works, quiet, model, answered_at, wanted, active_at) in [
            (None, None, false, None, None, None),
            (None, None, true, Some(at(990)), None, Some(at(1000))),
            (no, quiet(300), false, None, no, Some(at(700))),
            (yes, quiet(1), false, None, yes, Some(at(999))),
            (no, None, false, Some(at(996)), yes, Some(at(996))),
            (no, None, false, Some(at(995)), no, Some(at(995))),
            (no, quiet(300), false, Some(at(600)), no, Some(at(700))),
            (no, quiet(300), false, Some(at(800)), no, Some(at(800))),
            (no, quiet(300), true, None, yes, Some(at(1000))),
        ] {
            let found = judge((works, quiet), model, answered_at, at(1000));
            assert_eq!(
                (found.works, found.active_at),
                (wanted, active_at),
                "{works:?} {quiet:?} {model} {answered_at:?}"
            );
        }
    }

    #[test]
    fn a_size_is_measured_again_when_it_is_old() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let size = |second| Some(Measured { bytes: 1, at: at(second) });
        for (size, due) in [
            (None, true),
            (size(1000), false),
            (size(941), false),
            (size(940), true),
            (size(1059), false),
            (size(5000), true),
        ] {
            assert_eq!(is_due(size, at(1000)), due, "{size:?}");
        }
    }
}
