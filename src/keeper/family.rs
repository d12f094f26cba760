//! Passes on to the children of a bottle what the user does to it, and a lock-out of it.
//!
//! ```text
//! user ─► keeper of the parent ─► keeper of each child: narrower routes, an order for its budget, a lock
//! ```
//! A start of a child compares it with the parent, and holds a lock from then on until the child runs. So the children
//! that exist while nobody holds that lock are all of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::Slug;

use super::client;
use super::notices::Notices;
use super::protocol::{KeeperEvent, KeeperRequest, Notice, ParentChange};
use crate::causes;
use crate::host::Host;
use crate::instance::children::{self, Parent};
use crate::instance::record::Record;
use crate::instance::{State, Store};

/// How long a child has to carry out what it is told.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

/// How often the lock of a start is tried, and for how long.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const STARTS_WITHIN: Duration = Duration::from_secs(1800);

/// The children of one launch of a bottle.
#[derive(Clone)]
pub(super) struct Children(Arc<Inner>);

struct Inner {
    host: Host,
    /// This launch of the bottle. `None` for one of an older version, which has no children.
    parent: Option<Parent>,
    /// The bottle's folder.
    folder: PathBuf,
    notices: Arc<Notices>,
}

impl Children {
    pub(super) fn of(host: &Host, record: &Record, folder: PathBuf, notices: Arc<Notices>) -> Self {
        Self(Arc::new(Inner { host: host.clone(), parent: Parent::of(record), folder, notices }))
    }

    /// Tells each child of a change, and waits until all of them have carried it out. Returns a sentence for each one
    /// that has not. A child that is starting is told later.
    pub(super) async fn tell(&self, change: ParentChange) -> Vec<String> {
        if !matches!(children::read(&self.0.folder), Ok(Some(_))) {
            return Vec::new();
        }
        if let Ok(Some(_no_start)) = children::try_lock(&self.0.folder) {
            return self.0.tell_existing(&change).await;
        }
        let untold = self.0.tell_existing(&change).await;
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move { inner.tell_after_start(&change).await });
        untold
    }
}

impl Inner {
    /// Waits until no start is in progress, and tells the children again: telling one twice changes nothing.
    async fn tell_after_start(&self, change: &ParentChange) {
        let wait = async {
            loop {
                if let Ok(Some(lock)) = children::try_lock(&self.folder) {
                    return lock;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        };
        let Ok(_no_start) = tokio::time::timeout(STARTS_WITHIN, wait).await else { return };
        for untold in self.tell_existing(change).await {
            self.notices.send(Notice::Warning(untold));
        }
    }

    async fn tell_existing(&self, change: &ParentChange) -> Vec<String> {
        let slugs = match self.slugs() {
            Ok(slugs) => slugs,
            Err(error) => return vec![format!("cannot find the bottles that it started: {error}")],
        };
        let told = slugs.iter().map(async |slug| {
            let why = self.tell_one(slug, change).await.err()?;
            let what = change.what();
            Some(format!(
                "{slug}, which it started, {what}: {}; `bottle stop {slug}` ends it",
                causes::one_line(&*why)
            ))
        });
        futures_util::future::join_all(told).await.into_iter().flatten().collect()
    }

    /// The children that run, or would run with a new keeper.
    fn slugs(&self) -> Result<Vec<Slug>, crate::host::files::FileError> {
        let Some(parent) = &self.parent else { return Ok(Vec::new()) };
        let client = parent.client();
        let runs = |state: State| match state {
            State::Alive(record) => Some(record),
            State::Dead(record) if record.is_adoptable() => Some(record),
            _ => None,
        };
        let all = Store::of(&self.host).list()?.into_iter().filter_map(|listed| runs(listed.state));
        Ok(all.filter(|record| record.parent.as_ref() == Some(&client)).map(|record| record.slug).collect())
    }

    async fn tell_one(&self, slug: &Slug, change: &ParentChange) -> anyhow::Result<()> {
        let told = async {
            let channel = client::connect(&self.host, slug).await?;
            let mut stream = channel.open(&KeeperRequest::OfParent(Box::new(change.clone()))).await?;
            match stream.receive().await? {
                KeeperEvent::Done => Ok(()),
                KeeperEvent::Refused(why) => anyhow::bail!(why),
                _ => anyhow::bail!("its keeper sent an unexpected answer"),
            }
        };
        tokio::time::timeout(TOLD_WITHIN, told).await?
    }
}
