//! Requests about the services of a running bottle.

use bottle_host::Host;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::{Service, StopService};

use super::connect::{connect, guest_failure, keeper_lost, open_guest, unexpected_answer};
use super::failure::Failure;
use super::report::BottleService;

/// The services of a bottle.
#[derive(Debug, Clone, Copy)]
pub struct Services<'a> {
    host: &'a Host,
    slug: &'a Slug,
}

impl<'a> Services<'a> {
    /// Creates a value for the services of this bottle. Each request opens a new connection.
    pub fn new(host: &'a Host, slug: &'a Slug) -> Self {
        Self { host, slug }
    }

    /// Lists the services.
    ///
    /// # Errors
    /// When the bottle does not run.
    pub async fn list(&self) -> Result<Vec<BottleService>, Failure> {
        match self.ask(GuestRequest::ListServices).await? {
            GuestEvent::Services { services } => Ok(services.into_iter().map(BottleService::from).collect()),
            _ => Err(unexpected_answer()),
        }
    }

    /// Starts a service, and waits until it is ready or has failed. The returned document contains the service's state.
    ///
    /// # Errors
    /// When the bottle does not run, or when a service with this name already runs.
    pub async fn start(&self, service: Service) -> Result<BottleService, Failure> {
        self.one(GuestRequest::StartService(service)).await
    }

    /// Starts a service again that has ended, and waits as [`Services::start`] does.
    ///
    /// # Errors
    /// When the bottle does not run, or has no service with this name that ended.
    pub async fn start_again(&self, service: ProcessName) -> Result<BottleService, Failure> {
        self.one(GuestRequest::StartServiceAgain { service }).await
    }

    /// Stops a service and all programs that it started. The service is not started again until
    /// [`Services::start_again`] is called.
    ///
    /// # Errors
    /// When the bottle does not run, or has no service with this name.
    pub async fn stop(&self, stop: StopService) -> Result<BottleService, Failure> {
        self.one(GuestRequest::StopService(stop)).await
    }

    async fn one(&self, request: GuestRequest) -> Result<BottleService, Failure> {
        match self.ask(request).await? {
            GuestEvent::Service(info) => Ok(info.into()),
            _ => Err(unexpected_answer()),
        }
    }

    /// Sends a request, and returns the only answer to it. A failure that the guest reports is returned as an error.
    async fn ask(&self, request: GuestRequest) -> Result<GuestEvent, Failure> {
        let channel = connect(self.host, self.slug).await?;
        let mut stream = open_guest(&channel, request).await?;
        match stream.receive().await.map_err(keeper_lost)? {
            GuestEvent::Failed(failure) => Err(guest_failure(failure)
                .about(self.slug)
                .hint(format!("`bottle service list {}` shows its services", self.slug))),
            event => Ok(event),
        }
    }
}
