//! Making and starting a container.

use std::time::Duration;

use bollard::models::{ContainerCreateBody, ContainerStateStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, StartContainerOptions,
};
use bottle_contract::names::Slug;

use super::engine::{Engine, EngineError};
use super::names::{Names, Part};

/// How long an engine may hold a container still before it is taken for held by a user: it copies what changed
/// in it meanwhile.
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Makes a container of this name; the answer is its id. Nothing of it runs.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn create(
    engine: &Engine,
    name: &str,
    body: ContainerCreateBody,
) -> Result<String, EngineError> {
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    let made = engine.ask(engine.docker().create_container(Some(options), body)).await?;
    for warning in made.warnings {
        tracing::warn!("the engine, of {name}: {warning}");
    }
    Ok(made.id)
}

/// Starts it.
///
/// # Errors
/// [`EngineError`], with the runtime's own words when its first process could not be started.
pub(super) async fn start(engine: &Engine, id: &str) -> Result<(), EngineError> {
    engine.ask(engine.docker().start_container(id, None::<StartContainerOptions>)).await
}

/// A container as it is found by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The engine's id.
    pub(super) id: String,
    /// Whether it runs.
    pub(super) running: bool,
    /// Whether the engine holds it still, as it does while it makes an image of it.
    pub(super) paused: bool,
    /// How its first process ended, once it has.
    pub(super) exit_code: Option<i64>,
}

/// The container that is this part of this bottle; `None` when there is none, one that is being
/// removed, or one that is not ours.
///
/// # Errors
/// [`EngineError`] when the engine cannot be asked.
pub(super) async fn find(
    engine: &Engine,
    names: &Names,
    part: Part,
    slug: &Slug,
) -> Result<Option<Found>, EngineError> {
    let name = names.name(part, slug);
    let asked = engine.docker().inspect_container(&name, None::<InspectContainerOptions>);
    let container = match engine.ask(asked).await {
        Ok(container) => container,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error),
    };
    let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
    let owned = names.owned(&name, &labels).is_some_and(|(own, of)| own == part && of == *slug);
    let state = container.state.unwrap_or_default();
    // On its way out: whoever asked for that may be gone, the engine goes on.
    let is_going =
        matches!(state.status, Some(ContainerStateStatusEnum::REMOVING | ContainerStateStatusEnum::DEAD));
    let running = state.running.unwrap_or_default();
    let paused = state.paused.unwrap_or_default();
    let exit_code = state.exit_code.filter(|_| !running);
    Ok(container.id.filter(|_| owned && !is_going).map(|id| Found { id, running, paused, exit_code }))
}

/// The same, once the engine does not hold it still any more; after a while as it is.
///
/// # Errors
/// As [`find`].
pub(super) async fn find_awake(
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
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The agent's container, as [`find_awake`] has it, or the one that was set aside for another that never came.
///
/// # Errors
/// As [`find`].
pub(super) async fn find_agent(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
) -> Result<Option<Found>, EngineError> {
    match find_awake(engine, names, Part::Agent, slug).await? {
        Some(found) => Ok(Some(found)),
        None => find(engine, names, Part::Kept, slug).await,
    }
}
