//! The full-screen view: shows pending proposals, and takes the user's answers.
//!
//! ```text
//! the queue ──polls────┐      ┌──keys── terminal
//! answers ───results───┼► state ──► layout ─► draw
//! editor ────edited────┘    └──effects──► answers, editor
//! ```
//! - `state`: the content of the screen, and how keys and events change it. Like `rows` and `line`, it does
//!   no input or output
//! - `layout`: arranges lines from `text` for a terminal of this size; `draw`: draws them
//! - `crash`: the log of a panic
//!
//! The drawing thread waits only for keys. A second thread polls the queue, and each answer runs on a
//! separate thread.

mod crash;
mod draw;
mod layout;
mod line;
mod rows;
mod state;
#[cfg(test)]
mod tests;
mod text;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bottle_contract::proposal::ProposalError;
use bottle_contract::queue::Id;
use bottle_queue::{Listing, Pending, QueueWatcher};
use jiff::Timestamp;

use self::state::{Edited, Effect, EffectInput, KnownEffect, State};
use super::answer::{self, AnswerOutcome, Decision, Unsaved};
use super::pending::{queue_error, scanner_warnings};
use super::route_change::{RouteChange, live_between, route_change};
use super::scope::files;
use crate::cli::editor::Draft;
use crate::cli::error::CliError;
use crate::cli::output::Output;
use crate::cli::routes::TypedChange;
use crate::cli::session::{Signals, interrupted};
use crate::cli::style::Styles;
use crate::cli::terminal::{FullScreen, Typed};
use crate::host::Host;
use crate::keeper::protocol::{Consent, RouteReport};

/// The poll interval of the queue.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long the screen waits for a key before it handles other events. While an answer is in progress, it
/// waits less.
const TICK: Duration = Duration::from_millis(100);
const BUSY_TICK: Duration = Duration::from_millis(20);

/// The interval at which the effect of the selected proposal is computed again.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The number of events that the channel buffers. A sender waits while the channel is full.
const NEWS: usize = 16;

/// How long after the editor's end a signal may still come from a key that the user pressed in the editor.
const EDITOR_SIGNAL_DELAY: Duration = Duration::from_millis(500);

/// How long the command waits, after a signal, for the screen to restore the terminal; and, after the screen failed,
/// for a signal that explains the failure.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// SIGINT and SIGQUIT, which the terminal sends to the foreground process when the user presses their keys.
const KEYS: [u8; 2] = [2, 3];

/// Shows the screen until the user closes it. Returns false if the terminal cannot show the screen.
pub(super) fn show(host: &Host, output: &Output) -> Result<bool, CliError> {
    let Some(unsaved) = run(host, output)? else { return Ok(false) };
    for (path, Unsaved { why, routes }) in unsaved {
        output.note(format!("cannot write {}: {why}; these are its routes", path.display()));
        output.print(&routes)?;
    }
    Ok(true)
}

/// Routes that could not be saved to the user's manifests, by file.
type UnsavedRoutes = Vec<(PathBuf, Unsaved)>;

fn run(host: &Host, output: &Output) -> Result<Option<UnsavedRoutes>, CliError> {
    let flags = Arc::new(SignalFlags::default());
    crate::cli::block_on(async {
        let mut signals = Signals::catch()?;
        let (host, styles, screen_flags) = (host.clone(), output.styles(), Arc::clone(&flags));
        let mut screen = tokio::task::spawn_blocking(move || on_terminal(host, styles, screen_flags));
        loop {
            tokio::select! {
                ended = &mut screen => {
                    if let Some(crashed) = crash::error() {
                        return Err(crashed);
                    }
                    let ended = ended.unwrap_or_else(|error| Err(CliError::failed(error.to_string())));
                    // When a terminal hangs up, reading from it fails at the moment when SIGHUP arrives. The
                    // signal decides the exit code.
                    if ended.is_err()
                        && let Ok(number) = tokio::time::timeout(ENDS_WITHIN, signals.end()).await
                    {
                        return Err(interrupted(number));
                    }
                    return ended;
                }
                number = signals.end() => {
                    // The editor has taken over the terminal, so the signal is meant for the editor.
                    if flags.editing.load(Ordering::SeqCst) && KEYS.contains(&number) {
                        continue;
                    }
                    flags.ending.store(true, Ordering::SeqCst);
                    let _ = tokio::time::timeout(ENDS_WITHIN, &mut screen).await;
                    return Err(interrupted(number));
                }
            }
        }
    })
}

/// State that is shared with the signal handler.
#[derive(Debug, Default)]
struct SignalFlags {
    /// Whether the editor has taken over the terminal, or has just ended.
    editing: AtomicBool,
    /// Whether the screen must restore the terminal and close.
    ending: AtomicBool,
}

/// An event from another thread.
enum Event {
    Polled(Listing),
    PollFailed(String),
    Answered { id: Id, outcome: Result<AnswerOutcome, String> },
    Changed { change: TypedChange, outcome: Result<RouteReport, String> },
}

fn on_terminal(
    host: Host,
    styles: Styles,
    flags: Arc<SignalFlags>,
) -> Result<Option<UnsavedRoutes>, CliError> {
    let mut watcher = QueueWatcher::new(host.home.clone());
    let now = Timestamp::now();
    let first = watcher.poll(now).map_err(queue_error)?.unwrap_or_default();
    crash::log_panics(&host.home);
    let Some(full) = enter()? else { return Ok(None) };
    let (sender, receiver) = sync_channel(NEWS);
    let poll_sender = sender.clone();
    std::thread::spawn(move || poll_queue(watcher, &poll_sender));
    let state = State::new(first, now);
    let screen = Screen {
        host,
        styles,
        flags,
        state,
        sender,
        receiver,
        effect_updated: None,
        warnings_updated: None,
        edited_at: None,
    };
    screen.run(full).map(Some).map_err(|error| {
        CliError::cannot("show the screen", error).hint("`bottle supervise --plain` lists pending proposals")
    })
}

/// Takes over the terminal. Returns none if the terminal cannot show a screen.
fn enter() -> Result<Option<FullScreen>, CliError> {
    let entered = FullScreen::enter()
        .and_then(|full| full.map(|mut full| full.report_pastes().map(|()| full)).transpose());
    entered.map_err(|error| CliError::cannot("take over the terminal", error))
}

/// Polls the queue until the receiver is dropped.
fn poll_queue(mut watcher: QueueWatcher, sender: &SyncSender<Event>) {
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let event = match watcher.poll(Timestamp::now()) {
            Ok(None) => continue,
            Ok(Some(found)) => Event::Polled(found),
            Err(error) => Event::PollFailed(queue_error(error).message),
        };
        if sender.send(event).is_err() {
            return;
        }
    }
}

struct Screen {
    host: Host,
    styles: Styles,
    flags: Arc<SignalFlags>,
    state: State,
    sender: SyncSender<Event>,
    receiver: Receiver<Event>,
    /// When the effect of the selected proposal was last computed.
    effect_updated: Option<Instant>,
    /// When the scanner's warnings were last read.
    warnings_updated: Option<Instant>,
    /// When the editor ended; reset when later signals can no longer be meant for the editor.
    edited_at: Option<Instant>,
}

impl Screen {
    fn run(mut self, mut full: FullScreen) -> io::Result<UnsavedRoutes> {
        loop {
            self.update_effect();
            self.update_warnings();
            let now = Timestamp::now();
            self.state.lay_out(full.size()?, self.styles, now);
            full.draw(|frame| draw::draw(frame, &self.state, self.styles, now))?;
            let mut patience = if self.state.is_busy() { BUSY_TICK } else { TICK };
            // Handles all available keys before the screen is drawn again.
            while let Some(typed) = full.typed_within(patience)? {
                patience = Duration::ZERO;
                let effect = match typed {
                    Typed::Key(key) => self.state.press(key, Timestamp::now()),
                    Typed::Pasted(text) => {
                        self.state.paste(&text);
                        Effect::Nothing
                    }
                    Typed::Resized => break,
                };
                match effect {
                    Effect::Nothing => {}
                    Effect::Leave => return Ok(self.state.into_unsaved()),
                    Effect::Answer { pending, decision } => self.answer(*pending, decision),
                    Effect::Change { change, weaken } => self.change(change, weaken),
                    Effect::Edit { id, text } => full = self.edit(full, &id, text)?,
                }
            }
            while let Ok(event) = self.receiver.try_recv() {
                self.handle(event);
            }
            if self.edited_at.take_if(|at| at.elapsed() > EDITOR_SIGNAL_DELAY).is_some() {
                self.flags.editing.store(false, Ordering::SeqCst);
            }
            if self.flags.ending.load(Ordering::SeqCst) {
                return Ok(self.state.into_unsaved());
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = Timestamp::now();
        match event {
            Event::Polled(listing) => self.state.poll_succeeded(listing, now),
            Event::PollFailed(why) => self.state.poll_failed(why),
            Event::Answered { id, outcome } => self.state.answered(&id, outcome, now),
            Event::Changed { change, outcome } => self.state.routes_changed(change, outcome),
        }
    }

    /// Computes the effect of the selected proposal, unless the last result is recent.
    fn update_effect(&mut self) {
        let Some(effect_input) = self.state.effect_input() else { return };
        let before = self.state.known();
        if before.is_some() && self.effect_updated.is_some_and(|at| at.elapsed() < KNOWN_FOR) {
            return;
        }
        let known = compute_effect(&self.host, effect_input, before);
        self.effect_updated = Some(Instant::now());
        self.state.set_known(known);
    }

    /// Reads the scanner's warnings for the proposal that is shown in full, unless they were read recently.
    fn update_warnings(&mut self) {
        let Some(shown) = self.state.shown_in_full() else { return };
        let recent = self.warnings_updated.is_some_and(|at| at.elapsed() < KNOWN_FOR);
        if recent && self.state.warnings().is_some() {
            return;
        }
        let (id, warnings) = (shown.id.clone(), scanner_warnings(&self.host, &shown.bottle_slug));
        self.warnings_updated = Some(Instant::now());
        self.state.set_warnings(id, warnings);
    }

    fn answer(&self, pending: Pending, decision: Decision) {
        let (host, sender) = (self.host.clone(), self.sender.clone());
        std::thread::spawn(move || {
            let outcome = answer::answer(&host, &pending, decision).map_err(|error| error.message);
            // The receiver is dropped when the user closes the screen. The result is in the audit log too.
            let _ = sender.send(Event::Answered { id: pending.proposal.id, outcome });
        });
    }

    fn change(&self, change: TypedChange, weaken: Consent) {
        let (host, sender) = (self.host.clone(), self.sender.clone());
        std::thread::spawn(move || {
            let outcome = change.send(&host, weaken).map_err(|error| error.message);
            // The receiver is dropped when the user closes the screen. The result is in the audit log too.
            let _ = sender.send(Event::Changed { change, outcome });
        });
    }

    /// Gives the terminal to the user's editor, and takes it back when the editor ends.
    fn edit(&mut self, full: FullScreen, id: &Id, text: String) -> io::Result<FullScreen> {
        self.edited_at = None;
        self.flags.editing.store(true, Ordering::SeqCst);
        drop(full);
        let edited = edit(&self.host, &text);
        let full = enter().map_err(|error| io::Error::other(error.message));
        self.edited_at = Some(Instant::now());
        self.state.edited(id, &text, edited);
        full?.ok_or_else(|| io::Error::other("the terminal is too small now"))
    }
}

fn edit(host: &Host, text: &str) -> Edited {
    let draft = match Draft::new("routes.yaml", text) {
        Ok(draft) => draft,
        Err(error) => return Edited { text: None, failed: Some(error.message) },
    };
    let failed = draft.edit(host).err().map(|error| error.message);
    match draft.read() {
        Ok(text) => Edited { text: Some(text), failed },
        Err(error) => Edited { text: None, failed: failed.or(Some(error.message)) },
    }
}

/// Computes the effect of proposed routes. `before` is the previous result, which is reused where it still
/// applies.
fn compute_effect(host: &Host, effect_input: EffectInput<'_>, before: Option<&KnownEffect>) -> KnownEffect {
    let EffectInput { pending: Pending { proposal, .. }, text, scope } = effect_input;
    let route_change = route_change(host, proposal, text);
    let revision = |route_change: &Option<Result<RouteChange, ProposalError>>| {
        Some(route_change.as_ref()?.as_ref().ok()?.revision)
    };
    let live = revision(&route_change);
    let moved = proposal.revision.zip(live).filter(|(asked, live)| live > asked);
    let since = moved.map(|(asked, live)| match before {
        Some(KnownEffect { since: Some(since), route_change, .. })
            if revision(route_change) == Some(live) =>
        {
            since.clone()
        }
        _ => live_between(host, &proposal.bottle_slug, asked, live),
    });
    let grant = scope.resolve(host, proposal, text).map_err(|error| error.message);
    let files = files(host, &proposal.bottle_slug);
    KnownEffect {
        id: proposal.id.clone(),
        text: text.to_owned(),
        wanted: scope,
        grant,
        files,
        route_change,
        since,
    }
}
