//! `bottle stop`: ends a bottle.

use std::sync::Arc;
use std::time::Duration;

use bottle_host::Host;
use bottle_keeper::protocol::Ended;
use bottle_lib::bottles::is_running;
use bottle_lib::failure::Failure;
use bottle_lib::report::Stopped;
use bottle_lib::stop::stop;
use bottle_policy::names::Slug;

use super::candidates;
use super::ended::report_end;
use super::select_bottle::{Question, finish_all, names, print_results};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress::{self, Progress};
use crate::console::runtime::block_on;

/// Stop a bottle: end its agent, and keep its files if it has unsaved work
///
/// Unsaved work is every change in the workspace that you have neither pulled nor committed with `bottle commit`, except
/// build output that your own ignore rules ignore. A conversation is kept too.
/// Several bottles end at the same time.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// The bottles, as `bottle list` shows them; asks when omitted
    #[arg(value_name = "SLUG", add = candidates::running())]
    slugs: Vec<Slug>,
    /// Kill the agent after this many seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    time: u32,
}

const BOTTLE_QUESTION: Question = Question {
    prompt: "Stop which bottle?",
    suits: is_running,
    none: "no bottle is running",
    hint: "`bottle start` starts one",
};

impl Stop {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let grace = Duration::from_secs(u64::from(self.time));
        let slugs = BOTTLE_QUESTION.select_all(self.slugs, host, output)?;
        let words = match &slugs[..] {
            [slug] => format!("stopping {slug}; its agent has {} s to end", self.time),
            several => format!("stopping {}; each agent has {} s to end", names(several), self.time),
        };
        let left = "still ending; `bottle list` shows the state";
        let stopping = async |progress: Arc<Progress>| {
            let each = slugs
                .iter()
                .map(async |slug| (slug, stop(host, slug, grace, |text| progress.phase(text)).await));
            Ok(futures_util::future::join_all(each).await)
        };
        let results = block_on(progress::with_progress(&words, left, output, stopping))?;
        report(results, output)
    }
}

/// Reports how each bottle ended. If one bottle could not be stopped, the results of the others are still reported.
fn report(results: Vec<(&Slug, Result<Ended, Failure>)>, output: &Output) -> Result<u8, CliError> {
    let is_one = results.len() == 1;
    let (mut stopped, mut errors, mut code) = (Vec::new(), Vec::new(), exit::DONE);
    for (slug, result) in results {
        match result {
            Ok(ended) => {
                if !output.json {
                    report_end(slug, &ended, output);
                }
                code = if ended.left.is_empty() { code } else { exit::FAILED };
                stopped.push(Stopped::of(slug, &ended));
            }
            Err(error) => errors.push(error.about_if_unset(slug).into()),
        }
    }
    if output.json {
        print_results(&stopped, is_one, output)?;
    }
    finish_all(errors, output)?;
    Ok(code)
}
