//! The whole terminal: what waits, live, and a user's answers.
//!
//! ```text
//! the queue ──looks──┐      ┌──keys── terminal
//! answers ───came────┼► state ──► laid ──► draw
//! editor ───edited───┘    └──effects──► answers, editor
//! ```
//! - `state`: what is shown, and what a key or news does to it; with `rows` and `line`, pure
//! - `laid`: the same as lines for a terminal of this size, worded by `text`; `draw`: how it looks
//! - `crash`: a log, where this file or one below it is wrong
//!
//! The thread that draws waits for keys and nothing else: the queue is looked at by another, and each answer is
//! carried out by one of its own.

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
use bottle_queue::{Listing, Pending, QueueWatcher};
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

/// Between two looks at the queue.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a key is waited for before news is looked at: less while an answer is under way.
const TICK: Duration = Duration::from_millis(100);
const BUSY_TICK: Duration = Duration::from_millis(20);

/// How often the routes of the question under the cursor are read anew.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// News that waits to be shown.
const NEWS: usize = 16;

/// How long the screen may take to give the terminal back when a signal ends it.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// SIGINT and SIGQUIT, which keys send to whoever runs on the terminal.
const KEYS: [u8; 2] = [2, 3];

/// Shows the screen until the user leaves it; false where the terminal can show none.
pub(super) fn show(host: &Host, output: &Output) -> Result<bool, CliError> {
    let Some(unsaved) = shown(host, output)? else { return Ok(false) };
    for (path, Unsaved { why, routes }) in unsaved {
        output.note(format!("{} was not written: {why}; these routes were to stand in it", path.display()));
        output.print(&routes)?;
    }
    Ok(true)
}

/// What could not be written into the user's files.
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
                    // A terminal that is gone cannot be read, and the signal which says so comes at the same moment.
                    if ended.is_err()
                        && let Ok(number) = tokio::time::timeout(ENDS_WITHIN, signals.end()).await
                    {
                        return Err(interrupted(number));
                    }
                    return ended;
                }
                number = signals.end() => {
                    // Meant for the editor, which has the terminal.
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

/// Whose turn it is, for whoever listens to signals.
#[derive(Debug, Default)]
struct Turns {
    /// An editor has the terminal.
    editing: AtomicBool,
    /// The screen is to give the terminal back.
    ending: AtomicBool,
}

/// Something that happened while a key was waited for.
enum News {
    Found(Listing),
    Unfound(String),
    Answered { id: Id, came: Result<Came, String> },
}

fn on_terminal(host: Host, styles: Styles, turns: Arc<Turns>) -> Result<Option<ByHand>, CliError> {
    let mut watcher = QueueWatcher::new(host.home.clone());
    let now = Timestamp::now();
    let first = watcher.poll(now).map_err(unusable)?.unwrap_or_default();
    crash::log_panics(&host.home);
    let Some(full) = enter()? else { return Ok(None) };
    let (tell, told) = sync_channel(NEWS);
    let looker = tell.clone();
    std::thread::spawn(move || keep_looking(watcher, &looker));
    let state = State::new(first, now);
    let screen = Screen { host, styles, turns, state, tell, told, examined: None };
    screen.run(full).map(Some).map_err(|error| {
        CliError::failed(format!("cannot show the screen: {error}"))
            .hint("`bottle supervise --plain` lists what waits")
    })
}

/// Takes the terminal over; none where it can show no screen.
fn enter() -> Result<Option<FullScreen>, CliError> {
    let entered = FullScreen::enter()
        .and_then(|full| full.map(|mut full| full.report_pastes().map(|()| full)).transpose());
    entered.map_err(|error| CliError::failed(format!("cannot take over the terminal: {error}")))
}

/// Looks at the queue until nobody wants to know.
fn keep_looking(mut watcher: QueueWatcher, tell: &SyncSender<News>) {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let news = match watcher.poll(Timestamp::now()) {
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
    /// When the routes of the question under the cursor were read.
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
            // All keys that are there are taken before it is drawn again.
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

    /// Finds out what the question under the cursor would open, unless that was done just now.
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
            // Nobody listens any more where the user left; the audit has it.
            let _ = tell.send(News::Answered { id: pending.proposal.id, came });
        });
    }

    /// Gives the terminal to the user's editor, and takes it back.
    fn edit(&mut self, full: FullScreen, id: &Id, text: String) -> io::Result<FullScreen> {
        self.turns.editing.store(true, Ordering::SeqCst);
        drop(full);
        let edited = edit(&self.host, &text);
        let full = enter().map_err(|error| io::Error::other(error.message));
        self.turns.editing.store(false, Ordering::SeqCst);
        self.state.edited(id, &text, edited);
        full?.ok_or_else(|| io::Error::other("the terminal is too small for it by now"))
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

/// What is to be known of a proposal of routes; `before` is what was known of it.
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
