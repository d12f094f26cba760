//! Checks whether a bottle's containers run, and continues paused containers.

use std::time::Duration;

use bottle_backend::{BackendError, RunState};
use bottle_policy::names::Slug;
use tokio::time::{Instant, sleep};

use super::container::find;
use super::engine::{Engine, EngineError};
use super::names::{Names, Part};

/// How long to wait for an engine that does not answer, for example because it restarts.
const ENGINE_RETURNS_WITHIN: Duration = Duration::from_secs(30);

/// The interval between two attempts to query an engine that does not answer.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Implements [`bottle_backend::Lifecycle::run_state`].
///
/// # Errors
/// [`BackendError`] when the engine does not answer in time, or fails.
pub(super) async fn run_state(engine: &Engine, names: &Names, slug: &Slug) -> Result<RunState, BackendError> {
    let end = Instant::now() + ENGINE_RETURNS_WITHIN;
    let found = loop {
        match find(engine, names, Part::Agent, slug).await {
            Err(error) if is_away(&error) && Instant::now() < end => sleep(POLL_INTERVAL).await,
            found => break found.map_err(|error| error.during(&format!("find out whether {slug} runs")))?,
        }
    };
    Ok(match found {
        Some(found) if found.paused => {
            RunState::Paused { hint: unpause_hint(&names.name(Part::Agent, slug)) }
        }
        Some(found) if found.running => RunState::Running,
        _ => RunState::Ended,
    })
}

/// Returns the user's next step for a paused container with this name.
pub(super) fn unpause_hint(container: &str) -> String {
    format!("`docker unpause {container}` continues it")
}

/// Whether the engine has exited or is restarting.
fn is_away(error: &EngineError) -> bool {
    matches!(error, EngineError::Absent { .. } | EngineError::Disconnected(_) | EngineError::TimedOut)
}

/// Continues the paused containers of a bottle.
///
/// # Errors
/// [`BackendError`] when the engine fails.
pub(super) async fn unpause(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), BackendError> {
    let failed = |error: EngineError| error.during(&format!("continue {slug}, which is paused"));
    for part in [Part::Agent, Part::Bundle] {
        let found = find(engine, names, part, slug).await.map_err(failed)?;
        if let Some(found) = found.filter(|found| found.paused) {
            match engine.call_if_there(engine.docker().unpause_container(&found.id)).await {
                // The container continued or ended in the meantime.
                Err(EngineError::Refused { status: 409 | 500, .. }) => {}
                unpaused => drop(unpaused.map_err(failed)?),
            }
        }
    }
    Ok(())
}
