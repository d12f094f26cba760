//! Registers the services of a bottle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::{SERVICES_MAX, Service, ServiceInfo};
use tokio::sync::broadcast;

use super::supervised::Supervised;
use crate::failure::{Outcome, bad_state};

/// The maximum number of end notifications that are buffered for a watcher. A slower watcher misses the oldest
/// notifications.
const ENDS: usize = 64;

/// The registry of all services.
pub(crate) struct Services {
    known: Mutex<Known>,
    /// Reports each service that ends without a request to stop it.
    pub(super) ends: broadcast::Sender<ServiceInfo>,
}

#[derive(Default)]
struct Known {
    /// The services in the order in which they were started.
    all: Vec<Arc<Supervised>>,
    /// Whether the bottle is stopping. In this case, no further service may start.
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

    /// Returns the states of all services.
    pub(super) fn infos(&self) -> Vec<ServiceInfo> {
        self.known().all.iter().map(|service| service.info()).collect()
    }

    /// Prevents any further start of a service. Returns the services in reverse order of their start.
    pub(super) fn close(&self) -> Vec<Arc<Supervised>> {
        let mut known = self.known();
        known.closed = true;
        known.all.iter().rev().cloned().collect()
    }

    /// Stops all services immediately, because the bottle has exceeded a limit.
    pub(crate) fn abandon(&self) {
        self.close().iter().for_each(|service| service.stop(Duration::ZERO));
    }

    pub(super) fn find(&self, name: &ProcessName) -> Outcome<Arc<Supervised>> {
        let Known { all, .. } = &*self.known();
        if let Some(found) = all.iter().find(|service| service.name() == name) {
            return Ok(found.clone());
        }
        let names: Vec<&str> = all.iter().map(|service| service.name().as_str()).collect();
        let have =
            if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
        Err(bad_state(format!("the bottle has no service {name}: {have}")))
    }

    /// Adds a service. Replaces an ended service with the same name.
    pub(super) fn add(&self, service: Service) -> Outcome<Arc<Supervised>> {
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
