//! `bottle stop`: ends a bottle.

use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::Slug;

use super::completions;
use super::connect::{connect_to_stop, keeper_lost, unexpected_answer};
use super::error::CliError;
use super::exit;
use super::json_schema::Stopped;
use super::output::Output;
use super::progress::{self, Progress};
use super::select_bottle::{Question, finish_all, is_running, names, print_results};
use crate::host::Host;
use crate::keeper::protocol::{Ended, KeeperEvent, KeeperRequest, Notice};

/// How long the teardown may take after the agent's grace period, unless a snapshot is being saved. After that, `stop`
/// fails.
const TEARDOWN: Duration = Duration::from_secs(30);

/// Stop a bottle: end its agent, and keep its files if it has unsaved work
///
/// Unsaved work is every change in the workspace that you have neither pulled nor committed with `bottle commit`.
/// Several bottles end at the same time.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// The bottles, as `bottle list` shows them; asks when omitted
    #[arg(value_name = "SLUG", add = completions::running())]
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
            let each = slugs.iter().map(async |slug| (slug, stop(host, slug, grace, &progress).await));
            Ok(futures_util::future::join_all(each).await)
        };
        let results = super::block_on(progress::with_progress(&words, left, output, stopping))?;
        report(results, output)
    }
}

/// Reports how each bottle ended. One that could not be stopped does not hide the others.
fn report(results: Vec<(&Slug, Result<Ended, CliError>)>, output: &Output) -> Result<u8, CliError> {
    let is_one = results.len() == 1;
    let (mut stopped, mut errors, mut code) = (Vec::new(), Vec::new(), exit::DONE);
    for (slug, result) in results {
        match result {
            Ok(ended) => {
                if !output.json {
                    super::attach::report_end(slug, &ended, output);
                }
                code = if ended.left.is_empty() { code } else { exit::FAILED };
                stopped.push(Stopped::of(slug, &ended));
            }
            Err(error) => errors.push(error.about_if_unset(slug)),
        }
    }
    if output.json {
        print_results(&stopped, is_one, output)?;
    }
    finish_all(errors, output)?;
    Ok(code)
}

/// Requests the stop from the keeper, and waits until the bottle has ended. If the keeper reports that the bottle ends
/// only after a snapshot, which can take long, shows this and waits without a time limit.
pub(crate) async fn stop(
    host: &Host,
    slug: &Slug,
    grace: Duration,
    progress: &Progress,
) -> Result<Ended, CliError> {
    let channel = connect_to_stop(host, slug).await?;
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let mut stream = channel.open(&KeeperRequest::Stop { grace_ms }).await.map_err(keeper_lost)?;
    let first = tokio::time::timeout(grace + TEARDOWN, stream.receive::<KeeperEvent>()).await;
    let last = match first {
        Ok(Ok(KeeperEvent::Notice(Notice::Warning(text)))) => {
            progress.phase(&text);
            Ok(stream.receive::<KeeperEvent>().await)
        }
        other => other,
    };
    match last {
        Ok(Ok(KeeperEvent::Ended(ended))) => Ok(ended),
        Ok(Ok(KeeperEvent::Refused(why))) => Err(CliError::failed(why).about(slug)),
        Ok(Ok(_)) => Err(unexpected_answer().about(slug)),
        Ok(Err(error)) => Err(keeper_lost(error).about(slug)),
        Err(_) => Err(CliError::failed("the bottle is still being torn down")
            .about(slug)
            .hint("`bottle list` shows its state")),
    }
}
