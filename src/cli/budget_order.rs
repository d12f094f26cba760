//! `bottle budget stop` and `bottle budget continue`: order what a budget that is spent would cause.

use bottle_contract::names::Slug;

use super::attach;
use super::connect::{connect, keeper_lost, unexpected_answer};
use super::error::{CliError, require_answer};
use super::exit;
use super::output::Output;
use super::progress;
use super::supervise::user;
use super::terminal::{self, TerminalUser};
use crate::host::Host;
use crate::host::budget::Policy;
use crate::keeper::protocol::{BudgetOrder, Ended, KeeperEvent, KeeperRequest};

/// Stops the requests to models of a bottle, or the bottle.
pub(super) fn stop(
    host: &Host,
    output: &Output,
    slug: &Slug,
    policy: Policy,
    yes: bool,
) -> Result<u8, CliError> {
    if policy == Policy::Kill && !yes && !confirmed(slug, output)? {
        output.note("nothing was stopped");
        return Ok(exit::DONE);
    }
    let order = BudgetOrder::Stop(policy);
    if let Policy::Freeze | Policy::Kill = policy {
        let words = if policy == Policy::Freeze { "freezing" } else { "killing" };
        let left = "it is still ending; `bottle list` shows its state";
        let ending = async |_| end(host, slug, order).await;
        let ended =
            super::block_on(progress::with_progress(&format!("{words} {slug}"), left, output, ending))?;
        attach::report_end(slug, &ended, output);
        return Ok(if ended.left.is_empty() { exit::DONE } else { exit::FAILED });
    }
    super::block_on(send(host, slug, order))?;
    output.note(match policy {
        Policy::Cutoff => format!("{slug} runs on, and its requests to models are denied"),
        _ => format!("{slug} is paused"),
    });
    output.note(format!("`bottle budget continue {slug}` lets it go on"));
    Ok(exit::DONE)
}

/// Lets a bottle go on.
pub(super) fn resume(host: &Host, output: &Output, slug: &Slug) -> Result<u8, CliError> {
    super::block_on(send(host, slug, BudgetOrder::Continue))?;
    output.note(format!("{slug} goes on, as far as its budgets allow"));
    Ok(exit::DONE)
}

/// Sends an order that leaves the bottle running.
pub(super) async fn send(host: &Host, slug: &Slug, order: BudgetOrder) -> Result<(), CliError> {
    let channel = connect(host, slug).await?;
    let mut stream = channel.open(&KeeperRequest::Budget { order, by: user() }).await.map_err(keeper_lost)?;
    match stream.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
        KeeperEvent::Done => Ok(()),
        KeeperEvent::Refused(why) => Err(CliError::state(why).about(slug)),
        _ => Err(unexpected_answer().about(slug)),
    }
}

/// Sends an order that ends the bottle, and waits for the end. A snapshot can take long, so this has no deadline.
pub(super) async fn end(host: &Host, slug: &Slug, order: BudgetOrder) -> Result<Ended, CliError> {
    let channel = connect(host, slug).await?;
    let mut notices = channel.open(&KeeperRequest::Notices).await.map_err(keeper_lost)?;
    send(host, slug, order).await?;
    loop {
        match notices.receive::<KeeperEvent>().await.map_err(keeper_lost)? {
            KeeperEvent::Ended(ended) => return Ok(ended),
            KeeperEvent::Notice(_) => {}
            _ => return Err(unexpected_answer().about(slug)),
        }
    }
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
