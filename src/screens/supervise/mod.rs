//! The full screen of the supervise queue: shows pending proposals, and takes the user's answers. `bottle supervise`,
//! the dashboard and an attached session show this screen.
//!
//! ```text
//! the queue ──polls────┐      ┌──keys── terminal
//! answers ───results───┼► state ──► layout ─► draw
//! editor ────edited────┘    └──effects──► answers, editor
//! ```
//! - `state`: the content of the screen, and how keys and events change it. Like `rows` and `line`, this module does no
//!   input or output
//! - `view`: what the screen shows besides the list
//! - `layout`: arranges lines from `text` for a terminal of this size; `draw`: draws these lines
//! - `crash`: the log of a panic
//!
//! - `queue_view`: the view of the queue without a terminal, which `bottle dashboard` also shows
//!
//! The drawing thread waits only for keys. A second thread polls the queue, and each answer runs on a
//! separate thread.

mod crash;
mod draw;
mod layout;
mod line;
mod queue_view;
mod rows;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod typed_change;
mod view;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bottle_host::Host;
use bottle_lib::report::UnsavedManifest;
use bottle_policy::names::Slug;

pub(crate) use self::line::{InputResult, TypedLine};
pub(crate) use self::queue_view::{EditRequest, QueueView, Step};
pub(crate) use self::typed_change::{ParseChange, TypedChange};
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::{Signals, interrupted};
use crate::console::style::Styles;
use crate::console::terminal::FullScreen;

/// How long the screen waits for a key before it handles other events.
const TICK: Duration = Duration::from_millis(100);
/// How long the screen waits for a key while an answer is in progress.
const BUSY_TICK: Duration = Duration::from_millis(20);

/// How long after the editor exits a signal may still come from a key that the user pressed in the editor.
const EDITOR_SIGNAL_DELAY: Duration = Duration::from_millis(500);

/// After a signal, the command waits this long for the screen to restore the terminal. After the screen fails, the
/// command waits this long for a signal that explains the failure.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// The signals SIGINT and SIGQUIT. The terminal sends them when the user presses a key for them, such as Ctrl-C.
const KEYS: [u8; 2] = [2, 3];

/// Shows the screen until the user closes it. Returns false if the terminal cannot show the screen.
pub(crate) fn show(host: &Host, output: &Output, parse: ParseChange) -> Result<bool, CliError> {
    show_from(host, output, parse, None)
}

/// The proposal or question with which the screen begins.
#[derive(Debug)]
pub(crate) struct Selected {
    /// The bottle whose first proposal is selected.
    pub(crate) slug: Slug,
    /// If the bottle has no proposal, the screen offers to allow this host.
    pub(crate) denied_host: Option<String>,
}

/// Shows the screen with the proposals of a bottle selected, until the user closes it.
pub(crate) fn show_selected(
    host: &Host,
    output: &Output,
    parse: ParseChange,
    selected: Selected,
) -> Result<(), CliError> {
    if !show_from(host, output, parse, Some(selected))? {
        return Err(CliError::state("the terminal cannot show the screen")
            .hint("`bottle supervise --plain`, in another terminal, lists pending proposals"));
    }
    Ok(())
}

fn show_from(
    host: &Host,
    output: &Output,
    parse: ParseChange,
    selected: Option<Selected>,
) -> Result<bool, CliError> {
    let (screen_host, styles) = (host.clone(), output.styles());
    let ended = run_screen(move |flags| on_terminal(screen_host, styles, flags, parse, selected))?;
    let Some(unsaved) = ended else { return Ok(false) };
    print_unsaved(unsaved, output)?;
    Ok(true)
}

/// Routes that could not be saved, with the path of the manifest to which they belong.
pub(crate) type UnsavedRoutes = Vec<(PathBuf, UnsavedManifest)>;

/// Prints routes that the user must save by hand.
pub(crate) fn print_unsaved(unsaved: UnsavedRoutes, output: &Output) -> Result<(), CliError> {
    for (path, UnsavedManifest { why, routes }) in unsaved {
        output.note(format!("cannot write {}: {why}; these are its routes", path.display()));
        output.print(&routes)?;
    }
    Ok(())
}

/// Runs a full screen on a thread until it ends, or until a signal ends it. Reports a crash of the screen.
pub(crate) fn run_screen<T: Send + 'static>(
    screen: impl FnOnce(Arc<SignalFlags>) -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    let flags = Arc::new(SignalFlags::default());
    block_on(async {
        let mut signals = Signals::catch()?;
        let screen_flags = Arc::clone(&flags);
        let mut screen = tokio::task::spawn_blocking(move || screen(screen_flags));
        loop {
            tokio::select! {
                ended = &mut screen => {
                    if let Some(crashed) = crash::error() {
                        return Err(crashed);
                    }
                    let ended = ended.unwrap_or_else(|error| Err(CliError::failed(error.to_string())));
                    // When a terminal hangs up, reading from the terminal fails at the moment when SIGHUP arrives. The
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
pub(crate) struct SignalFlags {
    /// Whether the editor has taken over the terminal, or has just ended.
    editing: AtomicBool,
    /// Whether the screen must restore the terminal and close.
    ending: AtomicBool,
}

impl SignalFlags {
    /// Whether the screen must restore the terminal and close.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }
}

fn on_terminal(
    host: Host,
    styles: Styles,
    flags: Arc<SignalFlags>,
    parse: ParseChange,
    selected: Option<Selected>,
) -> Result<Option<UnsavedRoutes>, CliError> {
    let mut view = QueueView::open(&host, styles, parse)?;
    if let Some(Selected { slug, denied_host }) = selected {
        view.select_or_offer(&slug, denied_host.as_deref());
    }
    let Some(full) = enter(&host)? else { return Ok(None) };
    let screen = Screen { view, terminal: SharedTerminal::new(host, flags) };
    screen.run(full).map(Some).map_err(|error| {
        CliError::cannot("show the screen", error).hint("`bottle supervise --plain` lists pending proposals")
    })
}

/// Takes over the terminal, and logs panics to a directory below the home. Returns `None` if the terminal cannot show a
/// screen.
pub(crate) fn enter(host: &Host) -> Result<Option<FullScreen>, CliError> {
    crash::log_panics(&host.home);
    let entered = FullScreen::enter()
        .and_then(|full| full.map(|mut full| full.report_pastes().map(|()| full)).transpose());
    entered.map_err(|error| CliError::cannot("take over the terminal", error))
}

/// A terminal that a screen and the user's editor take over alternately.
pub(crate) struct SharedTerminal {
    host: Host,
    flags: Arc<SignalFlags>,
    /// When the editor exited. `None` if later signals can no longer be meant for the editor.
    edited_at: Option<Instant>,
}

impl SharedTerminal {
    pub(crate) fn new(host: Host, flags: Arc<SignalFlags>) -> Self {
        Self { host, flags, edited_at: None }
    }

    /// Gives the terminal to the user's editor, and takes it back when the editor ends.
    ///
    /// # Errors
    /// Returns an error if the terminal cannot show the screen any more.
    pub(crate) fn edit(
        &mut self,
        full: FullScreen,
        view: &mut QueueView,
        request: EditRequest,
    ) -> io::Result<FullScreen> {
        self.edited_at = None;
        self.flags.editing.store(true, Ordering::SeqCst);
        drop(full);
        view.edit(request);
        let full = enter(&self.host).map_err(|error| io::Error::other(error.failure.message));
        self.edited_at = Some(Instant::now());
        full?.ok_or_else(|| io::Error::other("the terminal is too small now"))
    }

    /// Whether a signal has asked the screen to end.
    pub(crate) fn is_ending(&mut self) -> bool {
        if self.edited_at.take_if(|at| at.elapsed() > EDITOR_SIGNAL_DELAY).is_some() {
            self.flags.editing.store(false, Ordering::SeqCst);
        }
        self.flags.is_ending()
    }
}

struct Screen {
    view: QueueView,
    terminal: SharedTerminal,
}

impl Screen {
    fn run(mut self, mut full: FullScreen) -> io::Result<UnsavedRoutes> {
        loop {
            self.view.prepare(full.size()?);
            full.draw(|frame| self.view.draw(frame, frame.area()))?;
            let mut patience = if self.view.is_busy() { BUSY_TICK } else { TICK };
            // Handles all available keys before the screen is drawn again.
            while let Some(typed) = full.typed_within(patience)? {
                patience = Duration::ZERO;
                match self.view.typed(typed) {
                    Step::Stay => {}
                    Step::Redraw => break,
                    Step::Leave => return Ok(self.view.into_unsaved()),
                    Step::Edit(request) => full = self.terminal.edit(full, &mut self.view, request)?,
                }
            }
            self.view.receive();
            if self.terminal.is_ending() {
                return Ok(self.view.into_unsaved());
            }
        }
    }
}
