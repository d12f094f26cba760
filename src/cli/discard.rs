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
use super::select_bottle::{Question, finish_all, names, print_results};
use super::terminal::{self, TerminalUser};
use crate::backend::{BackendError, BackendErrorKind};
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::{State, Store, cleanup};

/// Delete a preserved bottle and its workspace, but keep its snapshot
#[derive(Debug, clap::Args)]
pub(crate) struct Discard {
    /// The bottles, as `bottle list` shows them; asks when omitted
    #[arg(value_name = "SLUG", add = completions::preserved())]
    slugs: Vec<Slug>,
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
        let slugs = BOTTLE_QUESTION.select_all(self.slugs.clone(), host, output)?;
        // Checks every bottle before the first one is deleted.
        for slug in &slugs {
            let record =
                super::block_on(discardable(host, slug, self.forget)).map_err(|error| error.about(slug))?;
            backend_of(host, &record)?;
        }
        if !self.yes && !confirmed(&slugs, output)? {
            output.note("nothing was deleted");
            return Ok(exit::DONE);
        }
        let (mut discarded, mut errors) = (Vec::new(), Vec::new());
        for slug in &slugs {
            match self.discard_one(slug, host, output) {
                Ok(snapshot) => discarded.push(Discarded { slug: slug.to_string(), snapshot }),
                Err(error) => errors.push(error),
            }
        }
        if output.json {
            print_results(&discarded, slugs.len() == 1, output)?;
        }
        finish_all(errors, output)?;
        Ok(exit::DONE)
    }

    /// Deletes one bottle. Returns whether its snapshot remains.
    fn discard_one(&self, slug: &Slug, host: &Host, output: &Output) -> Result<bool, CliError> {
        let record =
            super::block_on(discardable(host, slug, self.forget)).map_err(|error| error.about(slug))?;
        let backend = backend_of(host, &record)?;
        let words = format!("deleting {slug}");
        let left = format!("parts of it remain; `bottle discard {slug}` continues");
        let discarding = async |_| {
            let discarded = if self.forget {
                cleanup::forget(host, &*backend, &record).await.map(|()| false)
            } else {
                cleanup::discard(host, &*backend, &record).await
            };
            discarded.map_err(|error| incomplete(host, slug, error))
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
        Ok(snapshot)
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
    if let Some(State::Dead(record)) = Store::of(host).state(slug)
        && record.has_only_logs()
    {
        let hint = "`bottle cleanup` removes it".to_owned();
        return Err(CliError::state(format!("{slug} ended, and only its output is left")).hint(hint));
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

fn confirmed(slugs: &[Slug], output: &Output) -> Result<bool, CliError> {
    let all = names(slugs);
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to delete it: there is no terminal")
            .about("--yes")
            .hint(hint_without_terminal(slugs)));
    }
    let them = if slugs.len() == 1 { "it" } else { "them" };
    let question = format!("Delete {all} and all work in {them} that was not pulled or pushed?");
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was deleted")
}

fn hint_without_terminal(slugs: &[Slug]) -> String {
    match slugs {
        [slug] => format!("`bottle resume {slug}` starts it again; `bottle discard {slug} --yes` deletes it"),
        several => {
            let typed: Vec<&str> = several.iter().map(Slug::as_str).collect();
            format!("`bottle discard {} --yes` deletes them", typed.join(" "))
        }
    }
}
