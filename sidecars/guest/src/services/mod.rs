//! Runs services: programs that must be ready before the agent starts, and that are started again when they end.
//!
//! ```text
//!              ┌──────────── delay ◄───────────┐ by its policy
//!   start ─► Starting ── check ─► Ready ── program ends ─► Exited
//!                └── ends, or not ready in time ─► Failed        stop ─► Stopped
//! ```
//! Each run of a service is a process with the service's name. [`crate::processes`] stores the output of the process. A
//! service that has never been ready is not started again, so that every request to start a service ends.
//!
//! - `registry`, `supervised`: the services and their states
//! - `supervision`: one task for each service · `readiness`: the checks

mod readiness;
pub(crate) mod registry;
mod supervised;
mod supervision;

use std::sync::Arc;
use std::time::Duration;

use bottle_channel::Stream;
use bottle_protocol::session::guest::GuestEvent;
use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::{Service, StopService};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::failure::{Outcome, bad_state};
use crate::guest::Guest;

/// The time limit for all services together to end when the bottle stops. When the limit is reached, SIGKILL ends the
/// remaining services. The limit must be shorter than the five seconds for which the keeper waits for the answer of pid
/// 1.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Starts a service, and waits until it is ready or has failed. The start continues if the client disconnects.
pub(crate) async fn start(guest: &Arc<Guest>, service: Service) -> Outcome<GuestEvent> {
    if service.name.is_handle() {
        let message =
            format!("{} cannot be the name of a service, because handles look like this", service.name);
        return Err(bad_state(message));
    }
    guest.environment()?;
    let service = guest.services.add(service)?;
    tokio::spawn(supervision::supervise(guest.clone(), service.clone()));
    Ok(GuestEvent::Service(service.settled().await))
}

/// Starts an ended service again with the same settings.
pub(crate) async fn start_again(guest: &Arc<Guest>, name: &ProcessName) -> Outcome<GuestEvent> {
    let service = guest.services.find(name)?.service.clone();
    start(guest, service).await
}

/// Lists all services.
pub(crate) fn list(guest: &Guest) -> GuestEvent {
    GuestEvent::Services { services: guest.services.infos() }
}

/// Stops a service. A service that has already ended keeps its state.
pub(crate) async fn stop(guest: &Guest, request: &StopService) -> Outcome<GuestEvent> {
    let service = guest.services.find(&request.name)?;
    service.stop(Duration::from_millis(request.grace_ms));
    Ok(GuestEvent::Service(service.over().await))
}

/// Notifies the client whenever a service ends. Returns when the client ends the stream.
pub(crate) async fn watch(guest: &Guest, stream: Stream) {
    let mut ends = guest.services.ends.subscribe();
    let (sender, _receiver) = stream.split();
    let sending = async {
        loop {
            match ends.recv().await {
                Ok(service) => {
                    if sender.message(&GuestEvent::Service(service)).await.is_err() {
                        return;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = sender.closed() => {}
    }
}

/// Stops all services in reverse order of their start, because a service may need earlier ones until it ends.
pub(crate) async fn stop_all(guest: &Guest) {
    let end = Instant::now() + STOP_GRACE;
    for service in guest.services.close() {
        service.stop(end.saturating_duration_since(Instant::now()));
        service.over().await;
    }
}
