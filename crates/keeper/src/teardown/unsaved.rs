//! What would be lost with the workspace of a bottle.

use std::time::Duration;

use bottle_backend::{Backend, BackendError};
use bottle_channel::{Channel, ChannelError};
use bottle_guest::changed_files::SEARCH_WITHIN;
use bottle_instance::record::Record;
use bottle_instance::work::{self, Unsaved};
use bottle_instance::{Claim, engines};
use bottle_protocol::session::guest::{Changed, Changes, GuestEvent, GuestRequest, Stop};

/// Time limit of a teardown step that waits for pid 1, for the bundle or for the last usage records. After it, the
/// teardown continues without the result. Stopping the agent additionally has the agent's grace period.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for pid 1 to report the changes in the workspace. Pid 1 itself ends a long search, so a late answer only
/// means a lack of processor time. After this limit, the backend searches, or the bottle counts as having unsaved work.
const WORK_TIMEOUT: Duration = SEARCH_WITHIN.saturating_add(Duration::from_secs(20));

/// What would be lost with the workspace of a running bottle. Asks pid 1 through the guest's open channel.
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

/// Ends pid 1, after it searched for changes. Returns what it found, if it answered.
///
/// A search takes longer than other steps, above all on a busy machine. The backend's own search is no substitute before
/// pid 1 is gone, because both would use its transport.
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

/// What would be lost with a workspace in which no agent ran: the work that an earlier launch kept.
fn kept_before(record: &Record) -> Unsaved {
    if record.kept { Unsaved::work() } else { Unsaved::default() }
}

/// What pid 1 found; `None` if it did not answer.
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

/// What would be lost with the files of a bottle whose processes ended: as pid 1 `found`; if it did not answer, as the
/// backend finds. A workspace that cannot be searched counts as unsaved work. If the workspace never became ready for an
/// agent, only layers that an earlier launch kept count.
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

    /// A pid 1 that answers after this delay.
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

    /// On a busy machine, pid 1 needs more than the time of other steps.
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
