//! `bottle cleanup`: removes leftovers of bottles that no longer run.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bottle_backend::{Snapshot, Unused, registry};
use bottle_contract::names::Slug;
use bottle_host::Host;
use bottle_host::causes;
use bottle_instance::cleanup::{self, Found, Keeps, Orphan, Unrecorded};
use bottle_instance::record::DeployKey;
use bottle_instance::{State, Store};
use bottle_keeper::ledger::Ledger;
use bottle_lib::bottles::is_running;
use bottle_lib::report::{CleanupReport, Leftover};
use bottle_lib::stop::stop;
use indicatif::HumanBytes;

use super::connect::unlistable;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted, inert};
use crate::console::progress::{self, Progress};
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// How long each agent may take to end when `--all` stops every bottle. After that, it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Remove leftovers of ended bottles, but keep preserved work
#[derive(Debug, clap::Args)]
pub(crate) struct Cleanup {
    /// Remove without asking
    #[arg(short, long)]
    yes: bool,
    /// Stop and remove running bottles too
    #[arg(long)]
    all: bool,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

impl Cleanup {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(self.clean(host, output))
    }

    async fn clean(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let backends = registry::all(host);
        let find = async |_| cleanup::find(host, &backends).await.map_err(unlistable);
        let mut found =
            progress::with_progress("searching for leftovers", "nothing was removed", output, find).await?;
        let running = if self.all { running(host)? } else { Vec::new() };
        let nothing = found.is_empty() && running.is_empty();
        let mut failures = Vec::new();
        if !nothing && !self.dry_run {
            if !self.yes && !confirmed(&found, &running, output)? {
                output.note("nothing was removed");
                return Ok(exit::DONE);
            }
            let left = "not everything was removed; `bottle cleanup` continues";
            let remove = async |progress: Arc<Progress>| {
                let mut failures = end_all(host, &running, &progress).await;
                if !running.is_empty() {
                    // Searches again, because the bottles that were just stopped may have left resources.
                    found = cleanup::find(host, &backends).await.map_err(unlistable)?;
                }
                progress.set_text("removing");
                failures.extend(cleanup::remove(host, &backends, &mut found).await);
                failures.extend(remove_old_usage(host, &found));
                Ok(failures)
            };
            failures = progress::with_progress("removing", left, output, remove).await?;
        }
        failures.extend(found.errors.iter().cloned());
        report(&found, &running, &failures, self.dry_run, output)
    }
}

/// Removes old usage records. The ledger gets them before, so that budgets and reports still count them.
fn remove_old_usage(host: &Host, found: &Found) -> Vec<String> {
    if found.usage.is_empty() {
        return Vec::new();
    }
    match Ledger::open(&host.home).and_then(|mut ledger| ledger.ingest(&host.home)) {
        Ok(_) => cleanup::remove_old_usage(host, found),
        Err(error) => vec![format!("old usage records stay: {}; {}", causes::one_line(&error), error.hint())],
    }
}

/// Returns the slugs of running bottles, including detached bottles whose keeper has ended.
fn running(host: &Host) -> Result<Vec<Slug>, CliError> {
    let listed = Store::of(host).list().map_err(unlistable)?;
    Ok(listed.into_iter().filter(|listed| is_running(&listed.state)).map(|listed| listed.slug).collect())
}

/// Stops these bottles concurrently. A bottle whose keeper cannot be reached becomes an orphan, which the
/// next search finds.
async fn end_all(host: &Host, slugs: &[Slug], progress: &Progress) -> Vec<String> {
    if let Some(first) = slugs.first() {
        let more = if slugs.len() > 1 { format!(" and {} more", slugs.len() - 1) } else { String::new() };
        progress.set_text(&format!("stopping {first}{more}"));
    }
    let each = slugs.iter().map(async |slug| {
        let alive = matches!(Store::of(host).state(slug), Some(State::Alive(_)));
        match stop(host, slug, GRACE, |text| progress.phase(text)).await {
            Ok(_) => None,
            Err(error) => alive.then(|| format!("{slug}: {}", error.message)),
        }
    });
    futures_util::future::join_all(each).await.into_iter().flatten().collect()
}

fn confirmed(found: &Found, running: &[Slug], output: &Output) -> Result<bool, CliError> {
    let lines = lines(found, running, "would be");
    if !terminal::interactive() {
        return Err(CliError::usage("cannot ask whether to remove it: there is no terminal")
            .about("--yes")
            .hint("`bottle cleanup --dry-run` shows what would be removed; `--yes` removes it"));
    }
    output.write_error_lines(&inert(&lines));
    let asked = TerminalUser::find().and_then(|mut user| user.confirm("Remove this?"));
    require_answer(asked, "nothing was removed")
}

fn report(
    found: &Found,
    running: &[Slug],
    failures: &[String],
    dry_run: bool,
    output: &Output,
) -> Result<u8, CliError> {
    if output.json {
        output.print_json(&to_report(found, running, failures, dry_run))?;
    } else {
        let verb = if dry_run { "would be" } else { "was" };
        let text = lines(found, running, verb);
        if !text.is_empty() {
            output.print(&inert(&text))?;
        }
        for sentence in &found.left {
            output.note(format!("left alone: {sentence}"));
        }
        for failure in failures {
            output.warn(failure);
        }
        if text.is_empty() && failures.is_empty() {
            let nothing = if found.left.is_empty() { "nothing" } else { "nothing else" };
            output.note(format!("{nothing} to clean up"));
        }
    }
    Ok(if failures.is_empty() { exit::DONE } else { exit::FAILED })
}

fn lines(found: &Found, running: &[Slug], verb: &str) -> String {
    let mut text = String::new();
    for slug in running {
        let _ = writeln!(text, "{slug} {verb} stopped: it is running");
    }
    for orphan in &found.orphans {
        let what = match orphan.keeps {
            Keeps::Nothing => "removed",
            Keeps::Work => "stopped, its work preserved",
            Keeps::Snapshot => "removed, its snapshot kept",
        };
        let Orphan { slug, why, backend, resources, .. } = orphan;
        let resources = counted(resources.len(), "resource");
        let _ = writeln!(text, "{slug} {verb} {what}: it {why} ({backend}, {resources})");
        for key in &orphan.deploy_keys {
            let _ = writeln!(text, "the deploy key {} {verb} revoked", key.describe());
        }
    }
    for Unrecorded { backend, snapshot } in &found.snapshots {
        let Snapshot { slug, reference, .. } = snapshot;
        let _ = writeln!(
            text,
            "the snapshot {reference} of {slug} {verb} removed: no bottle refers to it ({backend})"
        );
    }
    for (backend, unused) in &found.unused {
        let Unused { kind, id, why, bytes } = unused;
        let size = bytes.map(|bytes| format!(", {}", HumanBytes(bytes))).unwrap_or_default();
        let _ = writeln!(text, "the {kind} {id} {verb} removed: {why} ({backend}{size})");
    }
    for path in found.litter.iter().chain(&found.temporary) {
        let _ = writeln!(text, "{} {verb} removed: it is unused", path.display());
    }
    for (slug, records) in &found.usage {
        let records = counted(*records, "record");
        let _ = writeln!(text, "{records} of {slug}'s usage {verb} removed: older than `keep_days`");
    }
    text
}

fn to_report(found: &Found, running: &[Slug], failures: &[String], dry_run: bool) -> CleanupReport {
    let leftover = |orphan: &Orphan| Leftover {
        slug: orphan.slug.to_string(),
        backend: orphan.backend.clone(),
        why: orphan.why.clone(),
        work_kept: orphan.keeps == Keeps::Work,
        deploy_keys: orphan.deploy_keys.iter().map(DeployKey::describe).collect(),
    };
    CleanupReport {
        dry_run,
        stopped: running.iter().map(ToString::to_string).collect(),
        removed: found.orphans.iter().map(leftover).collect(),
        snapshots: found.snapshots.iter().map(|unrecorded| unrecorded.snapshot.reference.clone()).collect(),
        unused: found.unused.iter().map(|(_, unused)| unused.clone()).collect(),
        files: found.litter.iter().chain(&found.temporary).map(|path| path.display().to_string()).collect(),
        usage: found.usage.iter().map(|(slug, _)| slug.to_string()).collect(),
        left: found.left.clone(),
        errors: failures.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_unused_resources_with_their_size() {
        let unused = |kind: &str, id: &str, why: &str, bytes| {
            ("docker", Unused { kind: kind.to_owned(), id: id.to_owned(), why: why.to_owned(), bytes })
        };
        let found = Found {
            unused: vec![
                unused("image", "sha256:0a", "a build left it", Some(277 << 20)),
                unused("volume", "bottle-program-1", "it holds the program of another version", None),
            ],
            ..Found::default()
        };
        assert!(!found.is_empty());
        insta::assert_snapshot!(lines(&found, &[], "would be"), @r"
        the image sha256:0a would be removed: a build left it (docker, 277.00 MiB)
        the volume bottle-program-1 would be removed: it holds the program of another version (docker)
        ");
        let shown = serde_json::to_value(&to_report(&found, &[], &[], true).unused[0]).expect("JSON");
        let expected = serde_json::json!({"kind": "image", "id": "sha256:0a", "why": "a build left it", "bytes": 277 << 20});
        assert_eq!(shown, expected);
    }
}
