//! Requests to the guest about the processes of a bottle.

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{self, GuestEvent, GuestRequest};

use super::connect::{guest_failure, keeper_lost, open_guest};
use super::failure::Failure;

/// Sends a request with one answer. A failure of the guest is an error.
pub async fn ask(channel: &Channel, request: GuestRequest, slug: &Slug) -> Result<GuestEvent, Failure> {
    let mut stream = open_guest(channel, request).await?;
    match stream.receive().await.map_err(keeper_lost)? {
        GuestEvent::Failed(failure) => Err(failed(failure, slug)),
        event => Ok(event),
    }
}

/// The error for a failure of the guest.
pub fn failed(failure: guest::Failure, slug: &Slug) -> Failure {
    guest_failure(failure).about(slug).hint(format!("`bottle ps {slug}` lists its processes"))
}
