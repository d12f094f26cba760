//! Stops a bottle.

use std::time::Duration;

use bottle_host::Host;
use bottle_keeper::protocol::{Ended, KeeperEvent, KeeperRequest, Notice};
use bottle_policy::names::Slug;

use super::connect::{connect_to_stop, keeper_lost, unexpected_answer};
use super::failure::Failure;

/// The time limit for the teardown after the agent's grace period, unless a snapshot is being saved. When the limit
/// passes, [`stop`] fails.
const TEARDOWN: Duration = Duration::from_secs(120);

/// Requests the stop from the keeper, and waits until the bottle has ended. If the keeper reports that it saves a
/// snapshot first, passes the keeper's text to `report_delay`. In this case, waits without a time limit, because saving
/// a snapshot can take long.
pub async fn stop(
    host: &Host,
    slug: &Slug,
    grace: Duration,
    report_delay: impl FnOnce(&str),
) -> Result<Ended, Failure> {
    let channel = connect_to_stop(host, slug).await?;
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let mut stream = channel.open(&KeeperRequest::Stop { grace_ms }).await.map_err(keeper_lost)?;
    let first = tokio::time::timeout(grace + TEARDOWN, stream.receive::<KeeperEvent>()).await;
    let last = match first {
        Ok(Ok(KeeperEvent::Notice(Notice::Warning(text)))) => {
            report_delay(&text);
            Ok(stream.receive::<KeeperEvent>().await)
        }
        other => other,
    };
    match last {
        Ok(Ok(KeeperEvent::Ended(ended))) => Ok(ended),
        Ok(Ok(KeeperEvent::Refused(why))) => Err(Failure::failed(why).about(slug)),
        Ok(Ok(_)) => Err(unexpected_answer().about(slug)),
        Ok(Err(error)) => Err(keeper_lost(error).about(slug)),
        Err(_) => Err(Failure::failed("the bottle is still being torn down")
            .about(slug)
            .hint("`bottle list` shows its state")),
    }
}
