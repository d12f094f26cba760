//! The snapshot that a fork or an export starts from: a named snapshot, or a temporary snapshot of the bottle's current
//! state.

use bottle_backend::{Backend, ProgressSink, Snapshot};
use bottle_host::Host;
use bottle_host::process::ProcessId;
use bottle_instance::record::Record;
use bottle_instance::snapshots::{CommitOptions, Removal};
use bottle_instance::{State, Store};
use bottle_keeper::protocol::Committed;
use bottle_policy::names::Name;

use crate::failure::Failure;
use crate::notice::{Notice, Notify};
use crate::save_snapshot::Saving;
use crate::snapshot_selector::SnapshotSelector;
use crate::snapshots;

/// The result of [`ForkPoint::find`].
pub enum Found {
    /// A snapshot that exists.
    Snapshot(ForkPoint),
    /// A snapshot that does not exist yet and has to be saved.
    Unsaved(Box<Unsaved>),
}

/// A temporary snapshot that has to be saved.
pub struct Unsaved {
    /// The operation that saves the snapshot.
    pub saving: Saving,
    name: Name,
}

impl Found {
    /// Saves the snapshot if necessary, and returns it.
    ///
    /// # Errors
    /// When the snapshot cannot be saved.
    pub async fn saved(self) -> Result<ForkPoint, Failure> {
        match self {
            Self::Snapshot(point) => Ok(point),
            Self::Unsaved(unsaved) => {
                let (saving, saved) = unsaved.split();
                saving.run(ProgressSink::discard()).await.map(saved)
            }
        }
    }
}

impl Unsaved {
    /// Returns the operation that saves the snapshot, and a function that converts its result to a [`ForkPoint`].
    pub fn split(self) -> (Saving, impl FnOnce(Committed) -> ForkPoint) {
        let Self { saving, name } = self;
        let saved = |saved: Committed| ForkPoint { snapshot: saved.snapshot, temporary: Some(name) };
        (saving, saved)
    }
}

/// The snapshot from which a fork or an export copies the files.
pub struct ForkPoint {
    /// The snapshot with the files.
    pub snapshot: Snapshot,
    /// The name of the snapshot, if it was made for this fork or export.
    temporary: Option<Name>,
}

impl ForkPoint {
    /// Returns the snapshot that `selector` names. If `selector` names only a bottle, returns a new snapshot of the
    /// bottle's current state, with the name `temporary`. If only snapshots of that bottle remain, returns the newest
    /// snapshot.
    ///
    /// # Errors
    /// When the snapshot does not exist, or when no snapshot of the bottle can be made.
    pub async fn find(
        host: &Host,
        backend: &dyn Backend,
        record: &Record,
        selector: &SnapshotSelector,
        temporary: Name,
        notify: Notify<'_>,
    ) -> Result<Found, Failure> {
        let slug = &record.slug;
        let only_snapshots = matches!(Store::of(host).state(slug), Some(State::Kept(_))) && !record.kept;
        if selector.name.is_none() && !only_snapshots {
            let own = ProcessId::own().map_err(|error| Failure::cannot("identify this process", error))?;
            let options = CommitOptions { name: Some(temporary.clone()), removed_by: Some(own.to_string()) };
            let saving = Saving::begin(host, slug, options, notify).await?;
            return Ok(Found::Unsaved(Box::new(Unsaved { saving, name: temporary })));
        }
        if selector.name.is_none() && record.has_only_conversation() && !Store::of(host).has_snapshot(slug) {
            return Err(Failure::state(format!("{slug} has no files: only its conversation is kept"))
                .about(slug)
                .hint(format!(
                    "`bottle resume {slug}` makes its files anew and continues the conversation"
                )));
        }
        let list = Store::of(host).snapshots(slug).map_err(|error| Failure::state(error.to_string()))?;
        let there = backend.snapshots().await?;
        let exists = |own: &&Snapshot| there.iter().any(|found| found.is_same(own));
        let found = match &selector.name {
            Some(name) => list.find(Some(name)).filter(exists),
            None => list.snapshots.iter().rev().map(|entry| &entry.snapshot).find(exists),
        };
        let snapshot = found.cloned().ok_or_else(|| snapshots::no_snapshot(host, selector))?;
        Ok(Found::Snapshot(Self { snapshot, temporary: None }))
    }

    /// Whether the snapshot was made for this fork or export.
    #[cfg(target_os = "linux")]
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Removes the snapshot if it was made for this fork or export. A failure only causes a warning.
    pub async fn release(self, host: &Host, notify: Notify<'_>) {
        let Some(name) = self.temporary else { return };
        let selector = SnapshotSelector { slug: self.snapshot.slug, name: Some(name.clone()) };
        if let Err(error) = snapshots::remove(host, &selector, Removal::One(Some(name))).await {
            let hint = format!("`bottle snapshots rm {selector}` removes it");
            notify(Notice::Warning(format!(
                "the snapshot {selector} was not removed: {}; {hint}",
                error.message
            )));
        }
    }
}
