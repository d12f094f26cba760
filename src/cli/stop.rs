//! `bottle stop`: ends a bottle.

use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::Slug;

use super::completions;
use super::connect::{connect, keeper_lost, unexpected_answer};
use super::error::CliError;
use super::exit;
use super::json_schema::Stopped;
use super::output::Output;
use super::progress::{self, Progress};
use super::select_bottle::{Question, is_running};
use crate::host::Host;
use crate::keeper::protocol::{Ended, KeeperEvent, KeeperRequest, Notice};

/// How long the teardown may take after the agent's grace period, unless a snapshot is being saved. After that, `stop`
/// fails.
const TEARDOWN: Duration = Duration::from_secs(30);

/// Stop a bottle: end its agent, and keep its files if it has unsaved work
///
/// Unsaved work is every change in the workspace that you have neither pulled nor committed with `bottle commit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// The bottle, as `bottle list` shows it; asks when omitted
    #[arg(add = completions::running())]
    slug: Option<Slug>,
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
        let slug = BOTTLE_QUESTION.select(self.slug, host, output)?;
        let words = format!("stopping {slug}; its agent has {} s to end", self.time);
        let left = "it is still ending; `bottle list` shows its state";
        let stopping = async |progress: Arc<Progress>| stop(host, &slug, grace, &progress).await;
        let ended = super::block_on(progress::with_progress(&words, left, output, stopping))?;
        output.json_or(&Stopped::of(&slug, &ended), || {
            super::attach::report_end(&slug, &ended, output);
            Ok(())
        })?;
        if ended.left.is_empty() { Ok(exit::DONE) } else { Ok(exit::FAILED) }
    }
}

/// Requests the stop from the keeper, and waits until the bottle has ended. If the keeper reports that the bottle ends
/// only after a snapshot, which can take long, shows this and waits without a time limit.
pub(crate) async fn stop(
    host: &Host,
    slug: &Slug,
    grace: Duration,
    progress: &Progress,
) -> Result<Ended, CliError> {
    let channel = connect(host, slug).await?;
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
