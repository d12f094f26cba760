//! Services: programs that must be ready before the agent starts, and that are started again when they end.
//!
//! ```text
//!              ┌──────────── delay ◄───────────┐ by its policy
//!   start ─► Starting ── check ─► Ready ── program ends ─► Exited
//!                └── ends, or not ready in time ─► Failed        stop ─► Stopped
//! ```
//! Each run is a process with the service's name, whose output [`crate::processes`] keeps. Until a service was ready
//! once, it is not started again, so a start has an end.
//!
//! - `supervision`: one task for each service · `readiness`: the checks

mod readiness;
mod supervision;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_channel::Stream;
use bottle_contract::session::guest::GuestEvent;
use bottle_contract::session::process::ProcessName;
use bottle_contract::session::service::{SERVICES_MAX, Service, ServiceInfo, StopService};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::failure::{Outcome, bad_state};
use crate::guest::Guest;
use supervision::Supervised;

/// The number of ends that a watcher may be behind. It misses older ones.
const ENDS: usize = 64;

/// The time in which all services together may end when the bottle stops. After it, SIGKILL ends the others. The keeper
/// waits five seconds for the answer of pid 1.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// All services.
pub(crate) struct Services {
    known: Mutex<Known>,
    /// The services that ended without a request.
    ends: broadcast::Sender<ServiceInfo>,
}

#[derive(Default)]
struct Known {
    /// In the order of their start.
    all: Vec<Arc<Supervised>>,
    /// Whether the bottle ends, so that no service starts any more.
    closed: bool,
}

impl Default for Services {
    fn default() -> Self {
        Self { known: Mutex::default(), ends: broadcast::Sender::new(ENDS) }
    }
}

impl Services {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no service start any more. Returns the services, the last one first.
    fn close(&self) -> Vec<Arc<Supervised>> {
        let mut known = self.known();
        known.closed = true;
        known.all.iter().rev().cloned().collect()
    }

    /// Stops all services at once, because a limit is exceeded.
    pub(crate) fn abandon(&self) {
        self.close().iter().for_each(|service| service.stop(Duration::ZERO));
    }

    fn find(&self, name: &ProcessName) -> Outcome<Arc<Supervised>> {
        let Known { all, .. } = &*self.known();
        if let Some(found) = all.iter().find(|service| service.name() == name) {
            return Ok(found.clone());
        }
        let names: Vec<&str> = all.iter().map(|service| service.name().as_str()).collect();
        let have =
            if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
        Err(bad_state(format!("the bottle has no service {name}: {have}")))
    }

    /// Adds a service, in place of an ended one with its name.
    fn add(&self, service: Service) -> Outcome<Arc<Supervised>> {
        let Known { all, closed } = &mut *self.known();
        if *closed {
            return Err(bad_state("the bottle ends"));
        }
        if let Some(earlier) = all.iter().position(|earlier| *earlier.name() == service.name) {
            if all.get(earlier).is_some_and(|earlier| !earlier.info().state.is_over()) {
                return Err(bad_state(format!("the service {} runs already", service.name)));
            }
            all.remove(earlier);
        }
        if all.len() >= SERVICES_MAX {
            let ended = all.iter().position(|service| service.info().state.is_over());
            let ended = ended.ok_or_else(|| bad_state(format!("{SERVICES_MAX} services run already")))?;
            all.remove(ended);
        }
        let service = Arc::new(Supervised::new(service));
        all.push(service.clone());
        Ok(service)
    }
}

/// Starts a service, and waits until it is ready or will not become ready. It goes on if the client disconnects.
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

/// Starts a service that ended as it was started before.
pub(crate) async fn start_again(guest: &Arc<Guest>, name: &ProcessName) -> Outcome<GuestEvent> {
    let service = guest.services.find(name)?.service.clone();
    start(guest, service).await
}

/// Lists all services.
pub(crate) fn list(guest: &Guest) -> GuestEvent {
    GuestEvent::Services {
        services: guest.services.known().all.iter().map(|service| service.info()).collect(),
    }
}

/// Stops a service. One that ended before keeps its state.
pub(crate) async fn stop(guest: &Guest, request: &StopService) -> Outcome<GuestEvent> {
    let service = guest.services.find(&request.name)?;
    service.stop(Duration::from_millis(request.grace_ms));
    Ok(GuestEvent::Service(service.over().await))
}

/// Sends each end of a service to the client until it ends the stream.
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

/// Stops all services, the last one first, because it may need earlier ones until its end.
pub(crate) async fn stop_all(guest: &Guest) {
    let end = Instant::now() + STOP_GRACE;
    for service in guest.services.close() {
        service.stop(end.saturating_duration_since(Instant::now()));
        service.over().await;
    }
}
