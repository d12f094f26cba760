//! The view of the queue: its state, its drawing, and the threads that poll the queue and answer proposals. The view
//! does not own the terminal, so that it can be a part of another screen.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bottle_host::Host;
use bottle_keeper::protocol::{Consent, RouteReport};
use bottle_lib::proposals::answer::{self, AnswerOutcome, Decision};
use bottle_lib::proposals::pending::{queue_error, scanner_warnings};
use bottle_lib::proposals::route_change::{RouteChange, live_between, route_change};
use bottle_lib::saved_routes::files;
use bottle_policy::names::Slug;
use bottle_policy::proposal::ProposalError;
use bottle_protocol::queue::Id;
use bottle_queue::{Listing, Pending, QueueWatcher};
use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::Rect;

use super::state::{Edited, Effect, State};
use super::typed_change::{ParseChange, TypedChange};
use super::view::{EffectInput, KnownEffect, View};
use super::{UnsavedRoutes, draw};
use crate::console::editor::Draft;
use crate::console::error::CliError;
use crate::console::runtime::block_on;
use crate::console::style::Styles;
use crate::console::terminal::Typed;

/// The poll interval of the queue.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The interval at which the effect of the selected proposal is computed again.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The number of events that the channel buffers. If the channel is full, a sender waits.
const NEWS: usize = 16;

/// An event from another thread.
enum Event {
    Polled(Listing),
    PollFailed(String),
    Answered { id: Id, outcome: Result<AnswerOutcome, String> },
    Changed { change: TypedChange, outcome: Result<RouteReport, String> },
}

/// What the owner of the terminal does next.
pub(crate) enum Step {
    /// Handle the next input.
    Stay,
    /// Draw the screen again.
    Redraw,
    /// Close the screen.
    Leave,
    /// Give the terminal to the editor, and pass this request to [`QueueView::edit`].
    Edit(EditRequest),
}

/// A text for the user's editor.
pub(crate) struct EditRequest {
    id: Id,
    text: String,
}

/// The view of the queue.
pub(crate) struct QueueView {
    host: Host,
    styles: Styles,
    state: State,
    sender: SyncSender<Event>,
    receiver: Receiver<Event>,
    /// When the effect of the selected proposal was last computed.
    effect_updated: Option<Instant>,
    /// When the scanner's warnings were last read.
    warnings_updated: Option<Instant>,
}

impl QueueView {
    /// Reads the queue, and starts the thread that polls it until the view is dropped.
    ///
    /// # Errors
    /// Returns an error if the queue cannot be read.
    pub(crate) fn open(host: &Host, styles: Styles, parse: ParseChange) -> Result<Self, CliError> {
        let mut watcher = QueueWatcher::new(host.home.clone());
        let now = Timestamp::now();
        let first = watcher.poll(now).map_err(queue_error)?.unwrap_or_default();
        let (sender, receiver) = sync_channel(NEWS);
        let poll_sender = sender.clone();
        std::thread::spawn(move || poll_queue(watcher, &poll_sender));
        let (host, state) = (host.clone(), State::new(first, now, parse));
        Ok(Self { host, styles, state, sender, receiver, effect_updated: None, warnings_updated: None })
    }

    /// Prepares the view for an area of this many columns and rows.
    pub(crate) fn prepare(&mut self, size: (u16, u16)) {
        self.update_effect();
        self.update_warnings();
        self.state.lay_out(size, self.styles, Timestamp::now());
    }

    /// Draws the view, which [`QueueView::prepare`] has prepared for this area.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        draw::draw(frame, area, &self.state, self.styles, Timestamp::now());
    }

    /// Handles an input event.
    pub(crate) fn typed(&mut self, typed: Typed) -> Step {
        let effect = match typed {
            Typed::Key(key) => self.state.press(key, Timestamp::now()),
            Typed::Pasted(text) => {
                self.state.paste(&text);
                Effect::Nothing
            }
            Typed::Resized => return Step::Redraw,
        };
        match effect {
            Effect::Nothing => {}
            Effect::Leave => return Step::Leave,
            Effect::Answer(answers) => {
                answers.into_iter().for_each(|(pending, decision)| self.answer(pending, decision));
            }
            Effect::Change { change, weaken } => self.change(change, weaken),
            Effect::Edit { id, text } => return Step::Edit(EditRequest { id, text }),
        }
        Step::Stay
    }

    /// Handles the events of other threads.
    pub(crate) fn receive(&mut self) {
        while let Ok(event) = self.receiver.try_recv() {
            let now = Timestamp::now();
            match event {
                Event::Polled(listing) => self.state.poll_succeeded(listing, now),
                Event::PollFailed(why) => self.state.poll_failed(why),
                Event::Answered { id, outcome } => self.state.answered(&id, outcome, now),
                Event::Changed { change, outcome } => self.state.routes_changed(change, outcome),
            }
        }
    }

    /// Whether an answer is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.is_busy()
    }

    /// Whether the list is shown, without a window above it. The caller may then handle keys that the list does not
    /// use.
    pub(crate) fn is_at_list(&self) -> bool {
        self.state.view() == View::List && self.state.overlay().is_none()
    }

    /// Selects the first proposal of this bottle, if it has one.
    pub(crate) fn select_bottle(&mut self, slug: &str) {
        self.state.select_bottle(slug);
    }

    /// Selects the first proposal of this bottle. If the bottle has no proposal, offers to allow `denied_host`.
    pub(super) fn select_or_offer(&mut self, slug: &Slug, denied_host: Option<&str>) {
        self.state.select_bottle(slug.as_str());
        if let Some(host) = denied_host {
            self.state.offer_to_allow(slug, host);
        }
    }

    /// Returns the routes that could not be saved and that the user must save by hand.
    pub(crate) fn into_unsaved(self) -> UnsavedRoutes {
        self.state.into_unsaved()
    }

    /// Runs the user's editor. The screen must have released the terminal.
    pub(crate) fn edit(&mut self, EditRequest { id, text }: EditRequest) {
        let edited = edit(&self.host, &text);
        self.state.edited(&id, &text, edited);
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
            let answered = block_on(async { Ok(answer::answer(&host, &pending, decision).await?) });
            let outcome = answered.map_err(|error| error.failure.message);
            // If the user has closed the screen, the receiver is dropped, and the result is only in the audit log.
            let _ = sender.send(Event::Answered { id: pending.proposal.id, outcome });
        });
    }

    fn change(&self, change: TypedChange, weaken: Consent) {
        let (host, sender) = (self.host.clone(), self.sender.clone());
        std::thread::spawn(move || {
            let outcome = change.send(&host, weaken).map_err(|error| error.failure.message);
            // If the user has closed the screen, the receiver is dropped, and the result is only in the audit log.
            let _ = sender.send(Event::Changed { change, outcome });
        });
    }
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

fn edit(host: &Host, text: &str) -> Edited {
    let draft = match Draft::new(host, "routes.yaml", text) {
        Ok(draft) => draft,
        Err(error) => return Edited { text: None, failed: Some(error.failure.message) },
    };
    let failed = draft.edit(host).err().map(|error| error.failure.message);
    match draft.read() {
        Ok(text) => Edited { text: Some(text), failed },
        Err(error) => Edited { text: None, failed: failed.or(Some(error.failure.message)) },
    }
}

/// Computes the effect of proposed routes. `before` is the previous result. Its parts that still apply are reused.
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
