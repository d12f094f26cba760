//! `bottle discard`: deletes a preserved bottle.

use bottle_contract::names::Slug;

use super::commit::backend_of;
use super::completions;
use super::error::{CliError, require_answer};
use super::exit;
use super::json_schema::Discarded;
use super::output::Output;
use super::progress;
use super::resume::preserved;
use super::select_bottle::Question;
use super::terminal::{self, TerminalUser};
use crate::backend::{BackendError, BackendErrorKind};
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::{State, Store, cleanup};

/// Delete a preserved bottle and its workspace, but keep its snapshot
#[derive(Debug, clap::Args)]
pub(crate) struct Discard {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = completions::preserved())]
    slug: Option<Slug>,
    /// Give the bottle up without its engine, which does not exist any more
    #[arg(long)]
    forget: bool,
    /// Delete without asking
    #[arg(short, long)]
    yes: bool,
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Discard which bottle?",
    suits: |state| matches!(state, State::Preserved(record) if record.kept),
    none: "no bottle is preserved",
    hint: "`bottle list` shows all bottles",
};

impl Discard {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slug = BOTTLE_QUESTION.select(self.slug.clone(), host, output)?;
        let record =
            super::block_on(discardable(host, &slug, self.forget)).map_err(|error| error.about(&slug))?;
        let backend = backend_of(host, &record)?;
        if !self.yes && !confirmed(&slug, output)? {
            output.note("nothing was deleted");
            return Ok(exit::DONE);
        }
        let words = format!("deleting {slug}");
        let left = format!("parts of it remain; `bottle discard {slug}` continues");
        let discarding = async |_| {
            let discarded = if self.forget {
                cleanup::forget(host, &*backend, &record).await.map(|()| false)
            } else {
                cleanup::discard(host, &*backend, &record).await
            };
            discarded.map_err(|error| incomplete(host, &slug, error))
        };
        let snapshot = super::block_on(progress::with_progress(&words, &left, output, discarding))?;
        let rest = if snapshot {
            format!("; `bottle resume {slug}` starts from its snapshot")
        } else {
            String::new()
        };
        let done =
            if self.forget { "is forgotten; what its engine has was not removed" } else { "was deleted" };
        output.note(format!("{slug} {done}{rest}"));
        output.json_or(&Discarded { slug: slug.to_string(), snapshot }, || Ok(()))?;
        Ok(exit::DONE)
    }
}

/// Deletes a preserved bottle without asking. Returns whether its snapshot remains.
pub(super) async fn discard(host: &Host, slug: &Slug) -> Result<bool, CliError> {
    let record = discardable(host, slug, false).await.map_err(|error| error.about(slug))?;
    let backend = backend_of(host, &record)?;
    cleanup::discard(host, &*backend, &record).await.map_err(|error| incomplete(host, slug, error))
}

/// The error if parts of a bottle remain.
fn incomplete(host: &Host, slug: &Slug, error: anyhow::Error) -> CliError {
    let error = match error.downcast::<BackendError>() {
        Ok(error) if error.kind == BackendErrorKind::Unavailable => {
            return CliError::from(error).about(slug);
        }
        Ok(error) => error.into(),
        Err(error) => error,
    };
    CliError::failed(format!("cannot delete all of {slug}: {error:#}"))
        .about(slug)
        .hint(next_step(host, slug))
}

/// Returns the record of a bottle with preserved files, or an error whose hint names the next step.
/// With `forget`, the bottle may also have ended without being preserved.
async fn discardable(host: &Host, slug: &Slug, forget: bool) -> Result<Record, CliError> {
    if forget && let Some(State::Dead(record) | State::Preserved(record)) = Store::of(host).state(slug) {
        return Ok(*record);
    }
    if let Some(State::Alive(_)) = Store::of(host).state(slug) {
        let hint = format!("`bottle stop {slug}` stops it");
        return Err(CliError::state(format!("{slug} is still running")).hint(hint));
    }
    let record = preserved(host, slug).await?;
    if record.kept {
        return Ok(record);
    }
    Err(CliError::state(format!("nothing of {slug} is preserved except its snapshot"))
        .hint(format!("`bottle snapshots rm {slug}` removes it")))
}

/// Returns the command that finishes a failed deletion. `bottle discard` finds only files that the record
/// marks as preserved; `bottle cleanup` finds the others.
fn next_step(host: &Host, slug: &Slug) -> String {
    match Store::of(host).state(slug) {
        Some(State::Preserved(record)) if record.kept => {
            format!("`bottle discard {slug}` continues")
        }
        _ => "`bottle cleanup` continues".to_owned(),
    }
}

fn confirmed(slug: &Slug, output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to delete it: there is no terminal")
            .about("--yes")
            .hint(format!(
                "`bottle resume {slug}` starts it again; `bottle discard {slug} --yes` deletes it"
            )));
    }
    let question = format!("Delete {slug} and all work in it that was not pulled or pushed?");
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was deleted")
}
