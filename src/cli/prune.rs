//! `bottle prune`: removes old records of bottles that do not exist any more, and unused images.

use std::fmt::Write as _;

use bottle_backend::{Backend, Unused, registry};
use bottle_contract::names::Slug;
use bottle_host::causes;
use bottle_host::{Host, Settings};
use bottle_instance::prune::{self, Kind, OldRecord, Prunable};
use bottle_lib::report::{PruneReport, PrunedRecord};
use indicatif::HumanBytes;
use jiff::Timestamp;

use super::select_bottle::names;
use super::since::since;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted, inert};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// Remove old conversations, answered proposals, audit logs and crash logs, and unused images
///
/// Records of a bottle that runs or is kept stay, and so do kept files and snapshots. A bottle of which only the
/// conversation is kept is removed with it. Old usage records are removed by `bottle cleanup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Prune {
    /// Remove records that were last changed before this time, day or age (`30d`); by default `keep_days` of
    /// settings.yml
    #[arg(long, value_name = "TIME|DAY|AGO", value_parser = since)]
    older_than: Option<Timestamp>,
    /// Remove without asking
    #[arg(short, long)]
    yes: bool,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// An unused image or volume, with the name of its backend.
type Image = (&'static str, Unused);

impl Prune {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(self.prune(host, output))
    }

    async fn prune(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let cutoff = match self.older_than {
            Some(cutoff) => cutoff,
            None => keep_days_ago(host)?,
        };
        let backends = registry::all(host);
        let search = async |_| {
            let mut found = prune::find(host, cutoff);
            let images = unused(&backends, &mut found.errors).await;
            Ok((found, images))
        };
        let left = "nothing was removed";
        let (found, images) =
            progress::with_progress("searching for old records", left, output, search).await?;
        let mut errors = found.errors.clone();
        let nothing = found.records.is_empty() && images.is_empty();
        if !nothing && !self.dry_run {
            if !self.yes && !confirmed(&found, &images, output)? {
                output.note("nothing was removed");
                return Ok(exit::DONE);
            }
            errors.extend(remove(host, &backends, &found.records, &images).await);
        }
        self.report(&found, &images, errors, output)
    }

    fn report(
        &self,
        found: &Prunable,
        images: &[Image],
        errors: Vec<String>,
        output: &Output,
    ) -> Result<u8, CliError> {
        let code = if errors.is_empty() { exit::DONE } else { exit::FAILED };
        if output.json {
            output.print_json(&to_report(self.dry_run, found, images, errors))?;
            return Ok(code);
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        let text = lines(&found.records, images, verb);
        if text.is_empty() {
            output.note("nothing to prune");
        } else {
            output.print(&inert(&text))?;
        }
        if !found.existing.is_empty() {
            output.note(format!(
                "left: the records of {}, which run or are kept (`bottle list`)",
                names(&found.existing)
            ));
        }
        output.note("left: kept files (`bottle discard`), snapshots (`bottle snapshots rm`), leftovers (`bottle cleanup`)");
        errors.iter().for_each(|error| output.warn(error));
        Ok(code)
    }
}

/// The time before which records are old, according to the settings.
fn keep_days_ago(host: &Host) -> Result<Timestamp, CliError> {
    Settings::load(host)?.keep_since().map_err(|error| CliError::cannot("compute the age of records", error))
}

async fn unused(backends: &[Box<dyn Backend>], errors: &mut Vec<String>) -> Vec<Image> {
    let mut images = Vec::new();
    for backend in backends {
        match backend.unused().await {
            Ok(unused) => images.extend(unused.into_iter().map(|one| (backend.name(), one))),
            // A backend that cannot be used here has nothing to remove.
            Err(error) if error.kind == bottle_backend::BackendErrorKind::Unavailable => {}
            Err(error) => errors.push(format!("{}: {}", backend.name(), causes::one_line(&error))),
        }
    }
    images
}

/// Removes everything that was found. Continues after a failure and returns every failure.
async fn remove(
    host: &Host,
    backends: &[Box<dyn Backend>],
    records: &[OldRecord],
    images: &[Image],
) -> Vec<String> {
    let mut failures: Vec<String> = records
        .iter()
        .filter_map(|record| {
            let error = prune::remove(host, record).err()?;
            Some(format!("cannot remove {}: {error}", record.path.display()))
        })
        .collect();
    for backend in backends {
        let own = images.iter().filter(|(name, _)| *name == backend.name());
        let own: Vec<Unused> = own.map(|(_, unused)| unused.clone()).collect();
        if !own.is_empty()
            && let Err(error) = backend.remove_unused(own).await
        {
            failures.push(format!("{}: {}", backend.name(), causes::one_line(&error)));
        }
    }
    failures
}

fn confirmed(found: &Prunable, images: &[Image], output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to remove it: there is no terminal")
            .about("--yes")
            .hint("`bottle prune --dry-run` shows what would be removed; `--yes` removes it"));
    }
    output.write_error_lines(&inert(&lines(&found.records, images, "would be removed")));
    let asked = TerminalUser::find().and_then(|mut user| user.confirm("Remove this?"));
    require_answer(asked, "nothing was removed")
}

/// One line for each kind of record with the space that it frees, and one for each image.
fn lines(records: &[OldRecord], images: &[Image], verb: &str) -> String {
    let mut text = String::new();
    for kind in [Kind::Bottle, Kind::Conversations, Kind::Proposal, Kind::AuditLog, Kind::CrashLog] {
        let of_kind: Vec<&OldRecord> = records.iter().filter(|record| record.kind == kind).collect();
        if of_kind.is_empty() {
            continue;
        }
        let bytes = HumanBytes(of_kind.iter().map(|record| record.bytes).sum());
        let mut slugs: Vec<Slug> = of_kind.iter().filter_map(|record| record.slug.clone()).collect();
        slugs.dedup();
        let of = if slugs.is_empty() { String::new() } else { format!(" of {}", shortened(&slugs)) };
        let _ = writeln!(text, "{}{of} {verb}: frees {bytes}", noun(kind, of_kind.len()));
    }
    for (backend, Unused { kind, id, why, bytes }) in images {
        let frees = bytes.map(|bytes| format!(", frees up to {}", HumanBytes(bytes))).unwrap_or_default();
        let _ = writeln!(text, "the {kind} {id} {verb}: {why} ({backend}{frees})");
    }
    text
}

/// Names the first bottles and counts the others.
fn shortened(slugs: &[Slug]) -> String {
    const SHOWN: usize = 5;
    match slugs.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        None => names(slugs),
        Some(more) => {
            let shown: Vec<&str> = slugs.iter().take(SHOWN).map(Slug::as_str).collect();
            format!("{} and {}", shown.join(", "), counted(more, "other bottle"))
        }
    }
}

fn noun(kind: Kind, count: usize) -> String {
    match kind {
        Kind::Bottle => counted(count, "kept conversation"),
        Kind::Conversations => counted(count, "directory") + " with conversations",
        Kind::Proposal => counted(count, "file") + " of answered proposals",
        Kind::AuditLog => counted(count, "file") + " of audit logs",
        Kind::CrashLog => counted(count, "crash log"),
    }
}

fn to_report(dry_run: bool, found: &Prunable, images: &[Image], errors: Vec<String>) -> PruneReport {
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
        records: found.records.iter().map(record).collect(),
        unused: images.iter().map(|(_, unused)| unused.clone()).collect(),
        existing: found.existing.iter().map(ToString::to_string).collect(),
        errors,
    }
}
