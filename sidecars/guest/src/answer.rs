//! Sends answers to requests of the host.

use bottle_channel::Stream;
use bottle_protocol::session::guest::GuestEvent;
use rustix::process::Pid;

/// Sends the last event of a stream, and ends the stream.
pub(crate) async fn answer(stream: &Stream, event: &GuestEvent) {
    let sent = async {
        stream.message(event).await?;
        stream.end().await
    };
    if let Err(error) = sent.await {
        tracing::debug!(%error, "answer not sent");
    }
}

/// Returns the event that reports a started process.
pub(crate) fn started(pid: Pid) -> GuestEvent {
    GuestEvent::Started { pid: raw_pid(pid) }
}

pub(crate) fn raw_pid(pid: Pid) -> u32 {
    u32::try_from(pid.as_raw_pid()).unwrap_or_default()
}
