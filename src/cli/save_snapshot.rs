//! Saves a snapshot of a bottle, and shows the progress.

use std::time::Instant;

use bottle_contract::names::Slug;
use indicatif::HumanBytes;

use super::connect::{connect, keeper_lost, unavailable, unexpected_answer};
use super::error::{CliError, Kind};
use super::exit;
use super::output::{Output, one_line};
use super::progress;
use crate::backend::{Backend, Copied, ProgressSink};
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::snapshots::{self, CommitOptions};
use crate::instance::{State, Store, engines};
use crate::keeper::protocol::{Committed, KeeperEvent, KeeperRequest};
use crate::library::record::{backend_of, claim_failed};
use crate::library::snapshots::freeze_failed;

/// The progress of a commit.
const SAVING: &str = "saving a snapshot";

/// Creates a snapshot of a bottle that runs or is preserved.
///
/// # Errors
/// When the bottle has no files, or the snapshot cannot be created.
pub(super) async fn save(
    host: &Host,
    slug: &Slug,
    options: CommitOptions,
    output: &Output,
) -> Result<Committed, CliError> {
    match Store::of(host).state(slug) {
        Some(State::Preserved(record)) => commit_kept(host, slug, &record, options, output).await,
        Some(State::Alive(record) | State::Dead(record)) => {
            commit_running(host, slug, &record, options, output).await
        }
        _ => Err(unavailable(host, slug).await),
    }
}

async fn commit_running(
    host: &Host,
    slug: &Slug,
    record: &Record,
    options: CommitOptions,
    output: &Output,
) -> Result<Committed, CliError> {
    let channel = connect(host, slug).await?;
    let backend = backend_of(host, record)?;
    warn_omissions(&*backend, record, output).await;
    let words = match backend.capabilities().commit_pauses {
        true => "saving a snapshot; the bottle's programs pause until it is complete",
        false => SAVING,
    };
    let left = "the snapshot is still being saved; `bottle snapshots` shows it once it is complete";
    progress::with_progress(words, left, output, async |progress| {
        let request = match options {
            CommitOptions { name: None, .. } => KeeperRequest::Commit,
            named => KeeperRequest::CommitAs(named),
        };
        let mut stream = channel.open(&request).await.map_err(keeper_lost)?;
        let begun = Instant::now();
        loop {
            match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
                KeeperEvent::Copied(copied) => progress.set_text(&progress_text(copied, begun)),
                KeeperEvent::Committed(committed) => return Ok(committed),
                KeeperEvent::Failed(failure) => {
                    let exit = exit::of_launch(failure.kind);
                    return Err(CliError::from_launch(Kind::Failed, failure).exit(exit));
                }
                KeeperEvent::Refused(why) => return Err(CliError::state(why)),
                _ => return Err(unexpected_answer()),
            }
        }
    })
    .await
}

/// Commits a preserved bottle. It has no keeper, so this command claims the bottle during the commit.
async fn commit_kept(
    host: &Host,
    slug: &Slug,
    record: &Record,
    options: CommitOptions,
    output: &Output,
) -> Result<Committed, CliError> {
    if record.has_only_conversation() {
        return Err(CliError::state(format!("cannot commit {slug}: only its conversation is left"))
            .hint(format!("`bottle resume {slug}` makes its files anew and continues the conversation")));
    }
    if !record.kept {
        return Err(CliError::state(format!("cannot commit {slug}: only its snapshot is left"))
            .hint(format!("`bottle resume {slug}` starts from it")));
    }
    let backend = backend_of(host, record)?;
    let claim = Store::of(host).adopt_idle(slug).map_err(claim_failed)?;
    engines::require(&*backend, claim.directory(), record).await?;
    warn_omissions(&*backend, record, output).await;
    let left = "no snapshot was saved; `bottle cleanup` removes the partial copy";
    let commit = progress::with_progress(SAVING, left, output, async |progress| {
        let begun = Instant::now();
        let progress_sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
        snapshots::commit(&*backend, &claim, options, progress_sink)
            .await
            .map_err(|error| freeze_failed(error).into())
    });
    let commit = commit.await?;
    Ok(Committed { snapshot: commit.snapshot, notes: commit.notes })
}

async fn warn_omissions(backend: &dyn Backend, record: &Record, output: &Output) {
    if let Some(live) = record.live() {
        let path = one_line(&live.path.display().to_string());
        output.warn(format!("not in the snapshot: the files in {path} (`--cwd=live`)"));
    }
    match backend.snapshot_exclusions(&record.slug).await {
        Ok(left) => left.iter().for_each(|left| output.warn(format!("not in the snapshot: {left}"))),
        Err(error) => output.warn(format!("cannot list what the snapshot omits: {error}")),
    }
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let Copied { files, bytes } = copied;
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{SAVING}: {files} files read, {} copied, {}/s", HumanBytes(bytes), HumanBytes(rate))
}
