//! Removes environments: stops their bottles, and deletes their files.

use std::time::Duration;

use bottle_instance::{State, Store};
use bottle_policy::names::Slug;

use super::home::{Environments, slug_of, unusable};
use crate::discard::{discard, is_discardable};
use crate::failure::Failure;
use crate::report::RemovedEnvironment;
use crate::stop::stop;

/// The time between SIGTERM and SIGKILL for the agent of a bottle that is removed.
const GRACE: Duration = Duration::from_secs(3);

/// The maximum time to wait until a keeper exits after its bottle ended.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The pause between two checks of the bottle's state.
const POLL: Duration = Duration::from_millis(20);

impl Environments<'_> {
    /// Stops the bottle of a task, and deletes the bottle's files. If the bottle ends only after a snapshot is saved,
    /// calls `report_delay` with the reason for the delay.
    ///
    /// # Errors
    /// When a command runs in the bottle, or when some of its files cannot be deleted.
    pub async fn remove(
        &self,
        task: &str,
        report_delay: impl FnOnce(&str),
    ) -> Result<RemovedEnvironment, Failure> {
        let slug = slug_of(task)?;
        let removed = self.remove_bottle(&slug, report_delay).await;
        removed.map_err(|failure| failure.about_if_unset(&slug))?;
        Ok(RemovedEnvironment { task: task.to_owned(), slug: slug.to_string() })
    }

    async fn remove_bottle(&self, slug: &Slug, report_delay: impl FnOnce(&str)) -> Result<(), Failure> {
        let unused = self.unused(slug)?.ok_or_else(|| {
            Failure::state(format!("cannot remove {slug}: a command runs in it"))
                .hint("try again when the command has ended; `bottle env ls` shows it")
        })?;
        if self.is_running(slug) {
            let _ = stop(self.host, slug, GRACE, report_delay).await?;
            self.ended(slug).await?;
        }
        // If the bottle had no unsaved work, the keeper may have removed its files already.
        if matches!(Store::of(self.host).state(slug), Some(State::Kept(record)) if is_discardable(&record)) {
            let _ = discard(self.host, slug).await?;
        }
        self.records.forget(slug, &unused).map_err(|error| unusable(&error))
    }

    /// Waits until the keeper of a bottle that was stopped has exited.
    async fn ended(&self, slug: &Slug) -> Result<(), Failure> {
        let waiting = async {
            while self.is_running(slug) {
                tokio::time::sleep(POLL).await;
            }
        };
        let late = |_| {
            Failure::state(format!("{slug} is still ending"))
                .hint("`bottle list` shows its state; then try again")
        };
        tokio::time::timeout(ENDS_WITHIN, waiting).await.map_err(late)
    }
}
