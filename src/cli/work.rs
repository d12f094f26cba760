//! Unsaved work when an agent ended by itself: a user at a terminal says what becomes of it.
//!
//! The keeper waits with the bottle as long as the offer is open, so a pull still finds its git. Whoever does not
//! answer, or goes away, has it kept.

use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_contract::names::Slug;

use super::error::CliError;
use super::output::Output;
use super::pull;
use super::session::Signals;
use super::terminal::{self, TerminalUser};
use crate::host::Host;
use crate::instance::{State, Store};
use crate::keeper::protocol::{EndChoice, KeeperEvent};

/// How long the keeper may take to look for work in a large workspace.
const LOOKED_WITHIN: Duration = Duration::from_secs(30);

/// What can be answered; nothing typed keeps it.
const WORDS: [&str; 3] = ["keep", "pull", "discard"];

/// Asks when there is something to ask, and tells the keeper.
pub(crate) async fn decide(
    host: &Host,
    slug: &Slug,
    channel: &Channel,
    mut offer: Stream,
    signals: &mut Signals,
    output: &Output,
) {
    let looked = tokio::time::timeout(LOOKED_WITHIN, offer.receive::<KeeperEvent>()).await;
    if !matches!(looked, Ok(Ok(KeeperEvent::Work(true)))) {
        return;
    }
    let choice = loop {
        let question = format!("There is unsaved work in {slug}.");
        // On a thread of its own, so that a signal is heard while the user thinks.
        let asking = tokio::task::spawn_blocking(move || TerminalUser::find()?.word(&question, &WORDS));
        let answer = tokio::select! {
            answer = asking => answer,
            _ = signals.end() => {
                // The thread that asks goes on waiting for a key, with the terminal in its hands.
                terminal::restore();
                break EndChoice::Keep;
            }
        };
        match answer {
            Ok(Ok(Some(1))) => match take(host, slug, channel, output).await {
                Ok(true) => break EndChoice::Keep,
                // Something is still only there.
                Ok(false) => {}
                Err(error) => output.error(&error),
            },
            Ok(Ok(Some(2))) => break EndChoice::Discard,
            _ => break EndChoice::Keep,
        }
    };
    // A keeper that is gone keeps it.
    let _ = offer.message(&choice).await;
    let _ = offer.end().await;
}

/// Pulls; whether nothing is left to lose.
async fn take(host: &Host, slug: &Slug, channel: &Channel, output: &Output) -> Result<bool, CliError> {
    let Some(State::Alive(record)) = Store::of(host).state(slug) else { return Ok(false) };
    let pulled = pull::pull(host, &record, channel, None).await?;
    pull::report(slug, &pulled, output)?;
    Ok(pulled.is_all())
}
