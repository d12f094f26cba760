//! The full-screen view: pending proposals, live, and the user's answers.
//!
//! ```text
//! the queue ──polls────┐      ┌──keys── terminal
//! answers ───results───┼► state ──► laid ──► draw
//! editor ────edited────┘    └──effects──► answers, editor
//! ```
//! - `state`: what is shown, and the effect of keys and events; pure, as are `rows` and `line`
//! - `laid`: the layout for a terminal of this size, with lines from `text`; `draw`: draws it
//! - `crash`: the log of a panic
//!
//! The drawing thread only waits for keys. A second thread polls the queue, and each answer runs on its own thread.

mod crash;
mod draw;
mod laid;
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

use bottle_contract::queue::Id;
use bottle_queue::{Listing, Looks, Pending};
use jiff::Timestamp;

use self::state::{Edited, Effect, Known, State, Wants};
use super::answer::{self, Came, Decision, Unsaved};
use super::opens::{Opens, between, opens};
use super::scope::files;
use super::waiting::unusable;
use crate::cli::attach::catch;
use crate::cli::editor::Draft;
use crate::cli::error::CliError;
use crate::cli::output::Output;
use crate::cli::session::interrupted;
use crate::cli::style::Styles;
use crate::cli::terminal::{FullScreen, Typed};
use crate::host::Host;

/// The poll interval of the queue.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long the screen waits for a key before it handles events: shorter while an answer is in progress.
const TICK: Duration = Duration::from_millis(100);
const BUSY_TICK: Duration = Duration::from_millis(20);

/// How often the effect of the selected proposal is computed again.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The capacity of the event channel.
const NEWS: usize = 16;

/// How long the screen may take to restore the terminal after a signal.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// SIGINT and SIGQUIT, which keys send to the foreground process.
const KEYS: [u8; 2] = [2, 3];

/// Shows the screen until the user leaves; false if the terminal cannot show it.
pub(super) fn show(host: &Host, output: &Output) -> Result<bool, CliError> {
    let Some(unsaved) = shown(host, output)? else { return Ok(false) };
    for (path, Unsaved { why, routes }) in unsaved {
        output.note(format!("cannot write {}: {why}; these are its routes", path.display()));
        output.print(&routes)?;
    }
    Ok(true)
}

/// Routes that could not be written to the user's files.
type ByHand = Vec<(PathBuf, Unsaved)>;

fn shown(host: &Host, output: &Output) -> Result<Option<ByHand>, CliError> {
    let turns = Arc::new(Turns::default());
    crate::cli::block_on(async {
        let mut signals = catch()?;
        let (host, styles, turns_of) = (host.clone(), output.styles(), Arc::clone(&turns));
        let mut screen = tokio::task::spawn_blocking(move || on_terminal(host, styles, turns_of));
        loop {
            tokio::select! {
                ended = &mut screen => {
                    if let Some(crashed) = crash::error() {
                        return Err(crashed);
                    }
                    let ended = ended.unwrap_or_else(|error| Err(CliError::failed(error.to_string())));
                    // A terminal that hung up fails to read, and SIGHUP arrives at the same moment.
                    if ended.is_err()
                        && let Ok(number) = tokio::time::timeout(ENDS_WITHIN, signals.end()).await
                    {
                        return Err(interrupted(number));
                    }
                    return ended;
                }
                number = signals.end() => {
                    // The editor owns the terminal, and the signal is meant for it.
                    if turns.editing.load(Ordering::SeqCst) && KEYS.contains(&number) {
                        continue;
                    }
                    turns.ending.store(true, Ordering::SeqCst);
                    let _ = tokio::time::timeout(ENDS_WITHIN, &mut screen).await;
                    return Err(interrupted(number));
                }
            }
        }
    })
}

/// State shared with the signal handler.
#[derive(Debug, Default)]
struct Turns {
    /// The editor owns the terminal.
    editing: AtomicBool,
    /// The screen must restore the terminal and end.
    ending: AtomicBool,
}

/// An event from another thread.
enum News {
    Found(Listing),
    Unfound(String),
    Answered { id: Id, came: Result<Came, String> },
}

fn on_terminal(host: Host, styles: Styles, turns: Arc<Turns>) -> Result<Option<ByHand>, CliError> {
    let mut looks = Looks::at(host.home.clone());
    let now = Timestamp::now();
    let first = looks.look(now).map_err(unusable)?.unwrap_or_default();
    crash::log_panics(&host.home);
    let Some(full) = enter()? else { return Ok(None) };
    let (tell, told) = sync_channel(NEWS);
    let looker = tell.clone();
    std::thread::spawn(move || keep_looking(looks, &looker));
    let state = State::new(first, now);
    let screen = Screen { host, styles, turns, state, tell, told, examined: None };
    screen.run(full).map(Some).map_err(|error| {
        CliError::failed(format!("cannot show the screen: {error}"))
            .hint("`bottle supervise --plain` lists pending proposals")
    })
}

/// Takes over the terminal; none if it cannot show a screen.
fn enter() -> Result<Option<FullScreen>, CliError> {
    let entered = FullScreen::enter()
        .and_then(|full| full.map(|mut full| full.report_pastes().map(|()| full)).transpose());
    entered.map_err(|error| CliError::failed(format!("cannot take over the terminal: {error}")))
}

/// Polls the queue until the receiver is gone.
fn keep_looking(mut looks: Looks, tell: &SyncSender<News>) {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let news = match looks.look(Timestamp::now()) {
            Ok(None) => continue,
            Ok(Some(found)) => News::Found(found),
            Err(error) => News::Unfound(unusable(error).message),
        };
        if tell.send(news).is_err() {
            return;
        }
    }
}

struct Screen {
    host: Host,
    styles: Styles,
    turns: Arc<Turns>,
    state: State,
    tell: SyncSender<News>,
    told: Receiver<News>,
    /// When the effect of the selected proposal was last computed.
    examined: Option<Instant>,
}

impl Screen {
    fn run(mut self, mut full: FullScreen) -> io::Result<ByHand> {
        loop {
            self.examine();
            let now = Timestamp::now();
            self.state.lay_out(full.size()?, self.styles, now);
            full.draw(|frame| draw::draw(frame, &self.state, self.styles, now))?;
            let mut patience = if self.state.is_busy() { BUSY_TICK } else { TICK };
            // All available keys are handled before the next drawing.
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
                    Effect::Edit { id, text } => full = self.edit(full, &id, text)?,
                }
            }
            while let Ok(news) = self.told.try_recv() {
                self.hear(news);
            }
            if self.turns.ending.load(Ordering::SeqCst) {
                return Ok(self.state.into_unsaved());
            }
        }
    }

    fn hear(&mut self, news: News) {
        let now = Timestamp::now();
        match news {
            News::Found(listing) => self.state.found(listing, now),
            News::Unfound(why) => self.state.unfound(why),
            News::Answered { id, came } => self.state.answered(&id, came, now),
        }
    }

    /// Computes the effect of the selected proposal, unless it is recent.
    fn examine(&mut self) {
        let Some(wants) = self.state.wants() else { return };
        let before = self.state.known();
        if before.is_some() && self.examined.is_some_and(|at| at.elapsed() < KNOWN_FOR) {
            return;
        }
        let known = known(&self.host, wants, before);
        self.examined = Some(Instant::now());
        self.state.learn(known);
    }

    fn answer(&self, pending: Pending, decision: Decision) {
        let (host, tell) = (self.host.clone(), self.tell.clone());
        std::thread::spawn(move || {
            let came = answer::answer(&host, &pending, decision).map_err(|error| error.message);
            // The receiver is gone when the user left; the audit log has the result.
            let _ = tell.send(News::Answered { id: pending.proposal.id, came });
        });
    }

    /// Hands the terminal to the user's editor, and takes it back.
    fn edit(&mut self, full: FullScreen, id: &Id, text: String) -> io::Result<FullScreen> {
        self.turns.editing.store(true, Ordering::SeqCst);
        drop(full);
        let edited = edit(&self.host, &text);
        let full = enter().map_err(|error| io::Error::other(error.message));
        self.turns.editing.store(false, Ordering::SeqCst);
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

/// Computes the effect of proposed routes; `before` is the previous result.
fn known(host: &Host, wants: Wants<'_>, before: Option<&Known>) -> Known {
    let Wants { pending: Pending { proposal, .. }, text, scope } = wants;
    let opens = opens(host, proposal, text);
    let revision = |opens: &Option<Result<Opens, String>>| match opens {
        Some(Ok(opens)) => Some(opens.revision),
        _ => None,
    };
    let live = revision(&opens);
    let moved = proposal.revision.zip(live).filter(|(asked, live)| live > asked);
    let since = moved.map(|(asked, live)| match before {
        Some(Known { since: Some(since), opens, .. }) if revision(opens) == Some(live) => since.clone(),
        _ => between(host, &proposal.bottle_slug, asked, live),
    });
    let holds = scope.settle(host, proposal, text).map_err(|error| error.message);
    let files = files(host, &proposal.bottle_slug);
    Known { id: proposal.id.clone(), text: text.to_owned(), wanted: scope, holds, files, opens, since }
}
