//! `bottle commit`: saves a snapshot of a bottle without stopping it.

use std::time::Instant;

use bottle_contract::names::{Name, Slug};
use indicatif::HumanBytes;

use super::completions;
use super::connect::{connect, keeper_lost, unavailable, unexpected_answer};
use super::error::{CliError, Kind};
use super::exit;
use super::json_schema;
use super::output::{Output, one_line};
use super::progress;
use super::select_bottle::{Question, finish_all, is_running, print_results};
use crate::backend::{Backend, Copied, ProgressSink, registry};
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::snapshots::{self, CommitOptions, SnapshotError};
use crate::instance::{ClaimError, State, Store, engines};
use crate::keeper::protocol::{Committed, KeeperEvent, KeeperRequest};

/// Save a snapshot of a bottle without stopping it, for a later `bottle resume`
///
/// When the new snapshot is complete, it replaces the bottle's previous one. With `--as`, it is added to the
/// bottle's snapshots. A snapshot contains the bottle's files, but not its environment and secrets, unless the
/// agent wrote one of them to a file.
#[derive(Debug, clap::Args)]
pub(crate) struct Commit {
    /// The bottles, as `bottle list` shows them; asks when omitted
    #[arg(value_name = "SLUG", add = completions::all_bottles())]
    slugs: Vec<Slug>,
    /// Name the snapshot. A named snapshot stays until `bottle snapshots rm` removes it
    #[arg(long = "as", value_name = "NAME")]
    name: Option<Name>,
}

impl Commit {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slugs = BOTTLE_QUESTION.select_all(self.slugs, host, output)?;
        let (mut documents, mut errors) = (Vec::new(), Vec::new());
        for slug in &slugs {
            let options = CommitOptions { name: self.name.clone(), removed_by: None };
            let committed = super::block_on(save(host, slug, options, output));
            match committed.map_err(|error| error.about(slug)) {
                Ok(committed) => {
                    let document = document(committed, exports(host, slug));
                    if !output.json {
                        report(&document, output)?;
                    }
                    documents.push(document);
                }
                Err(error) => errors.push(error),
            }
        }
        if output.json {
            print_results(&documents, slugs.len() == 1, output)?;
        }
        finish_all(errors, output)?;
        Ok(exit::DONE)
    }
}

/// Whether `bottle export` can move the bottle.
fn exports(host: &Host, slug: &Slug) -> bool {
    match Store::of(host).state(slug) {
        Some(State::Alive(record) | State::Dead(record) | State::Preserved(record)) => {
            let exports = |backend: Box<dyn Backend>| backend.capabilities().export;
            record.live().is_none() && registry::by_name(host, &record.backend).is_some_and(exports)
        }
        _ => false,
    }
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Make a snapshot of which bottle?",
    suits: |state| is_running(state) || matches!(state, State::Preserved(record) if record.kept),
    none: "no bottle is running or preserved",
    hint: "`bottle start` starts one",
};

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
                    let exit = failure.exit;
                    return Err(CliError::from_failure(Kind::Failed, failure).exit(exit));
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
    if !record.kept {
        return Err(CliError::state(format!("cannot commit {slug}: only its snapshot is left"))
            .hint(format!("`bottle resume {slug}` starts from it")));
    }
    let backend = backend_of(host, record)?;
    let claim = Store::of(host).adopt_idle(slug).map_err(claim_failed)?;
    engines::require(&*backend, claim.folder(), record).await?;
    warn_omissions(&*backend, record, output).await;
    let left = "no snapshot was saved; `bottle cleanup` removes the partial copy";
    let commit = progress::with_progress(SAVING, left, output, async |progress| {
        let begun = Instant::now();
        let progress_sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
        snapshots::commit(&*backend, &claim, options, progress_sink).await.map_err(freeze_failed)
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

fn document(committed: Committed, exports: bool) -> json_schema::Committed {
    let Committed { snapshot, notes } = committed;
    let slug = &snapshot.slug;
    let moved_by = exports.then(|| match &snapshot.name {
        Some(name) => format!("bottle export {slug}@{name} -o FILE"),
        None => format!("bottle export {slug} -o FILE"),
    });
    let resume = match &snapshot.name {
        Some(name) => format!("bottle resume {} --snapshot {name}", snapshot.slug),
        None => format!("bottle resume {}", snapshot.slug),
    };
    json_schema::Committed { snapshot, notes, resume, moved_by }
}

fn report(document: &json_schema::Committed, output: &Output) -> Result<(), CliError> {
    let json_schema::Committed { snapshot, notes, resume, moved_by } = document;
    output.print(&snapshot.reference)?;
    for note in notes {
        output.warn(note);
    }
    output.note(format!("`{resume}` starts from it"));
    if let Some(command) = moved_by {
        output.note(format!("`{command}` moves the bottle to another machine or backend"));
    }
    Ok(())
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let Copied { files, bytes } = copied;
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{SAVING}: {files} files read, {} copied, {}/s", HumanBytes(bytes), HumanBytes(rate))
}

/// Returns the backend that created a bottle.
pub(crate) fn backend_of(host: &Host, record: &Record) -> Result<Box<dyn Backend>, CliError> {
    registry::by_name(host, &record.backend).ok_or_else(|| {
        let message =
            format!("{} belongs to the backend {}, which is not available here", record.slug, record.backend);
        CliError::new(Kind::Backend, message).about(&record.slug)
    })
}

/// The error when another command has claimed the same bottle.
pub(crate) fn claim_failed(error: ClaimError) -> CliError {
    match error {
        ClaimError::Taken { .. } => CliError::from_error(Kind::State, &error).hint("try again in a moment"),
        ClaimError::File(_) => CliError::from_error(Kind::Failed, &error),
    }
}

/// The error when a snapshot cannot be created or removed.
pub(crate) fn freeze_failed(error: SnapshotError) -> CliError {
    match error {
        SnapshotError::Backend(error) => error.into(),
        SnapshotError::State(_) => CliError::from_error(Kind::Failed, &error),
        SnapshotError::Exists { .. } | SnapshotError::TooMany(_) => {
            CliError::from_error(Kind::State, &error).hint_if(error.hint())
        }
    }
}
