//! `bottle prune`: removes old records of bottles that no longer exist, and unused images.

use std::fmt::Write as _;

use bottle_backend::Unused;
use bottle_host::Host;
use bottle_instance::prune::{Kind, OldRecord};
use bottle_lib::prune::{Image, Unneeded};
use bottle_policy::names::Slug;
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

impl Prune {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(self.prune(host, output))
    }

    async fn prune(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let search = async |_| Ok(Unneeded::find(host, self.older_than).await?);
        let left = "nothing was removed";
        let old = progress::with_progress("searching for old records", left, output, search).await?;
        let mut errors = old.found.errors.clone();
        if !old.is_empty() && !self.dry_run {
            if !self.yes && !confirmed(&old, output)? {
                output.note("nothing was removed");
                return Ok(exit::DONE);
            }
            errors.extend(old.remove().await);
        }
        self.report(&old, errors, output)
    }

    fn report(&self, old: &Unneeded<'_>, errors: Vec<String>, output: &Output) -> Result<u8, CliError> {
        let code = if errors.is_empty() { exit::DONE } else { exit::FAILED };
        if output.json {
            output.print_json(&old.document(self.dry_run, errors))?;
            return Ok(code);
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        let text = lines(&old.found.records, &old.images, verb);
        if text.is_empty() {
            output.note("nothing to prune");
        } else {
            output.print(&inert(&text))?;
        }
        if !old.found.existing.is_empty() {
            output.note(format!(
                "left: the records of {}, which run or are kept (`bottle list`)",
                names(&old.found.existing)
            ));
        }
        output.note("left: kept files (`bottle discard`), snapshots (`bottle snapshots rm`), leftovers (`bottle cleanup`)");
        errors.iter().for_each(|error| output.warn(error));
        Ok(code)
    }
}

fn confirmed(old: &Unneeded<'_>, output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to remove it: there is no terminal")
            .about("--yes")
            .hint("`bottle prune --dry-run` shows what would be removed; `--yes` removes it"));
    }
    output.write_error_lines(&inert(&lines(&old.found.records, &old.images, "would be removed")));
    let asked = TerminalUser::find().and_then(|mut user| user.confirm("Remove this?"));
    require_answer(asked, "nothing was removed")
}

/// Returns one line for each kind of record, with the disk space that its removal frees, and one line for each image.
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
