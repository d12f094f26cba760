//! Deletes a bottle that ended, except its snapshots.

use bottle_backend::{BackendError, BackendErrorKind};
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::{State, Store, cleanup};
use bottle_policy::names::Slug;

use super::failure::Failure;
use super::record::{backend_of, kept};

/// Deletes a kept bottle without asking the user. Returns whether a snapshot of the bottle remains.
pub async fn discard(host: &Host, slug: &Slug) -> Result<bool, Failure> {
    let record = discardable(host, slug, false).await.map_err(|error| error.about(slug))?;
    let backend = backend_of(host, &record)?;
    cleanup::discard(host, &*backend, &record).await.map_err(|error| incomplete(host, slug, error))
}

/// The error if a bottle could not be deleted completely.
pub fn incomplete(host: &Host, slug: &Slug, error: anyhow::Error) -> Failure {
    let error = match error.downcast::<BackendError>() {
        Ok(error) if error.kind == BackendErrorKind::Unavailable => {
            return Failure::from(error).about(slug);
        }
        Ok(error) => error.into(),
        Err(error) => error,
    };
    Failure::failed(format!("cannot delete all of {slug}: {error:#}")).about(slug).hint(next_step(host, slug))
}

/// Returns the record of a bottle with kept files, or an error whose hint names the next step. With `forget`, also
/// returns the record of a bottle that ended without being kept.
pub async fn discardable(host: &Host, slug: &Slug, forget: bool) -> Result<Record, Failure> {
    if forget && let Some(State::Dead(record) | State::Kept(record)) = Store::of(host).state(slug) {
        return Ok(*record);
    }
    if let Some(State::Alive(_)) = Store::of(host).state(slug) {
        let hint = format!("`bottle stop {slug}` stops it");
        return Err(Failure::state(format!("{slug} is still running")).hint(hint));
    }
    if let Some(State::Dead(record)) = Store::of(host).state(slug)
        && record.has_only_logs()
    {
        let hint = "`bottle cleanup` removes it".to_owned();
        return Err(Failure::state(format!("{slug} ended, and only its output is left")).hint(hint));
    }
    let record = kept(host, slug).await?;
    if is_discardable(&record) {
        return Ok(record);
    }
    Err(Failure::state(format!("nothing of {slug} is kept except its snapshot"))
        .hint(format!("`bottle snapshots rm {slug}` removes it")))
}

/// Whether the bottle has files or a conversation that can be discarded.
pub fn is_discardable(record: &Record) -> bool {
    record.kept || record.has_only_conversation()
}

/// Returns the command that finishes a failed deletion. `bottle discard` finds only files that the record marks as
/// kept; `bottle cleanup` finds all other files.
fn next_step(host: &Host, slug: &Slug) -> String {
    match Store::of(host).state(slug) {
        Some(State::Kept(record)) if record.kept => {
            format!("`bottle discard {slug}` continues")
        }
        _ => "`bottle cleanup` continues".to_owned(),
    }
}
