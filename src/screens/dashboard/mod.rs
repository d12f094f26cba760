//! The terminal dashboard.
//!
//! ```text
//! gatherer thread ──data────┐      ┌──keys── terminal
//! actions ──────────results─┼► state ──► draw
//! supervise queue ──────────┘    └──effects──► actions
//! ```
//! - `state`: the content of the screen, and how keys and events change it
//! - `draw`: draws the screen; `bottle_text` and `usage_text`: the longer texts of the screen; `cells`: parts of lines
//!
//! The view of proposals is the screen of `bottle supervise`.

mod bottle_text;
mod cells;
mod draw;
mod state;
#[cfg(test)]
mod tests;
mod usage_text;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bottle_host::Host;
use crossterm::event::{KeyCode, KeyEvent};
use jiff::Timestamp;
use ratatui::layout::Rect;

use self::state::{Effect, State, View};
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::style::Styles;
use crate::console::terminal::{FullScreen, Typed};
use crate::screens::supervise::{
    ParseChange, QueueView, SharedTerminal, SignalFlags, Step, UnsavedRoutes, enter, print_unsaved,
    run_screen,
};
use bottle_lib::dashboard::action::Action;
use bottle_lib::dashboard::gather::{self, Gathered, Gatherer, Wanted};

/// How long the screen waits for a key before it handles other events.
const TICK: Duration = Duration::from_millis(100);

/// Shows the screen until the user closes it. Returns false if the terminal cannot show the screen.
pub(crate) fn show(host: &Host, output: &Output, parse: ParseChange) -> Result<bool, CliError> {
    let (screen_host, styles) = (host.clone(), output.styles());
    let ended = run_screen(move |flags| on_terminal(&screen_host, styles, flags, parse))?;
    let Some(unsaved) = ended else { return Ok(false) };
    print_unsaved(unsaved, output)?;
    Ok(true)
}

fn on_terminal(
    host: &Host,
    styles: Styles,
    flags: Arc<SignalFlags>,
    parse: ParseChange,
) -> Result<Option<UnsavedRoutes>, CliError> {
    let Some(full) = enter(host)? else { return Ok(None) };
    // The first screen shows only records that were ingested earlier. New records are ingested while the screen is
    // visible.
    let mut gatherer = Gatherer::new(host.clone());
    let state = State::new(gatherer.gather(&Wanted::default()));
    let queue = QueueView::open(host, styles, parse)?;
    let (wants, gathered) = gather::start_thread(gatherer);
    let (results, carried_out) = sync_channel(1);
    let screen = Screen {
        host: host.clone(),
        styles,
        terminal: SharedTerminal::new(host.clone(), flags),
        wanted: state.wanted(),
        state,
        queue,
        wants,
        gathered,
        results,
        carried_out,
    };
    screen.run(full).map(Some).map_err(|error| {
        CliError::cannot("show the dashboard", error)
            .hint("`bottle list` and `bottle usage` print the same in lines")
    })
}

struct Screen {
    host: Host,
    styles: Styles,
    terminal: SharedTerminal,
    state: State,
    queue: QueueView,
    /// The last request to the gatherer.
    wanted: Wanted,
    wants: SyncSender<Wanted>,
    gathered: Receiver<Gathered>,
    results: SyncSender<Result<String, String>>,
    carried_out: Receiver<Result<String, String>>,
}

impl Screen {
    fn run(mut self, mut full: FullScreen) -> io::Result<UnsavedRoutes> {
        loop {
            self.draw(&mut full)?;
            let mut patience = TICK;
            // Handles all available keys before the screen is drawn again.
            while let Some(typed) = full.typed_within(patience)? {
                patience = Duration::ZERO;
                match self.typed(typed) {
                    Step::Stay => {}
                    Step::Redraw => break,
                    Step::Leave => return Ok(self.queue.into_unsaved()),
                    Step::Edit(request) => {
                        full = self.terminal.edit(full, &mut self.queue, request)?;
                    }
                }
            }
            self.receive();
            if self.terminal.is_ending() {
                return Ok(self.queue.into_unsaved());
            }
        }
    }

    fn draw(&mut self, full: &mut FullScreen) -> io::Result<()> {
        let (now, styles) = (Timestamp::now(), self.styles);
        let (columns, rows) = full.size()?;
        let area = Rect::new(0, 0, columns, rows);
        let (areas, lines) = draw::prepare(&mut self.state, area, styles, now);
        let shows_queue = self.state.view() == View::Proposals;
        let below = draw::queue_area(area);
        if shows_queue {
            self.queue.prepare((below.width, below.height));
        }
        full.draw(|frame| {
            // If the terminal was resized after the areas were computed, nothing is drawn, because the areas do not
            // fit.
            if frame.area() == area {
                draw::draw(frame, areas, &lines, &self.state, styles, now);
                if shows_queue {
                    self.queue.draw(frame, below);
                }
            }
        })
    }

    fn typed(&mut self, typed: Typed) -> Step {
        if self.state.view() == View::Proposals && !self.is_for_dashboard(&typed) {
            return self.queue.typed(typed);
        }
        match typed {
            Typed::Key(key) => match self.state.press(key) {
                Effect::Nothing => {}
                Effect::Leave => return Step::Leave,
                Effect::CarryOut(action) => self.carry_out(*action),
                Effect::Select(slug) => self.queue.select_bottle(slug.as_str()),
            },
            Typed::Pasted(text) => self.state.paste(&text),
            Typed::Resized => return Step::Redraw,
        }
        self.ask();
        Step::Stay
    }

    /// Whether a key in the view of proposals selects another view. The list of proposals does not use these keys.
    fn is_for_dashboard(&self, typed: &Typed) -> bool {
        let changes = |key: &KeyEvent| {
            matches!(
                key.code,
                KeyCode::Char('1' | '2' | '3') | KeyCode::Tab | KeyCode::BackTab | KeyCode::Esc
            )
        };
        matches!(typed, Typed::Key(key) if changes(key)) && self.queue.is_at_list()
    }

    /// Asks the gatherer for the data of the current view.
    fn ask(&mut self) {
        let wanted = self.state.wanted();
        if wanted != self.wanted {
            self.wanted = wanted.clone();
            // If the channel is full, the gatherer thread is slow. The next call of this function asks the thread
            // again.
            if self.wants.try_send(wanted).is_err() {
                self.wanted = Wanted::default();
            }
        }
    }

    fn receive(&mut self) {
        while let Ok(gathered) = self.gathered.try_recv() {
            self.state.gathered(gathered);
        }
        while let Ok(result) = self.carried_out.try_recv() {
            self.state.carried_out(result, Timestamp::now());
            // If the channel is full, the gatherer thread gathers data soon anyway.
            let _ = self.wants.try_send(self.wanted.clone());
        }
        self.queue.receive();
        self.ask();
    }

    fn carry_out(&self, action: Action) {
        let (host, results) = (self.host.clone(), self.results.clone());
        std::thread::spawn(move || {
            // If the user has closed the screen, the receiver is dropped. The result is then visible only in the
            // bottle's state.
            let done = block_on(async { Ok(action.carry_out(&host).await?) });
            let _ = results.send(done.map_err(|error| error.failure.message));
        });
    }
}
