//! Removes the resources that bottles left behind after they stopped running.

use std::time::Duration;

use crate::registry;
use bottle_backend::Backend;
use bottle_host::{Host, causes};
use bottle_instance::cleanup::{self, Found, Keeps, Orphan};
use bottle_instance::record::DeployKey;
use bottle_instance::{State, Store};
use bottle_keeper::ledger::Ledger;
use bottle_policy::names::Slug;

use crate::bottles::is_running;
use crate::connect::unlistable;
use crate::failure::Failure;
use crate::report::{CleanupReport, Leftover};
use crate::stop::stop;

/// The time that each agent has to end when running bottles are removed too. After this time, the agent is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The progress of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The removal stops these bottles.
    Stopping(&'a [Slug]),
    /// Stopping a bottle takes long, for this reason.
    Delayed(&'a str),
    /// The removal deletes the leftovers that were found.
    Removing,
}

/// The bottles that a cleanup would stop, and the leftovers that it would remove.
pub struct Leftovers<'h> {
    host: &'h Host,
    backends: Vec<Box<dyn Backend>>,
    /// The leftovers of bottles that no longer run.
    pub found: Found,
    /// The running bottles that would be stopped, including detached bottles whose keeper has ended.
    pub running: Vec<Slug>,
}

impl<'h> Leftovers<'h> {
    /// Finds the leftovers of this `$BOTTLE_HOME`, without changing anything. With `all`, also finds the running
    /// bottles.
    ///
    /// # Errors
    /// When the directory with the bottles' state cannot be read.
    pub async fn find(host: &'h Host, all: bool) -> Result<Self, Failure> {
        let backends = registry::all(host);
        let found = cleanup::find(host, &backends).await.map_err(unlistable)?;
        let running = if all { running(host)? } else { Vec::new() };
        Ok(Self { host, backends, found, running })
    }

    /// Whether there is nothing to stop or remove.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.running.is_empty()
    }

    /// Stops and removes everything. Continues after a failure, and returns every failure as a sentence.
    ///
    /// # Errors
    /// When the directory with the bottles' state cannot be read.
    pub async fn remove(&mut self, report: &(dyn Fn(Progress<'_>) + Sync)) -> Result<Vec<String>, Failure> {
        let mut failures = self.stop_all(report).await;
        if !self.running.is_empty() {
            // Searches again, because the bottles that were just stopped may have left resources.
            self.found = cleanup::find(self.host, &self.backends).await.map_err(unlistable)?;
        }
        report(Progress::Removing);
        failures.extend(cleanup::remove(self.host, &self.backends, &mut self.found).await);
        failures.extend(self.remove_old_usage());
        Ok(failures)
    }

    /// Stops the running bottles concurrently. If a bottle's keeper cannot be reached, the bottle becomes an orphan,
    /// and the next search finds it.
    async fn stop_all(&self, report: &(dyn Fn(Progress<'_>) + Sync)) -> Vec<String> {
        if !self.running.is_empty() {
            report(Progress::Stopping(&self.running));
        }
        let each = self.running.iter().map(async |slug| {
            let alive = matches!(Store::of(self.host).state(slug), Some(State::Alive(_)));
            match stop(self.host, slug, GRACE, |text| report(Progress::Delayed(text))).await {
                Ok(_) => None,
                Err(error) => alive.then(|| format!("{slug}: {}", error.message)),
            }
        });
        futures_util::future::join_all(each).await.into_iter().flatten().collect()
    }

    /// Removes old usage records. Before the removal, the ledger ingests the records, so that budgets and reports still
    /// count them.
    fn remove_old_usage(&self) -> Vec<String> {
        if self.found.usage.is_empty() {
            return Vec::new();
        }
        let home = &self.host.home;
        match Ledger::open(home).and_then(|mut ledger| ledger.ingest(home)) {
            Ok(_) => cleanup::remove_old_usage(self.host, &self.found),
            Err(error) => {
                vec![format!("old usage records stay: {}; {}", causes::one_line(&error), error.hint())]
            }
        }
    }

    /// Returns the output document of a cleanup with these failures. With `dry_run`, the document describes a cleanup
    /// that removed nothing.
    pub fn document(&self, failures: &[String], dry_run: bool) -> CleanupReport {
        let found = &self.found;
        let leftover = |orphan: &Orphan| Leftover {
            slug: orphan.slug.to_string(),
            backend: orphan.backend.clone(),
            why: orphan.why.clone(),
            work_kept: orphan.keeps == Keeps::Work,
            deploy_keys: orphan.deploy_keys.iter().map(DeployKey::describe).collect(),
        };
        let files = found.litter.iter().chain(&found.temporary);
        CleanupReport {
            dry_run,
            stopped: self.running.iter().map(ToString::to_string).collect(),
            removed: found.orphans.iter().map(leftover).collect(),
            snapshots: found.snapshots.iter().map(|lost| lost.snapshot.reference.clone()).collect(),
            unused: found.unused.iter().map(|(_, unused)| unused.clone()).collect(),
            files: files.map(|path| path.display().to_string()).collect(),
            usage: found.usage.iter().map(|(slug, _)| slug.to_string()).collect(),
            left: found.left.clone(),
            errors: failures.to_vec(),
        }
    }
}

fn running(host: &Host) -> Result<Vec<Slug>, Failure> {
    let listed = Store::of(host).list().map_err(unlistable)?;
    Ok(listed.into_iter().filter(|listed| is_running(&listed.state)).map(|listed| listed.slug).collect())
}
