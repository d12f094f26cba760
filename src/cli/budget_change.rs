//! `bottle budget stop` and `bottle budget continue`: stop a bottle as if a budget were spent, and let it continue.

use bottle_host::Host;
use bottle_host::budget::OnSpent;
use bottle_keeper::protocol::BudgetChange;
use bottle_lib::budget::{end, send};
use bottle_policy::names::Slug;

use super::ended::report_end;
use crate::console::error::{CliError, require_answer};
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::terminal::{self, TerminalUser};

/// Stops a bottle's requests to models, or the whole bottle.
pub(super) fn stop(
    host: &Host,
    output: &Output,
    slug: &Slug,
    policy: OnSpent,
    yes: bool,
) -> Result<u8, CliError> {
    if policy == OnSpent::Kill && !yes && !confirmed(slug, output)? {
        output.note("nothing was stopped");
        return Ok(exit::DONE);
    }
    let order = BudgetChange::Stop(policy);
    if let OnSpent::Freeze | OnSpent::Kill = policy {
        let words = if policy == OnSpent::Freeze { "freezing" } else { "killing" };
        let left = "it is still ending; `bottle list` shows its state";
        let ending = async |_| Ok(end(host, slug, order).await?);
        let ended = block_on(progress::with_progress(&format!("{words} {slug}"), left, output, ending))?;
        report_end(slug, &ended, output);
        return Ok(if ended.left.is_empty() { exit::DONE } else { exit::FAILED });
    }
    block_on(async { Ok(send(host, slug, order).await?) })?;
    output.note(match policy {
        OnSpent::Cutoff => format!("{slug} runs on, and its requests to models are denied"),
        _ => format!("{slug} is paused"),
    });
    output.note(format!("`bottle budget continue {slug}` lets it go on"));
    Ok(exit::DONE)
}

/// Lets a bottle continue after [`stop`] paused it or cut off its requests to models.
pub(super) fn resume(host: &Host, output: &Output, slug: &Slug) -> Result<u8, CliError> {
    block_on(async { Ok(send(host, slug, BudgetChange::Continue).await?) })?;
    output.note(format!("{slug} goes on, as far as its budgets allow"));
    Ok(exit::DONE)
}

fn confirmed(slug: &Slug, output: &Output) -> Result<bool, CliError> {
    if !terminal::interactive() || output.json {
        return Err(CliError::usage("cannot ask whether to kill it: there is no terminal")
            .about("--yes")
            .hint(format!("`bottle budget stop {slug} --policy freeze` saves a snapshot")));
    }
    let question = format!("Kill {slug} and delete all work in it that was not pulled or pushed?");
    let asked = TerminalUser::find().and_then(|mut user| user.confirm(&question));
    require_answer(asked, "nothing was stopped")
}
