//! Saves a snapshot of a bottle, and shows the progress.

use std::time::Instant;

use bottle_backend::{Copied, ProgressSink};
use bottle_host::Host;
use bottle_instance::snapshots::CommitOptions;
use bottle_keeper::protocol::Committed;
use bottle_lib::fork_point::{ForkPoint, Found};
use bottle_lib::save_snapshot::Saving;
use bottle_policy::names::Slug;
use indicatif::HumanBytes;

use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::progress;

/// The text that the progress display shows while a snapshot is saved.
const SAVING: &str = "saving a snapshot";

/// Creates a snapshot of a bottle that runs or is kept.
///
/// # Errors
/// Returns an error if the bottle has no files, or if the snapshot cannot be created.
pub(super) async fn save(
    host: &Host,
    slug: &Slug,
    options: CommitOptions,
    output: &Output,
) -> Result<Committed, CliError> {
    let saving = Saving::begin(host, slug, options, &|notice| output.notice(notice)).await?;
    show(saving, output).await
}

/// Returns the snapshot from which a command copies. If the snapshot does not exist yet, saves it first.
///
/// # Errors
/// Returns an error if the snapshot cannot be saved.
pub(super) async fn fork_point(found: Found, output: &Output) -> Result<ForkPoint, CliError> {
    match found {
        Found::Snapshot(point) => Ok(point),
        Found::Unsaved(unsaved) => {
            let (saving, saved) = unsaved.split();
            show(saving, output).await.map(saved)
        }
    }
}

async fn show(saving: Saving, output: &Output) -> Result<Committed, CliError> {
    let words = match saving.pauses {
        true => "saving a snapshot; the bottle's programs pause until it is complete",
        false => SAVING,
    };
    let left = match saving.is_running {
        true => "the snapshot is still being saved; `bottle snapshots` shows it once it is complete",
        false => "no snapshot was saved; `bottle cleanup` removes the partial copy",
    };
    progress::with_progress(words, left, output, async |progress| {
        let begun = Instant::now();
        let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
        saving.run(sink).await.map_err(CliError::from)
    })
    .await
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let Copied { files, bytes } = copied;
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{SAVING}: {files} files read, {} copied, {}/s", HumanBytes(bytes), HumanBytes(rate))
}
