//! Starts the bottle's services, and waits until they are ready.

use bottle_channel::{Channel, Event};
use bottle_plan::PlannedService;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use bottle_protocol::session::process::{ProcessName, ReadFrom, ReadOutput};
use bottle_protocol::session::service::{ServiceInfo, ServiceState};
use bottle_text::terminal::inert;
use futures_util::future::try_join_all;

use super::connection::open;
use super::error::{LaunchError, Peer};

/// The number of lines of a failed service's output in the error message.
const SHOWN_LINES: u64 = 5;

/// The maximum number of bytes of a failed service's output in the error message.
const SHOWN_BYTES: u32 = 2048;

/// Starts the services. A service starts when all services in its `after` list are ready. Services that do not depend
/// on each other start at the same time.
///
/// # Errors
/// [`LaunchError::Service`] if a service does not become ready.
pub(super) async fn start(guest: &Channel, services: &[PlannedService]) -> Result<(), LaunchError> {
    let mut ready: Vec<&ProcessName> = Vec::new();
    while ready.len() < services.len() {
        let next = services.iter().filter(|service| {
            !ready.contains(&&service.service.name) && service.after.iter().all(|name| ready.contains(&name))
        });
        let next: Vec<&PlannedService> = next.collect();
        if next.is_empty() {
            // All remaining services wait for each other. The resolver refuses plans with such services.
            return Err(LaunchError::Refused(
                Peer::Guest,
                "has services that wait for each other".to_owned(),
            ));
        }
        try_join_all(next.iter().map(|service| start_one(guest, service))).await?;
        ready.extend(next.iter().map(|service| &service.service.name));
    }
    Ok(())
}

async fn start_one(guest: &Channel, planned: &PlannedService) -> Result<(), LaunchError> {
    let mut stream = open(guest, &GuestRequest::StartService(planned.service.clone())).await?;
    // The guest answers at the latest when the service's start period ends.
    let event = stream.receive().await.map_err(|error| LaunchError::Disconnected(Peer::Guest, error))?;
    let name = &planned.service.name;
    match event {
        GuestEvent::Service(ServiceInfo { state: ServiceState::Ready, .. }) => Ok(()),
        // The service was ready once and is not ready now. Its restart policy determines what happens next.
        GuestEvent::Service(info) if info.ready_at.is_some() => Ok(()),
        GuestEvent::Service(info) => Err(LaunchError::Service {
            name: name.to_string(),
            why: inert(&info.why.unwrap_or_default()),
            output: match info.process {
                Some(process) => last_output(guest, process).await.unwrap_or_default(),
                None => String::new(),
            },
        }),
        GuestEvent::Failed(failure) => Err(LaunchError::Refused(Peer::Guest, failure.message)),
        _ => Err(LaunchError::Unexpected(Peer::Guest)),
    }
}

/// Returns the last lines of a process's output, without control characters that could affect a terminal.
async fn last_output(guest: &Channel, process: ProcessName) -> Option<String> {
    let from = ReadFrom::LastLines(SHOWN_LINES);
    let request =
        GuestRequest::ReadOutput(ReadOutput { process, from, max: SHOWN_BYTES, wait_ms: 0, follow: false });
    let mut stream = open(guest, &request).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(Event::Data { bytes: part, .. }) = stream.next().await {
        bytes.extend_from_slice(&part);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().map(inert).collect();
    Some(lines.join("; "))
}
