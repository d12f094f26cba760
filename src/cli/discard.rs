//! `bottle discard`: deletes a preserved bottle.

use bottle_contract::names::Slug;

use super::commit::backend_of;
use super::completions;
use super::error::{CliError, Kind, answered};
use super::exit;
use super::json_schema::Discarded;
use super::output::Output;
use super::progress;
use super::resume::preserved;
use super::select_bottle::Question;
use super::terminal::{self, TerminalUser};
use crate::host::Host;
use crate::instance::record::Record;
use crate::instance::{State, Store, cleanup};

/// Delete a preserved bottle with its workspace; its snapshot stays
#[derive(Debug, clap::Args)]
pub(crate) struct Discard {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = completions::kept())]
    slug: Option<Slug>,
    /// Delete without asking
    #[arg(short, long)]
    yes: bool,
}

const WHICH: Question = Question {
    words: "Throw away which bottle?",
    able: |state| matches!(state, State::Preserved(record) if record.kept),
    none: "no bottle was kept",
    hint: "`bottle list` shows those there are",
};

impl Discard {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slug = WHICH.answer(self.slug.clone(), host, output)?;
        let record = super::block_on(kept(host, &slug)).map_err(|error| error.about(&slug))?;
        let backend = backend_of(host, &record)?;
        if !self.yes && !confirmed(&slug, output)? {
            output.note("nothing was thrown away");
            return Ok(exit::DONE);
        }
        let words = format!("throwing away {slug}");
        let left = format!("not all of it is gone; `bottle discard {slug}` goes on");
        let discarding = async |_| {
            let discarded = cleanup::discard(host, &*backend, &record).await;
            discarded.map_err(|error| {
                CliError::failed(format!("not all of {slug} could be thrown away: {error:#}"))
                    .about(&slug)
                    .hint(next_step(host, &slug))
            })
        };
        let snapshot = super::block_on(progress::shown(&words, &left, output, discarding))?;
        if output.json {
            output.print_json(&Discarded { slug: slug.to_string(), snapshot })?;
        } else if snapshot {
            output.note(format!("{slug} was thrown away; `bottle resume {slug}` goes on from its snapshot"));
        } else {
            output.note(format!("{slug} was thrown away"));
        }
        Ok(exit::DONE)
    }
}

/// Returns the record of a bottle with preserved files, or an error with the next step.
async fn kept(host: &Host, slug: &Slug) -> Result<Record, CliError> {
    if let Some(State::Alive(_)) = Store::of(host).state(slug) {
        let hint = format!("`bottle stop {slug}` ends it");
        return Err(CliError::new(Kind::State, format!("{slug} still runs")).hint(hint));
    }
    let record = preserved(host, slug).await?;
    if record.kept {
        return Ok(record);
    }
    Err(CliError::new(Kind::State, format!("nothing was kept of {slug} but its snapshot"))
        .hint(format!("`bottle snapshots rm {slug}` removes that")))
}

/// Returns the command that continues after a failure. Only cleanup knows files that are no longer marked as
/// preserved.
fn next_step(host: &Host, slug: &Slug) -> String {
    match Store::of(host).state(slug) {
        Some(State::Preserved(record)) if record.kept => {
            format!("`bottle discard {slug}` goes on where it ended")
        }
        _ => "`bottle cleanup` goes on where it ended".to_owned(),
    }
}

fn confirmed(slug: &Slug, output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("there is nobody to ask whether to throw it away").about("--yes").hint(
            format!("`bottle resume {slug}` goes on with it; `bottle discard {slug} --yes` throws it away"),
        ));
    }
    let question = format!("Throw away {slug}, with what was neither pulled nor pushed?");
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    answered(asked, "nothing was thrown away")
}
