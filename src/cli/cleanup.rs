//! `bottle cleanup`: removes leftovers of bottles that are not running any more.

use std::fmt::Write as _;
use std::sync::Arc;

use bottle_backend::{Snapshot, Unused};
use bottle_host::Host;
use bottle_instance::cleanup::{Found, Keeps, Orphan, Unrecorded};
use bottle_lib::cleanup::{Leftovers, Progress};
use bottle_policy::names::Slug;
use indicatif::HumanBytes;

use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::{Output, counted, inert};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// Remove leftovers of ended bottles, but keep their work
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
        let find = async |_| Ok(Leftovers::find(host, self.all).await?);
        let mut leftovers =
            progress::with_progress("searching for leftovers", "nothing was removed", output, find).await?;
        let mut failures = Vec::new();
        if !leftovers.is_empty() && !self.dry_run {
            if !self.yes && !confirmed(&leftovers, output)? {
                output.note("nothing was removed");
                return Ok(exit::DONE);
            }
            let left = "not everything was removed; `bottle cleanup` continues";
            let remove = async |progress: Arc<progress::Progress>| {
                Ok(leftovers.remove(&|doing| show(doing, &progress)).await?)
            };
            failures = progress::with_progress("removing", left, output, remove).await?;
        }
        failures.extend(leftovers.found.errors.iter().cloned());
        report(&leftovers, &failures, self.dry_run, output)
    }
}

fn show(doing: Progress<'_>, progress: &progress::Progress) {
    match doing {
        Progress::Stopping([]) => {}
        Progress::Stopping([first]) => progress.set_text(&format!("stopping {first}")),
        Progress::Stopping([first, more @ ..]) => {
            progress.set_text(&format!("stopping {first} and {} more", more.len()));
        }
        Progress::Delayed(text) => progress.phase(text),
        Progress::Removing => progress.set_text("removing"),
    }
}

fn confirmed(leftovers: &Leftovers<'_>, output: &Output) -> Result<bool, CliError> {
    let lines = lines(&leftovers.found, &leftovers.running, "would be");
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
    leftovers: &Leftovers<'_>,
    failures: &[String],
    dry_run: bool,
    output: &Output,
) -> Result<u8, CliError> {
    if output.json {
        output.print_json(&leftovers.document(failures, dry_run))?;
    } else {
        let found = &leftovers.found;
        let verb = if dry_run { "would be" } else { "was" };
        let text = lines(found, &leftovers.running, verb);
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
            Keeps::Work => "stopped, its work kept",
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
        let shown = serde_json::to_value(&found.unused[0].1).expect("JSON");
        let expected = serde_json::json!({"kind": "image", "id": "sha256:0a", "why": "a build left it", "bytes": 277 << 20});
        assert_eq!(shown, expected);
    }
}
