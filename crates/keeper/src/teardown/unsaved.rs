//! Finds the unsaved work that would be lost with the workspace of a bottle.

use std::time::Duration;

use bottle_backend::{Backend, BackendError};
use bottle_channel::{Channel, ChannelError};
use bottle_guest::changed_files::SEARCH_WITHIN;
use bottle_instance::record::Record;
use bottle_instance::work::{self, Unsaved};
use bottle_instance::{Claim, engines};
use bottle_protocol::session::guest::{Changed, Changes, GuestEvent, GuestRequest, Stop};

/// How long a teardown step may wait for pid 1, for the bundle or for the last usage records. After this time, the
/// teardown continues without the result. The step that stops the agent also waits for the agent's grace period.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long pid 1 may take to report the changes in the workspace. Pid 1 limits the time of its search, so it answers
/// late only if it lacks processor time. After this time, the backend searches for changes, or the bottle is treated as
/// having unsaved work.
const WORK_TIMEOUT: Duration = SEARCH_WITHIN.saturating_add(Duration::from_secs(20));

/// Asks pid 1 of a running bottle for the unsaved work that would be lost with its workspace.
pub(crate) async fn unsaved(backend: &dyn Backend, claim: &Claim, guest: &Channel) -> Unsaved {
    let Some(search) = search(backend, claim).await else { return kept_before(&claim.record()) };
    let query = async {
        let mut stream = guest.open(&GuestRequest::Changed(search.clone())).await.ok()?;
        changes_in(stream.receive().await)
    };
    match tokio::time::timeout(WORK_TIMEOUT, query).await.ok().flatten() {
        Some(changes) => work::judge(claim.directory(), &search, changes).await,
        None => unknown(&BackendError::failed("pid 1 does not answer")),
    }
}

/// Makes pid 1 search for changes and then exit. Returns the changes, or `None` if pid 1 did not answer.
///
/// A search can take longer than other steps, especially on a busy machine. The backend cannot search instead while pid
/// 1 runs, because both would use pid 1's transport.
pub(super) async fn end_guest(guest: &Channel, search: Option<&Changed>) -> Option<Changes> {
    let answer = async {
        let stop = GuestRequest::Stop(Stop { grace_ms: 0, work: search.cloned() });
        let mut stream = guest.open(&stop).await.ok()?;
        changes_in(stream.receive().await)
    };
    let within = if search.is_some() { WORK_TIMEOUT } else { STEP_TIMEOUT };
    tokio::time::timeout(within, answer).await.ok().flatten()
}

pub(super) async fn search(backend: &dyn Backend, claim: &Claim) -> Option<Changed> {
    work::search(backend, claim.directory(), &claim.record()).await
}

/// Returns the unsaved work in a workspace in which no agent ran in this launch: the work that an earlier launch kept.
fn kept_before(record: &Record) -> Unsaved {
    if record.kept { Unsaved::work() } else { Unsaved::default() }
}

/// Returns the changes that pid 1 reported, or `None` if pid 1 did not report changes.
fn changes_in(answer: Result<GuestEvent, ChannelError>) -> Option<Changes> {
    match answer {
        Ok(GuestEvent::Changed(changes)) => Some(changes),
        _ => None,
    }
}

fn unknown(error: &BackendError) -> Unsaved {
    let found = Unsaved::unknown(error);
    let why = found.unknown.as_deref().unwrap_or_default();
    tracing::warn!("cannot search the workspace for unsaved work, so it is kept: {why}");
    found
}

/// Returns the unsaved work that would be lost with the files of a bottle, after the bottle's processes have ended.
/// `found` is the result of pid 1's search. If pid 1 did not answer, the backend searches. A workspace that cannot be
/// searched is treated as unsaved work. If the workspace never became ready for an agent, `search` is `None`, and only
/// work that an earlier launch kept is unsaved.
pub(super) async fn unsaved_at_end(
    backend: &dyn Backend,
    claim: &Claim,
    search: Option<&Changed>,
    found: Option<Unsaved>,
) -> Unsaved {
    let record = claim.record();
    match (search, found) {
        (None, _) => kept_before(&record),
        (Some(_), Some(unsaved)) => unsaved,
        (Some(search), None) => {
            let found = engines::find_work(backend, claim.directory(), &record, search).await;
            found.unwrap_or_else(|error| unknown(&error))
        }
    }
}

/// Whether something other than `bottle` removed the bottle's files.
pub(super) async fn is_lost(backend: &dyn Backend, claim: &Claim) -> bool {
    let (record, directory) = (claim.record(), claim.directory());
    engines::require(backend, directory, &record).await.is_ok()
        && matches!(engines::has_layers(backend, &record).await, Ok(false))
}

#[cfg(test)]
mod tests {
    use bottle_channel::Side;
    use bottle_protocol::session::{Hello, Role};
    use jiff::Timestamp;

    use super::*;

    /// Creates a channel to a simulated pid 1 that answers after this delay.
    async fn guest_that_answers_after(delay: Duration) -> Channel {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let hello = Hello::of(Role::Guest);
            let (_channel, mut incoming, _) =
                Channel::establish(theirs, Side::Accepted, hello).await.expect("a keeper");
            let request = incoming.next().await.expect("a request");
            assert!(matches!(request.parse(), Ok(GuestRequest::Stop(Stop { work: Some(_), .. }))));
            let stream = request.accept();
            tokio::time::sleep(delay).await;
            let _ = stream.message(&GuestEvent::Changed(Changes::default())).await;
            let _ = stream.end().await;
            std::future::pending::<()>().await;
        });
        let (channel, ..) =
            Channel::establish(ours, Side::Dialed, Hello::of(Role::Keeper)).await.expect("a guest");
        channel
    }

    /// On a busy machine, the search of pid 1 may take longer than other steps.
    #[tokio::test(start_paused = true)]
    async fn a_slow_search_is_waited_for() {
        let search = Changed::since(Timestamp::MIN);
        for (delay, answers) in [
            (Duration::ZERO, true),
            (STEP_TIMEOUT * 2, true),
            (SEARCH_WITHIN + STEP_TIMEOUT, true),
            (WORK_TIMEOUT * 2, false),
        ] {
            let guest = guest_that_answers_after(delay).await;
            assert_eq!(end_guest(&guest, Some(&search)).await.is_some(), answers, "{delay:?}");
        }
    }
}
