//! Handles unsaved work after an agent exited: asks the user at a terminal whether to keep, pull or discard
//! it.
//!
//! While the keeper waits for the user's choice, it does not end the bottle, so that a pull still works. Without
//! a choice, the keeper preserves the work.

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

/// How long the keeper may search a large workspace for unsaved work. After that, the user is not asked, and the
/// keeper preserves the work.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The possible answers. Pressing Enter alone means `keep`.
const CHOICES: [&str; 3] = ["keep", "pull", "discard"];

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
    if !matches!(looked, Ok(Ok(KeeperEvent::Work(true)))) {
        return;
    }
    let choice = loop {
        let question = format!("There is unsaved work in {slug}.");
        // Asks on a separate thread, so that signals are handled while the user thinks.
        let asking = tokio::task::spawn_blocking(move || TerminalUser::find()?.word(&question, &CHOICES));
        let answer = tokio::select! {
            answer = asking => answer,
            _ = signals.end() => {
                // Needed because the asking thread still waits for a key.
                terminal::restore();
                break EndChoice::Keep;
            }
        };
        match answer {
            Ok(Ok(Some(1))) => match pull_all(host, slug, channel, output).await {
                Ok(true) => break EndChoice::Keep,
                // Some work still exists only in the bottle, so the question is asked again.
                Ok(false) => {}
                Err(error) => output.error(&error),
            },
            Ok(Ok(Some(2))) => break EndChoice::Discard,
            _ => break EndChoice::Keep,
        }
    };
    // An error is ignored: if the keeper has ended, the work is preserved.
    let _ = offer.message(&choice).await;
    let _ = offer.end().await;
}

/// Pulls, and returns whether all work in the bottle is now saved.
async fn pull_all(host: &Host, slug: &Slug, channel: &Channel, output: &Output) -> Result<bool, CliError> {
    let Some(State::Alive(record)) = Store::of(host).state(slug) else { return Ok(false) };
    // The user has the uncommitted files of a live workspace already.
    let uncommitted = record.live().is_none();
    let pulled =
        pull::pull(host, &record, channel, pull::Wanted { uncommitted, ..pull::Wanted::default() }).await?;
    let is_complete = pulled.is_complete();
    pulled.report(output)?;
    Ok(is_complete)
}
