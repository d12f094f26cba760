//! Defines the state of one service.

use std::time::Duration;

use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::{Service, ServiceInfo, ServiceState};
use tokio::sync::watch;

/// A service and its state.
pub(super) struct Supervised {
    pub(super) service: Service,
    pub(super) info: watch::Sender<ServiceInfo>,
    /// The request to stop the service: the time between SIGTERM and SIGKILL. `None` until the service must stop.
    stop: watch::Sender<Option<Duration>>,
}

impl Supervised {
    pub(super) fn new(service: Service) -> Self {
        let info = ServiceInfo {
            name: service.name.clone(),
            state: ServiceState::Starting,
            process: None,
            ready_at: None,
            restarts: 0,
            exit: None,
            why: None,
        };
        Self { service, info: watch::Sender::new(info), stop: watch::Sender::new(None) }
    }

    pub(super) fn name(&self) -> &ProcessName {
        &self.service.name
    }

    pub(super) fn info(&self) -> ServiceInfo {
        self.info.borrow().clone()
    }

    /// Requests a stop of the service. `grace` is the time between SIGTERM and SIGKILL.
    pub(super) fn stop(&self, grace: Duration) {
        self.stop.send_replace(Some(grace));
    }

    /// Waits until the service has been ready once or has ended without a restart.
    pub(super) async fn settled(&self) -> ServiceInfo {
        self.wait_for(|info| info.ready_at.is_some() || info.state.is_over()).await
    }

    /// Waits until the service has ended without a restart.
    pub(super) async fn over(&self) -> ServiceInfo {
        self.wait_for(|info| info.state.is_over()).await
    }

    async fn wait_for(&self, reached: impl FnMut(&ServiceInfo) -> bool) -> ServiceInfo {
        // The sender belongs to `self`, so it is not dropped during the wait.
        match self.info.subscribe().wait_for(reached).await {
            Ok(info) => info.clone(),
            Err(_) => self.info(),
        }
    }

    pub(super) fn enter(&self, state: ServiceState, change: impl FnOnce(&mut ServiceInfo)) -> ServiceInfo {
        self.info.send_modify(|info| {
            info.state = state;
            change(info);
        });
        self.info()
    }

    /// Waits for a request to stop. Returns the time between SIGTERM and SIGKILL.
    pub(super) async fn stop_requested(&self) -> Duration {
        let mut stop = self.stop.subscribe();
        loop {
            if let Some(grace) = *stop.borrow_and_update() {
                return grace;
            }
            if stop.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
