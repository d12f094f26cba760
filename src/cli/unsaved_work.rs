//! Handles unsaved work after an agent exited: asks the user at a terminal whether to keep, pull or discard
//! it.
//!
//! While the keeper waits for the user's choice, it does not end the bottle, so that a pull still works. Without a
//! choice, the keeper keeps the work.

use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_host::Host;
use bottle_instance::work::Unsaved;
use bottle_instance::{State, Store};
use bottle_keeper::protocol::{EndChoice, KeeperEvent};
use bottle_lib::work::{self, Root, Wanted};
use bottle_policy::names::Slug;

use super::kept_reason;
use super::pulled_work;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::signals::Signals;
use crate::console::terminal::{self, TerminalUser};

/// How long the keeper may search a large workspace for unsaved work. After this time, the user is not asked, and the
/// keeper keeps the work.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(45);

/// The user's answer. Enter without text selects the first answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Keep,
    Pull,
    Discard,
}

impl Answer {
    fn word(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Pull => "pull",
            Self::Discard => "discard",
        }
    }
}

/// If there is unsaved work, asks the user and sends the choice to the keeper.
pub(crate) async fn decide(
    host: &Host,
    slug: &Slug,
    channel: &Channel,
    mut offer: Stream,
    signals: &mut Signals,
    output: &Output,
) {
    let looked = tokio::time::timeout(SEARCH_TIMEOUT, offer.receive::<KeeperEvent>()).await;
    let Ok(Ok(KeeperEvent::Work(mut unsaved))) = looked else { return };
    while unsaved.is_any() {
        let (question, answers) = question(host, slug, &unsaved);
        match ask(question, &answers, signals).await {
            Answer::Keep => break,
            Answer::Discard => return send(offer, EndChoice::Discard).await,
            Answer::Pull => match pull_all(host, slug, channel, output).await {
                // A pull omits files that git ignores, so these files may still be unsaved.
                Ok(true) => unsaved = Unsaved { work: false, unknown: None, ..unsaved },
                // Another pull would omit the same work, so the user is not asked again.
                Ok(false) => {
                    output.note(format!("the work that was not pulled is kept with {slug}"));
                    break;
                }
                Err(error) => output.error(&error),
            },
        }
    }
    send(offer, EndChoice::Keep).await;
}

async fn send(offer: Stream, choice: EndChoice) {
    // An error is ignored: if the keeper has ended, the work is kept.
    let _ = offer.message(&choice).await;
    let _ = offer.end().await;
}

/// Returns the question about unsaved work, and the possible answers. The answer `pull` is offered only if a pull can
/// save work.
fn question(host: &Host, slug: &Slug, unsaved: &Unsaved) -> (String, Vec<Answer>) {
    let ignored = kept_reason::ignored(unsaved);
    let question = match (unsaved.is_work(), ignored) {
        (true, Some(ignored)) => {
            format!("There is unsaved work in {slug}. A pull leaves out {ignored}.")
        }
        (true, None) => format!("There is unsaved work in {slug}."),
        (false, ignored) => format!("{slug} has {}.", ignored.unwrap_or_default()),
    };
    let pulls = unsaved.is_work() && has_repository(host, slug);
    let answers = [Answer::Keep, Answer::Pull, Answer::Discard];
    (question, answers.into_iter().filter(|answer| pulls || *answer != Answer::Pull).collect())
}

/// Whether the user has a repository into which the work can be pulled.
fn has_repository(host: &Host, slug: &Slug) -> bool {
    let Some(State::Alive(record)) = Store::of(host).state(slug) else { return false };
    Root::any_has_repository(host, &record)
}

/// Asks on a separate thread, so that signals are handled while the question waits for the user. Without an answer, the
/// work is kept.
async fn ask(question: String, answers: &[Answer], signals: &mut Signals) -> Answer {
    let words: Vec<&'static str> = answers.iter().map(|answer| answer.word()).collect();
    let asking = tokio::task::spawn_blocking(move || TerminalUser::find()?.word(&question, &words));
    tokio::select! {
        answer = asking => match answer {
            Ok(Ok(Some(index))) => answers.get(index).copied().unwrap_or(Answer::Keep),
            _ => Answer::Keep,
        },
        _ = signals.end() => {
            // The thread that asks still waits for a key, so it cannot restore the terminal itself.
            terminal::restore();
            Answer::Keep
        }
    }
}

/// Pulls the bottle's work. Returns whether all work in the bottle is now saved.
async fn pull_all(host: &Host, slug: &Slug, channel: &Channel, output: &Output) -> Result<bool, CliError> {
    let Some(State::Alive(record)) = Store::of(host).state(slug) else { return Ok(false) };
    // The uncommitted files of a live workspace are already in a directory of the user.
    let uncommitted = record.live().is_none();
    let pulled = work::pull(host, &record, channel, Wanted { uncommitted, ..Wanted::default() }).await?;
    let is_complete = pulled.is_complete();
    pulled_work::report(pulled, output)?;
    Ok(is_complete)
}
