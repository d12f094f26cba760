//! `bottle discard`: deletes a kept bottle.

use bottle_host::Host;
use bottle_instance::{State, cleanup};
use bottle_lib::discard::{discardable, incomplete, is_discardable};
use bottle_lib::record::backend_of;
use bottle_lib::report::Discarded;
use bottle_policy::names::Slug;

use super::candidates;
use super::select_bottle::{Question, finish_all, names, print_results};
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// Delete a kept bottle and its workspace, but keep its snapshot
#[derive(Debug, clap::Args)]
pub(crate) struct Discard {
    /// The bottles, as `bottle list` shows them; asks when omitted
    #[arg(value_name = "SLUG", add = candidates::kept())]
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
    suits: |state| matches!(state, State::Kept(record) if is_discardable(record)),
    none: "no bottle is kept",
    hint: "`bottle list` shows all bottles",
};

impl Discard {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slugs = BOTTLE_QUESTION.select_all(self.slugs.clone(), host, output)?;
        // Checks every bottle before deleting the first one.
        for slug in &slugs {
            let record = block_on(async { Ok(discardable(host, slug, self.forget).await?) })
                .map_err(|error| error.about(slug))?;
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
        let record = block_on(async { Ok(discardable(host, slug, self.forget).await?) })
            .map_err(|error| error.about(slug))?;
        let backend = backend_of(host, &record)?;
        let words = format!("deleting {slug}");
        let left = format!("parts of it remain; `bottle discard {slug}` continues");
        let discarding = async |_| {
            let discarded = if self.forget {
                cleanup::forget(host, &*backend, &record).await.map(|()| false)
            } else {
                cleanup::discard(host, &*backend, &record).await
            };
            discarded.map_err(|error| incomplete(host, slug, error).into())
        };
        let snapshot = block_on(progress::with_progress(&words, &left, output, discarding))?;
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
