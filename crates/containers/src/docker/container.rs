//! Creates, starts and finds containers.

use std::time::Duration;

use bollard::models::{ContainerCreateBody, ContainerStateStatusEnum};
use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions};
use bottle_policy::names::Slug;

use super::engine::{Engine, EngineError};
use super::names::{Names, Part};

/// How long to wait until a paused container continues. An engine pauses a container during a commit. A longer pause
/// was presumably made by the user, and the container is then returned as paused.
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

/// The interval at which a paused container is checked again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Creates a container with this name and returns its id. Does not start the container.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn create(
    engine: &Engine,
    name: &str,
    body: ContainerCreateBody,
) -> Result<String, EngineError> {
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    let made = engine.call(engine.docker().create_container(Some(options), body)).await?;
    for warning in made.warnings {
        tracing::warn!("engine warning for {name}: {warning}");
    }
    Ok(made.id)
}

/// Starts a container.
///
/// # Errors
/// [`EngineError`]. If the first process cannot be started, the error contains the runtime's message.
pub(super) async fn start(engine: &Engine, id: &str) -> Result<(), EngineError> {
    engine.call(engine.docker().start_container(id, None::<StartContainerOptions>)).await
}

/// A container that was found by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The engine's id of the container.
    pub(super) id: String,
    /// Whether the container runs.
    pub(super) running: bool,
    /// Whether the container is paused, for example during a commit.
    pub(super) paused: bool,
    /// The exit code of the first process, if it has exited.
    pub(super) exit_code: Option<i64>,
}

/// Finds the container for this part of the bottle. Returns `None` if the container does not exist, is being removed,
/// or lacks the bottle's labels.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn find(
    engine: &Engine,
    names: &Names,
    part: Part,
    slug: &Slug,
) -> Result<Option<Found>, EngineError> {
    let name = names.name(part, slug);
    let container = match engine.inspect_container(&name).await {
        Err(error) if error.is_missing() => return Ok(None),
        inspected => inspected?,
    };
    let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
    let owned = names.owned(&name, &labels).is_some_and(|(own, of)| own == part && of == *slug);
    let state = container.state.unwrap_or_default();
    // The engine completes a removal even after the process that requested it exited.
    let is_going =
        matches!(state.status, Some(ContainerStateStatusEnum::REMOVING | ContainerStateStatusEnum::DEAD));
    let running = state.running.unwrap_or_default();
    let paused = state.paused.unwrap_or_default();
    let exit_code = state.exit_code.filter(|_| !running);
    Ok(container.id.filter(|_| owned && !is_going).map(|id| Found { id, running, paused, exit_code }))
}

/// Like [`find`], but waits up to [`PAUSED_WITHIN`] while the container is paused.
///
/// # Errors
/// The errors of [`find`].
pub(super) async fn find_unpaused(
    engine: &Engine,
    names: &Names,
    part: Part,
    slug: &Slug,
) -> Result<Option<Found>, EngineError> {
    let end = tokio::time::Instant::now() + PAUSED_WITHIN;
    loop {
        let found = find(engine, names, part, slug).await?;
        let waits = found.as_ref().is_some_and(|found| found.paused);
        if !waits || tokio::time::Instant::now() >= end {
            return Ok(found);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the agent's container, as [`find_unpaused`] does. If this container does not exist, returns the earlier
/// container that an interrupted launch renamed and did not remove.
///
/// # Errors
/// The errors of [`find`].
pub(super) async fn find_agent(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
) -> Result<Option<Found>, EngineError> {
    match find_unpaused(engine, names, Part::Agent, slug).await? {
        Some(found) => Ok(Some(found)),
        None => find(engine, names, Part::Kept, slug).await,
    }
}
