//! Sends the user's changes to a bottle, and the bottle's lock-out, to the children of the bottle.
//!
//! ```text
//! user ─► keeper of the parent ─► keeper of each child: narrower routes, an order for its budget, a lock
//! ```
//! When a child starts, it is compared with its parent. A lock is held from this comparison until the child runs. While
//! this lock is free, all children are therefore known.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_host::Host;
use bottle_host::causes;
use bottle_instance::children::{self, Parent};
use bottle_instance::record::Record;
use bottle_instance::{State, Store};
use bottle_policy::names::Slug;

use super::client;
use super::notices::Notices;
use super::protocol::{KeeperEvent, KeeperRequest, Notice, ParentChange};

/// How long a child may take to apply a change.
const CHANGED_WITHIN: Duration = Duration::from_secs(20);

/// The interval between two attempts to take the lock that a starting child holds. [`STARTS_WITHIN`] is the time limit
/// for all attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const STARTS_WITHIN: Duration = Duration::from_secs(1800);

/// The children of one launch of a bottle.
#[derive(Clone)]
pub(super) struct Children(Arc<Inner>);

struct Inner {
    host: Host,
    /// This launch of the bottle. `None` if an older version of this program launched the bottle; such a bottle has no
    /// children.
    parent: Option<Parent>,
    /// The bottle's state directory.
    directory: PathBuf,
    notices: Arc<Notices>,
    /// The changes that a starting child has to apply after its start, oldest first.
    late: Mutex<Vec<ParentChange>>,
}

impl Children {
    pub(super) fn of(host: &Host, record: &Record, directory: PathBuf, notices: Arc<Notices>) -> Self {
        let (host, parent, late) = (host.clone(), Parent::of(record), Mutex::default());
        Self(Arc::new(Inner { host, parent, directory, notices, late }))
    }

    /// Sends a change to each child, and waits until all children have applied it. Returns a message for each child
    /// that has not applied the change. A child that is starting receives the change after its start.
    pub(super) async fn change(&self, change: ParentChange) -> Vec<String> {
        if matches!(children::read(&self.0.directory), Ok(None)) {
            return Vec::new();
        }
        if let Ok(Some(_no_start)) = children::try_lock(&self.0.directory)
            && !self.0.has_late()
        {
            return self.0.change_existing(&change).await;
        }
        if self.0.add_late(change.clone()) {
            let inner = Arc::clone(&self.0);
            tokio::spawn(async move { inner.change_after_start().await });
        }
        self.0.change_existing(&change).await
    }
}

impl Inner {
    fn late(&self) -> MutexGuard<'_, Vec<ParentChange>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_late(&self) -> bool {
        !self.late().is_empty()
    }

    /// Adds a change that has to wait until no child is starting. Returns whether this is the only waiting change.
    fn add_late(&self, change: ParentChange) -> bool {
        let mut late = self.late();
        late.push(change);
        late.len() == 1
    }

    /// Waits until no child is starting, and then sends the late changes to the children. A child that has already
    /// applied all late changes does not change.
    async fn change_after_start(&self) {
        let wait = async {
            loop {
                if let Ok(Some(lock)) = children::try_lock(&self.directory) {
                    return lock;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        };
        let no_start = tokio::time::timeout(STARTS_WITHIN, wait).await;
        // The lock is held until all late changes are sent, so that no newer change overtakes them.
        let changes = std::mem::take(&mut *self.late());
        for change in changes {
            let failed = match &no_start {
                Ok(_) => self.change_existing(&change).await,
                Err(_) => vec![format!(
                    "a bottle that it is starting {}: the start takes too long",
                    change.effect_of_failure()
                )],
            };
            failed.into_iter().for_each(|sentence| self.notices.send(Notice::Warning(sentence)));
        }
    }

    async fn change_existing(&self, change: &ParentChange) -> Vec<String> {
        let slugs = match self.slugs() {
            Ok(slugs) => slugs,
            Err(error) => return vec![format!("cannot find the bottles that it started: {error}")],
        };
        let changed = slugs.iter().map(async |slug| {
            let why = self.change_one(slug, change).await.err()?;
            let what = change.effect_of_failure();
            Some(format!(
                "{slug}, which it started, {what}: {}; `bottle stop {slug}` ends it",
                causes::one_line(&*why)
            ))
        });
        futures_util::future::join_all(changed).await.into_iter().flatten().collect()
    }

    /// Lists the children that run, including children whose keeper died and that a new keeper can adopt.
    fn slugs(&self) -> Result<Vec<Slug>, bottle_host::files::FileError> {
        let Some(parent) = &self.parent else { return Ok(Vec::new()) };
        let client = parent.client();
        let all = Store::of(&self.host).list()?.into_iter();
        Ok(all.filter_map(|listed| running_child(listed.state, &client)).collect())
    }

    async fn change_one(&self, slug: &Slug, change: &ParentChange) -> anyhow::Result<()> {
        let changed = async {
            let channel = client::connect(&self.host, slug).await?;
            let mut stream = channel.open(&KeeperRequest::OfParent(Box::new(change.clone()))).await?;
            match stream.receive().await? {
                KeeperEvent::Done => Ok(()),
                KeeperEvent::Refused(why) => anyhow::bail!(why),
                _ => anyhow::bail!("its keeper sent an unexpected answer"),
            }
        };
        tokio::time::timeout(CHANGED_WITHIN, changed).await?
    }
}

/// Returns the bottle's slug if the bottle is a child of `client` and runs, or lost its keeper and can be adopted.
fn running_child(state: State, client: &str) -> Option<Slug> {
    let record = match state {
        State::Alive(record) => record,
        State::Dead(record) if record.is_adoptable() => record,
        State::Dead(_) | State::Kept(_) | State::Damaged(_) | State::Newer(_) => return None,
    };
    (record.parent.as_deref() == Some(client)).then_some(record.slug)
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::OnSpent;
    use bottle_instance::record::{Mode, Status};
    use serde_json::json;

    use super::*;
    use crate::protocol::BudgetChange;

    #[tokio::test]
    async fn changes_wait_in_their_order_until_no_child_starts() {
        let top = tempfile::tempdir().expect("directory");
        let directory = top.path().to_owned();
        // A damaged file means that there may be children.
        std::fs::write(directory.join("children.json"), "{").expect("written");
        let children = Children(Arc::new(Inner {
            host: Host::of_home(top.path()),
            parent: None,
            directory: directory.clone(),
            notices: Arc::new(Notices::new()),
            late: Mutex::default(),
        }));
        let stop = ParentChange::Budget { order: BudgetChange::Stop(OnSpent::Cutoff), by: "me".to_owned() };
        let go_on = ParentChange::Budget { order: BudgetChange::Continue, by: "me".to_owned() };
        assert_eq!(children.change(stop.clone()).await, [""; 0]);
        assert!(!children.0.has_late(), "no child starts");
        let start = children::try_lock(&directory).expect("opened").expect("free");
        assert_eq!(children.change(go_on.clone()).await, [""; 0]);
        drop(start);
        assert_eq!(children.change(stop.clone()).await, [""; 0]);
        assert_eq!(*children.0.late(), [go_on, stop], "it does not overtake the one that waits");
        let all_sent = async {
            while children.0.has_late() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all_sent).await.expect("sent after the start");
    }

    #[test]
    fn a_change_reaches_the_children_that_run() {
        let record = |mode, status, parent: Option<&str>| -> Box<Record> {
            serde_json::from_value(json!({
                "schema": 1, "slug": "one", "label": null, "color": null, "agent": "probe", "bottles": [], "cwd": "/",
                "copied_cwd": false, "backend": "fake", "mode": mode, "status": status, "parent": parent,
                "started_at": "2026-01-01T00:00:00Z", "keeper": null, "resources": [], "agent_exit": null,
                "manifest_hash": "",
            }))
            .expect("a record")
        };
        let (attached, detached) = (Mode::Attached, Mode::Detached);
        let (own, other) = (Some("bottle:top:0a"), Some("bottle:top:0b"));
        for (state, wanted) in [
            (State::Alive(record(attached, Status::Running, own)), true),
            (State::Alive(record(detached, Status::Starting, own)), true),
            (State::Dead(record(detached, Status::Running, own)), true),
            (State::Dead(record(attached, Status::Running, own)), false),
            (State::Dead(record(detached, Status::Ended, own)), false),
            (State::Kept(record(detached, Status::Kept, own)), false),
            (State::Alive(record(detached, Status::Running, other)), false),
            (State::Alive(record(detached, Status::Running, None)), false),
            (State::Damaged("why".to_owned()), false),
        ] {
            let text = format!("{state:?}");
            assert_eq!(running_child(state, "bottle:top:0a").is_some(), wanted, "{text}");
        }
    }
}
