//! Finds a bottle's record, and the backend that the record names.

use crate::registry;
use bottle_backend::Backend;
use bottle_host::Host;
use bottle_instance::record::{Record, Status};
use bottle_instance::{ClaimError, State, Store};
use bottle_policy::names::Slug;

use super::connect::unavailable;
use super::failure::{Failure, Kind};

/// Returns the backend that created a bottle.
pub fn backend_of(host: &Host, record: &Record) -> Result<Box<dyn Backend>, Failure> {
    registry::by_name(host, &record.backend).ok_or_else(|| {
        let message =
            format!("{} belongs to the backend {}, which is not available here", record.slug, record.backend);
        Failure::new(Kind::Backend, message).about(&record.slug)
    })
}

/// Returns the record of a kept bottle. For a bottle in another state, returns an error with a hint about the next
/// step.
pub async fn kept(host: &Host, slug: &Slug) -> Result<Record, Failure> {
    let state = |message: String, hint: String| Err(Failure::state(message).hint(hint));
    match Store::of(host).state(slug) {
        Some(State::Kept(record)) => Ok(*record),
        Some(State::Alive(_)) => state(format!("{slug} is running"), format!("`bottle attach {slug}` attaches to it")),
        Some(State::Dead(record)) if record.status == Status::Ended && record.lost => state(
            format!("{slug} ended when its files were removed by something else than bottle"),
            "`bottle start` starts a new one".to_owned(),
        ),
        Some(State::Dead(record)) if record.status == Status::Ended => state(
            format!("{slug} ended, and only its output was kept"),
            "`bottle start` starts a new one".to_owned(),
        ),
        Some(State::Dead(_)) => state(
            format!("{slug} has lost its keeper, and may still run"),
            "`bottle attach` reconnects if it was detached; otherwise `bottle cleanup` stops it and preserves its work"
                .to_owned(),
        ),
        Some(State::Damaged(_) | State::Newer(_)) | None => Err(unavailable(host, slug).await),
    }
}

/// The error when another command has claimed the same bottle.
pub fn claim_failed(error: ClaimError) -> Failure {
    match error {
        ClaimError::Taken { .. } => Failure::from_error(Kind::State, &error).hint("try again in a moment"),
        ClaimError::File(_) => Failure::from_error(Kind::Failed, &error),
    }
}
