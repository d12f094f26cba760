//! Checks whether a backend uses the engine that has a bottle's resources.
//!
//! A command can use another engine than the engine on which the bottle was started, and an engine may not answer. In
//! both cases the bottle's resources are not found, although they exist. Before a caller concludes that a resource is
//! gone, it calls [`require`].

use std::path::Path;

use bottle_backend::{Backend, BackendError, BackendErrorKind, EngineIdentity, LAYERS, Resource};
use bottle_protocol::session::guest::Changed;

use super::committed;
use super::record::Record;
use super::work::{self, Unsaved};

/// Checks that the backend uses the engine that has the bottle's resources. If the check succeeds, a resource that the
/// backend does not find does not exist any more. `directory` is the bottle's directory. The check always succeeds on a
/// backend without an engine.
///
/// An engine that has the bottle's files or its snapshot is accepted, because the names of files and snapshots are
/// unique. The engine is accepted even if its identity has changed, or if the record is too old to contain an identity.
///
/// # Errors
/// Returns [`BackendError`], which names the engine or says that the record does not name an engine.
pub async fn require(backend: &dyn Backend, directory: &Path, record: &Record) -> Result<(), BackendError> {
    find(backend, directory, record).await.map_err(|away| away.about(record))
}

/// Why a bottle's resources cannot be inspected.
#[derive(Debug, Clone)]
pub enum Away {
    /// No engine answers.
    NoAnswer(BackendError),
    /// An engine answers, but it does not have the bottle's resources.
    Other(EngineIdentity),
    /// The engine answers, and the search for the bottle's resources failed.
    Failed(BackendError),
}

/// Checks the engine like [`require`], but returns the reason of a failure and not a message about this bottle.
///
/// # Errors
/// Returns [`Away`].
pub async fn find(backend: &dyn Backend, directory: &Path, record: &Record) -> Result<(), Away> {
    let current = match backend.identity().await {
        Ok(None) => return Ok(()),
        Ok(Some(current)) => current,
        Err(error) => return Err(Away::NoAnswer(error)),
    };
    if record.engine.as_ref().is_some_and(|needed| needed.is_same(&current)) {
        return Ok(());
    }
    let layers: Vec<&Resource> = record.resources.iter().filter(|r| r.kind == LAYERS).collect();
    let committed = committed::read(directory);
    // If `committed-image` cannot be read, the bottle is assumed to have a snapshot.
    let has_none = committed.as_ref().is_ok_and(|list| list.snapshots.is_empty());
    if record.engine.is_none() && layers.is_empty() && has_none {
        return Ok(());
    }
    let found = backend.enumerate().await.map_err(Away::Failed)?;
    if layers.iter().any(|layers| found.contains(layers)) {
        return Ok(());
    }
    if let Ok(list) = committed
        && !list.snapshots.is_empty()
        && !record.kept
        && backend.snapshots().await.map_err(Away::Failed)?.iter().any(|found| list.contains(found))
    {
        return Ok(());
    }
    Err(Away::Other(current))
}

impl Away {
    /// Returns the error for a command that needs the files of this bottle.
    fn about(self, record: &Record) -> BackendError {
        match self {
            Self::NoAnswer(error) => no_answer(record, error),
            Self::Other(current) => elsewhere(record, &current),
            Self::Failed(error) => error,
        }
    }
}

/// Checks the engine, and then searches the bottle's workspace for unsaved work with
/// [`bottle_backend::Lifecycle::find_work`].
///
/// # Errors
/// Fails in the same cases as [`require`] and `find_work`. The caller then assumes that there is unsaved work.
pub async fn find_work(
    backend: &dyn Backend,
    directory: &Path,
    record: &Record,
    request: &Changed,
) -> Result<Unsaved, BackendError> {
    require(backend, directory, record).await?;
    let changes = backend.find_work(&record.slug, request, record.live().is_some()).await?;
    Ok(work::judge(directory, request, changes).await)
}

/// Whether the backend finds the bottle's files.
///
/// # Errors
/// Returns [`BackendError`] if the engine cannot be queried.
pub async fn has_layers(backend: &dyn Backend, record: &Record) -> Result<bool, BackendError> {
    let all = backend.enumerate().await?;
    Ok(all.iter().any(|resource| resource.slug == record.slug && resource.kind == LAYERS))
}

fn no_answer(record: &Record, error: BackendError) -> BackendError {
    let slug = &record.slug;
    let (message, hint) = match &record.engine {
        Some(needed) => (
            format!("cannot use the files of {slug}, which are on the engine at {needed}"),
            format!("start that engine; `{}` selects it; {}", needed.select, give_up(slug.as_str())),
        ),
        None => (format!("cannot use the files of {slug}"), error.hint.clone().unwrap_or_default()),
    };
    BackendError::unavailable(message, hint).because(error)
}

fn elsewhere(record: &Record, current: &EngineIdentity) -> BackendError {
    let slug = &record.slug;
    let (message, hint) = match &record.engine {
        Some(needed) => (
            format!(
                "cannot use the files of {slug}: they are on the engine at {needed}, not on the one at {current}"
            ),
            format!("`{}` selects that engine; {}", needed.select, give_up(slug.as_str())),
        ),
        None => (
            format!(
                "cannot use the files of {slug}: the engine at {current} does not have them, and the bottle's record \
                 is too old to name its engine"
            ),
            format!("select the engine on which the bottle was started; {}", give_up(slug.as_str())),
        ),
    };
    BackendError::new(BackendErrorKind::Unavailable, message).with_hint(hint)
}

/// Returns the hint for a bottle whose engine does not exist any more.
pub(super) fn give_up(bottle: &str) -> String {
    format!("if it does not exist any more, `bottle discard {bottle} --forget` gives its files up")
}
