//! Removes old records of bottles that do not exist any more, and unused images.

use crate::registry;
use bottle_backend::{Backend, BackendErrorKind, Unused};
use bottle_host::{Host, Settings, causes};
use bottle_instance::prune::{self, Kind, OldRecord, Prunable};
use jiff::Timestamp;

use crate::failure::Failure;
use crate::report::{PruneReport, PrunedRecord};

/// An unused image or volume, with the name of its backend.
pub type Image = (&'static str, Unused);

/// The records and images that a prune would remove.
pub struct Unneeded<'h> {
    host: &'h Host,
    backends: Vec<Box<dyn Backend>>,
    /// The records that would be removed, and the errors of inspections that failed.
    pub found: Prunable,
    /// The unused images and volumes.
    pub images: Vec<Image>,
}

impl<'h> Unneeded<'h> {
    /// Finds unused images, and records that were last changed before `cutoff`. If `cutoff` is `None`, the time is
    /// computed from `keep_days` of `settings.yml`. Changes nothing.
    ///
    /// # Errors
    /// When the settings cannot be used.
    pub async fn find(host: &'h Host, cutoff: Option<Timestamp>) -> Result<Self, Failure> {
        let cutoff = match cutoff {
            Some(cutoff) => cutoff,
            None => keep_days_ago(host)?,
        };
        let backends = registry::all(host);
        let mut found = prune::find(host, cutoff);
        let images = unused(&backends, &mut found.errors).await;
        Ok(Self { host, backends, found, images })
    }

    /// Whether there is nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.found.records.is_empty() && self.images.is_empty()
    }

    /// Removes all records and images that were found. Continues after a failure, and returns every failure.
    pub async fn remove(&self) -> Vec<String> {
        let removed = self.found.records.iter().filter_map(|record| {
            let error = prune::remove(self.host, record).err()?;
            Some(format!("cannot remove {}: {error}", record.path.display()))
        });
        let mut failures: Vec<String> = removed.collect();
        for backend in &self.backends {
            let own = self.images.iter().filter(|(name, _)| *name == backend.name());
            let own: Vec<Unused> = own.map(|(_, unused)| unused.clone()).collect();
            if !own.is_empty()
                && let Err(error) = backend.remove_unused(own).await
            {
                failures.push(format!("{}: {}", backend.name(), causes::one_line(&error)));
            }
        }
        failures
    }

    /// Returns the output document of a prune with these errors. With `dry_run`, the document describes a prune that
    /// removed nothing.
    pub fn document(&self, dry_run: bool, errors: Vec<String>) -> PruneReport {
        let record = |record: &OldRecord| PrunedRecord {
            kind: match record.kind {
                Kind::Bottle => "bottle",
                Kind::Conversations => "conversations",
                Kind::Proposal => "proposal",
                Kind::AuditLog => "audit-log",
                Kind::CrashLog => "crash-log",
            },
            slug: record.slug.as_ref().map(ToString::to_string),
            path: record.path.display().to_string(),
            bytes: record.bytes,
        };
        PruneReport {
            dry_run,
            records: self.found.records.iter().map(record).collect(),
            unused: self.images.iter().map(|(_, unused)| unused.clone()).collect(),
            existing: self.found.existing.iter().map(ToString::to_string).collect(),
            errors,
        }
    }
}

/// The time before which records are old, according to the settings.
fn keep_days_ago(host: &Host) -> Result<Timestamp, Failure> {
    Settings::load(host)?.keep_since().map_err(|error| Failure::cannot("compute the age of records", error))
}

async fn unused(backends: &[Box<dyn Backend>], errors: &mut Vec<String>) -> Vec<Image> {
    let mut images = Vec::new();
    for backend in backends {
        match backend.unused().await {
            Ok(unused) => images.extend(unused.into_iter().map(|one| (backend.name(), one))),
            // A backend that cannot be used on this machine has nothing to remove.
            Err(error) if error.kind == BackendErrorKind::Unavailable => {}
            Err(error) => errors.push(format!("{}: {}", backend.name(), causes::one_line(&error))),
        }
    }
    images
}
