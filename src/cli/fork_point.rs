//! The snapshot that a fork or an export starts from: a named one, or a temporary one of the bottle as it is now.

use bottle_contract::names::Name;

use super::error::CliError;
use super::output::Output;
use super::save_snapshot::save;
use crate::backend::{Backend, Snapshot};
use crate::host::Host;
use crate::host::process::ProcessId;
use crate::instance::record::Record;
use crate::instance::snapshots::{CommitOptions, Removal};
use crate::instance::{State, Store};
use crate::library::snapshot_selector::SnapshotSelector;
use crate::library::snapshots;

/// The files that a command copies.
pub(super) struct ForkPoint {
    pub(super) snapshot: Snapshot,
    /// The name of the snapshot, if it was made for this command.
    temporary: Option<Name>,
}

impl ForkPoint {
    /// The snapshot that `selector` names, or a new one of the bottle as it is now, which is called `temporary`. A
    /// bottle of which only snapshots are left has its newest one.
    ///
    /// # Errors
    /// When there is no such snapshot, or it cannot be made.
    pub(super) async fn find(
        host: &Host,
        backend: &dyn Backend,
        record: &Record,
        selector: &SnapshotSelector,
        temporary: Name,
        output: &Output,
    ) -> Result<Self, CliError> {
        let slug = &record.slug;
        let only_snapshots = matches!(Store::of(host).state(slug), Some(State::Preserved(_))) && !record.kept;
        if selector.name.is_none() && !only_snapshots {
            let own = ProcessId::own().map_err(|error| CliError::cannot("identify this process", error))?;
            let options = CommitOptions { name: Some(temporary.clone()), removed_by: Some(own.to_string()) };
            let saved = save(host, slug, options, output).await?;
            return Ok(Self { snapshot: saved.snapshot, temporary: Some(temporary) });
        }
        if selector.name.is_none() && record.has_only_conversation() && !Store::of(host).has_snapshot(slug) {
            return Err(CliError::state(format!("{slug} has no files: only its conversation is kept"))
                .about(slug)
                .hint(format!(
                    "`bottle resume {slug}` makes its files anew and continues the conversation"
                )));
        }
        let list = Store::of(host).snapshots(slug).map_err(|error| CliError::state(error.to_string()))?;
        let there = backend.snapshots().await?;
        let exists = |own: &&Snapshot| there.iter().any(|found| found.is_same(own));
        let found = match &selector.name {
            Some(name) => list.find(Some(name)).filter(exists),
            None => list.snapshots.iter().rev().map(|entry| &entry.snapshot).find(exists),
        };
        let snapshot = found.cloned().ok_or_else(|| snapshots::no_snapshot(host, selector))?;
        Ok(Self { snapshot, temporary: None })
    }

    /// Whether the snapshot was made for this command.
    #[cfg(target_os = "linux")]
    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Removes the snapshot if it was made for this command. A failure is only a warning.
    pub(super) async fn release(self, host: &Host, output: &Output) {
        let Some(name) = self.temporary else { return };
        let selector = SnapshotSelector { slug: self.snapshot.slug, name: Some(name.clone()) };
        if let Err(error) = snapshots::remove(host, &selector, Removal::One(Some(name))).await {
            let hint = format!("`bottle snapshots rm {selector}` removes it");
            output.warn(format!("the snapshot {selector} was not removed: {}; {hint}", error.message));
        }
    }
}
