//! Removes snapshots of bottles.

use crate::registry;
use bottle_backend::Snapshot;
use bottle_host::Host;
use bottle_instance::record::Status;
use bottle_instance::snapshots::{self, Removal, SnapshotError};
use bottle_instance::{State, Store, engines};
use bottle_keeper::protocol::KeeperRequest;

use crate::connect::{carry_out, connect};
use crate::failure::{Failure, Kind};
use crate::record::{backend_of, claim_failed};
use crate::snapshot_selector::SnapshotSelector;

/// Removes one snapshot or all snapshots of a bottle.
///
/// # Errors
/// When the snapshot does not exist, or cannot be removed.
pub async fn remove(host: &Host, selector: &SnapshotSelector, which: Removal) -> Result<(), Failure> {
    let (store, slug) = (Store::of(host), &selector.slug);
    match store.state(slug) {
        None => return remove_unrecorded(host, selector, &which).await,
        Some(State::Damaged(why)) => return Err(Failure::state(why)),
        Some(State::Newer(schema)) => {
            return Err(Failure::state(format!("written by a newer bottle (schema {schema})"))
                .hint("use that version of bottle"));
        }
        Some(State::Alive(_)) => {
            require_snapshot(host, selector, &which)?;
            let request = match which {
                Removal::All => KeeperRequest::RemoveSnapshot,
                Removal::One(name) => KeeperRequest::RemoveOneSnapshot { name },
            };
            return carry_out(&connect(host, slug).await?, &request).await;
        }
        Some(State::Dead(_) | State::Kept(_)) => {}
    }
    let claim = store.adopt_idle(slug).map_err(claim_failed)?;
    let record = claim.record();
    require_snapshot(host, selector, &which)?;
    let backend = backend_of(host, &record)?;
    engines::require(&*backend, claim.directory(), &record).await?;
    snapshots::remove(&*backend, &claim, &which).await.map_err(freeze_failed)?;
    let names_more = record.kept || record.has_only_conversation() || claim.has_snapshot();
    if matches!(record.status, Status::Kept) && !names_more {
        // The bottle has neither kept files nor a snapshot, so its record is not needed. The record is kept only until
        // all deploy keys are revoked.
        if !record.deploy_keys.is_empty() {
            let ended = claim.update(|record| record.status = Status::Ended);
            return ended.map_err(|error| Failure::cannot("write its record", error));
        }
        claim.remove().map_err(|error| Failure::cannot("remove its state", error))?;
    }
    Ok(())
}

/// Fails if the snapshot is not in the bottle's list of snapshots.
fn require_snapshot(host: &Host, selector: &SnapshotSelector, which: &Removal) -> Result<(), Failure> {
    let Ok(list) = Store::of(host).snapshots(&selector.slug) else { return Ok(()) };
    let exists = match which {
        Removal::All => !list.snapshots.is_empty(),
        Removal::One(name) => list.find(name.as_ref()).is_some(),
    };
    if exists { Ok(()) } else { Err(no_snapshot(host, selector)) }
}

/// Removes snapshots of a bottle that has no record.
async fn remove_unrecorded(host: &Host, selector: &SnapshotSelector, which: &Removal) -> Result<(), Failure> {
    let is_meant = |found: &Snapshot| match which {
        Removal::All => found.slug == selector.slug,
        Removal::One(_) => SnapshotSelector::of(found) == *selector,
    };
    let mut removed = false;
    for backend in registry::all(host) {
        for snapshot in backend.snapshots().await?.iter().filter(|found| is_meant(found)) {
            backend.remove_snapshot(snapshot).await?;
            removed = true;
        }
    }
    if removed { Ok(()) } else { Err(no_snapshot(host, selector)) }
}

/// The failure for a snapshot that does not exist.
pub fn no_snapshot(host: &Host, selector: &SnapshotSelector) -> Failure {
    let SnapshotSelector { slug, name } = selector;
    let others = Store::of(host).snapshots(slug).is_ok_and(|list| !list.snapshots.is_empty());
    let message = match (name, others) {
        (Some(_), _) => format!("there is no snapshot {selector}"),
        (None, true) => format!("{slug} has no snapshot without a name"),
        (None, false) => format!("there is no snapshot of a bottle named {slug}"),
    };
    Failure::new(Kind::NoSuchBottle, message).hint("`bottle snapshots` shows all snapshots")
}

/// The error when a snapshot cannot be created or removed.
pub fn freeze_failed(error: SnapshotError) -> Failure {
    match error {
        SnapshotError::Backend(error) => error.into(),
        SnapshotError::State(_) => Failure::from_error(Kind::Failed, &error),
        SnapshotError::Exists { .. } | SnapshotError::TooMany(_) => {
            Failure::from_error(Kind::State, &error).hint_if(error.hint())
        }
    }
}
