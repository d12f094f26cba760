//! The state of the screen, and how keys and events change it. This module does not draw, read files or wait.

use bottle_host::budget::OnSpent;
use bottle_host::budget::parse_tokens;
use bottle_keeper::ledger::GroupBy;
use bottle_keeper::protocol::BudgetChange;
use bottle_policy::names::Slug;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::{SignedDuration, Timestamp};

use crate::screens::supervise::{InputResult, TypedLine};
use bottle_lib::dashboard::action::Action;
use bottle_lib::dashboard::gather::{Gathered, Wanted};
use bottle_lib::dashboard::model::{
    Bottle, Detail, Filter, GROUPINGS, Group, Meter, Period, Snapshot, UsageTable,
};
use bottle_lib::dashboard::words;

/// The number of lines that a page key moves in a list.
const PAGE: usize = 10;

/// How long a message about a finished action stays visible.
const MESSAGE_STAYS: SignedDuration = SignedDuration::from_secs(20);

/// The state of the screen.
#[derive(Debug)]
pub(super) struct State {
    snapshot: Snapshot,
    detail: Option<Detail>,
    usage: Option<UsageTable>,
    view: View,
    by: GroupBy,
    period: Period,
    /// The words that the bottles of the list must contain.
    filter: Filter,
    /// Whether the list shows ended bottles without a filter.
    unfolded: bool,
    /// The bottle under the cursor.
    selected: Option<Slug>,
    /// The number of lines above the visible part of a long text.
    scroll: usize,
    /// The largest useful value of `scroll`. The last layout computed it.
    scroll_max: usize,
    overlay: Option<Overlay>,
    message: Option<Message>,
    /// The action in progress.
    doing: Option<String>,
    /// Whether the user has pressed `q` while an action is in progress.
    leaving: bool,
}

/// The current view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum View {
    /// All bottles.
    #[default]
    Bottles,
    /// The selected bottle in full.
    Bottle,
    /// Usage tables.
    Usage,
    /// The supervise queue.
    Proposals,
}

/// A question or a help page above the view.
#[derive(Debug)]
pub(super) enum Overlay {
    Help,
    /// Asks the user to confirm this action.
    Confirm(Action),
    /// The input line for the filter of the list. Each key changes the filter.
    Filter(TypedLine),
    /// The input line for the number of tokens by which a budget is raised.
    Amount {
        meters: Vec<Meter>,
        at: usize,
        line: TypedLine,
    },
}

/// A message to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) words: String,
    pub(super) tone: Tone,
    until: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Plain,
    Bad,
}

/// An action that the caller must carry out.
#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    Nothing,
    Leave,
    /// Carry out this action, and pass the result to [`State::carried_out`].
    CarryOut(Box<Action>),
    /// Select the first proposal of this bottle. The view is already [`View::Proposals`].
    Select(Slug),
}

impl State {
    pub(super) fn new(gathered: Gathered) -> Self {
        let Gathered { snapshot, detail, usage } = gathered;
        let mut state = Self {
            snapshot,
            detail,
            usage,
            view: View::Bottles,
            by: GroupBy::Day,
            period: Period::default(),
            filter: Filter::default(),
            unfolded: false,
            selected: None,
            scroll: 0,
            scroll_max: 0,
            overlay: None,
            message: None,
            doing: None,
            leaving: false,
        };
        state.select(0);
        state
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    pub(super) fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    pub(super) fn by(&self) -> GroupBy {
        self.by
    }

    pub(super) fn period(&self) -> Period {
        self.period
    }

    pub(super) fn scroll(&self) -> usize {
        self.scroll
    }

    /// Returns the bottles of the list. The bottle under the cursor stays in the list until the cursor moves.
    pub(super) fn bottles(&self) -> Vec<&Bottle> {
        let is_selected = |bottle: &Bottle| Some(&bottle.slug) == self.selected.as_ref();
        self.snapshot.bottles.iter().filter(|bottle| self.shows(bottle) || is_selected(bottle)).collect()
    }

    /// Whether the filter shows this bottle. Without a filter, ended bottles are folded.
    fn shows(&self, bottle: &Bottle) -> bool {
        match self.filter.is_empty() {
            true => self.unfolded || bottle.group() != Group::Ended,
            false => self.filter.shows(bottle),
        }
    }

    /// Describes the bottles that the list does not show. `None` if the list shows all bottles.
    pub(super) fn hidden(&self) -> Option<String> {
        let (shown, all) = (self.bottles().len(), self.snapshot.bottles.len());
        match self.filter.is_empty() {
            _ if shown == all && self.filter.is_empty() => None,
            true => Some(format!("{} ended: `e` shows them", all - shown)),
            false => Some(format!("{shown} of {all} with `{}`; Esc shows all", self.filter.text())),
        }
    }

    /// Returns the bottle under the cursor.
    pub(super) fn current(&self) -> Option<&Bottle> {
        self.bottles().get(self.at()).copied()
    }

    /// Returns the position of the cursor.
    pub(super) fn at(&self) -> usize {
        let of = |bottle: &Bottle| Some(&bottle.slug) == self.selected.as_ref();
        self.bottles().into_iter().position(of).unwrap_or(0)
    }

    /// Returns the detail of the bottle under the cursor, if it was already gathered.
    pub(super) fn detail(&self) -> Option<&Detail> {
        self.detail.as_ref().filter(|detail| Some(&detail.slug) == self.selected.as_ref())
    }

    /// Returns the usage table of the current view, if it was already gathered.
    pub(super) fn usage(&self) -> Option<&UsageTable> {
        self.usage.as_ref().filter(|table| table.by == self.by && table.period == self.period)
    }

    /// Returns the data that must be gathered for the current view.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            detail: self.selected.clone().filter(|_| self.view == View::Bottle),
            usage: (self.view == View::Usage).then_some((self.by, self.period)),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.doing.is_some()
    }

    /// Returns the message to show: the latest message, otherwise the action in progress, otherwise a problem.
    pub(super) fn message(&self, now: Timestamp) -> Option<Message> {
        let lasts = |message: &&Message| message.until.is_none_or(|until| now < until);
        let plain = |words: String, tone| Some(Message { words, tone, until: None });
        self.message
            .as_ref()
            .filter(lasts)
            .cloned()
            .or_else(|| plain(format!("{} …", self.doing.as_ref()?), Tone::Plain))
            .or_else(|| {
                let more = self.snapshot.problems.len().saturating_sub(1);
                let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
                plain(format!("{}{more}", self.snapshot.problems.first()?), Tone::Bad)
            })
    }

    /// Limits the scroll offset to a text of this many lines on a screen with room for `rows`.
    pub(super) fn fit(&mut self, lines: usize, rows: usize) {
        self.scroll_max = lines.saturating_sub(rows);
        self.scroll = self.scroll.min(self.scroll_max);
    }

    // Methods that handle events.

    /// Handles new data from the gatherer.
    pub(super) fn gathered(&mut self, gathered: Gathered) {
        let at = self.at();
        let Gathered { snapshot, detail, usage } = gathered;
        self.snapshot = snapshot;
        if detail.is_some() {
            self.detail = detail;
        }
        if usage.is_some() {
            self.usage = usage;
        }
        let is_there = |slug: &Slug| self.snapshot.bottles.iter().any(|bottle| bottle.slug == *slug);
        let gone = self.selected.clone().filter(|slug| !is_there(slug));
        if self.selected.is_none() || gone.is_some() {
            self.select(at);
        }
        if let Some(slug) = gone
            && self.view == View::Bottle
        {
            self.show(View::Bottles);
            self.say(Tone::Plain, format!("{slug} is gone"), None);
        }
    }

    /// Handles the end of an action.
    pub(super) fn carried_out(&mut self, result: Result<String, String>, now: Timestamp) {
        self.doing = None;
        self.leaving = false;
        let (tone, words) = match result {
            Ok(words) => (Tone::Good, words),
            Err(words) => (Tone::Bad, words),
        };
        self.say(tone, words, now.checked_add(MESSAGE_STAYS).ok());
    }

    fn say(&mut self, tone: Tone, words: impl Into<String>, until: Option<Timestamp>) -> Effect {
        self.message = Some(Message { words: words.into(), tone, until });
        Effect::Nothing
    }

    // Methods that handle keys.

    /// Handles a key. In the view of proposals, the caller passes only keys that this view does not use.
    pub(super) fn press(&mut self, key: KeyEvent) -> Effect {
        self.message = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match self.overlay.take() {
            Some(Overlay::Help) => return Effect::Nothing,
            Some(Overlay::Confirm(action)) => {
                if matches!(key.code, KeyCode::Char('y')) && !control {
                    self.doing = Some(action.doing());
                    return Effect::CarryOut(Box::new(action));
                }
                return self.say(Tone::Plain, "nothing was done", None);
            }
            Some(Overlay::Amount { meters, at, line }) => return self.type_amount(meters, at, line, key),
            Some(Overlay::Filter(line)) => return self.type_filter(line, key),
            None => {}
        }
        if matches!(key.code, KeyCode::Char('q')) || control && matches!(key.code, KeyCode::Char('c')) {
            return self.leave();
        }
        self.leaving = false;
        match key.code {
            _ if control => {}
            KeyCode::Char('?') => self.overlay = Some(Overlay::Help),
            KeyCode::Char('1') => self.show(View::Bottles),
            KeyCode::Char('2') => self.show(View::Usage),
            KeyCode::Char('3') => self.show(View::Proposals),
            KeyCode::Tab => self.show(self.next_view(true)),
            KeyCode::BackTab => self.show(self.next_view(false)),
            code => {
                return match self.view {
                    View::Bottles => self.in_list(code),
                    View::Bottle => self.in_bottle(code),
                    View::Usage => self.in_usage(code),
                    View::Proposals => {
                        if matches!(code, KeyCode::Esc) {
                            self.show(View::Bottles);
                        }
                        Effect::Nothing
                    }
                };
            }
        }
        Effect::Nothing
    }

    /// Inserts pasted text into the input line. Pasted text is never handled as keys.
    pub(super) fn paste(&mut self, text: &str) {
        match &mut self.overlay {
            Some(Overlay::Amount { line, .. }) => line.paste(text),
            Some(Overlay::Filter(line)) => {
                line.paste(text);
                let text = line.text().to_owned();
                self.set_filter(&text);
            }
            _ => drop(self.say(Tone::Plain, "pasted text does nothing", None)),
        }
    }

    fn leave(&mut self) -> Effect {
        if self.is_busy() && !self.leaving {
            self.leaving = true;
            return self.say(Tone::Plain, "an action is in progress; press `q` again to quit", None);
        }
        Effect::Leave
    }

    pub(super) fn show(&mut self, view: View) {
        self.view = view;
        self.scroll = 0;
    }

    fn next_view(&self, forward: bool) -> View {
        match (self.view, forward) {
            (View::Bottles | View::Bottle, true) | (View::Proposals, false) => View::Usage,
            (View::Usage, true) | (View::Bottles | View::Bottle, false) => View::Proposals,
            (View::Proposals, true) | (View::Usage, false) => View::Bottles,
        }
    }

    fn select(&mut self, at: usize) {
        let bottles = self.bottles();
        let last = bottles.len().saturating_sub(1);
        self.selected = bottles.get(at.min(last)).map(|bottle| bottle.slug.clone());
    }

    /// Changes the filter. If it does not show the bottle under the cursor, the cursor moves to the first bottle.
    fn set_filter(&mut self, text: &str) {
        self.filter = Filter::new(text, None);
        self.leave_hidden();
    }

    fn leave_hidden(&mut self) {
        if !self.current().is_some_and(|bottle| self.shows(bottle)) {
            self.selected = None;
            self.select(0);
        }
    }

    fn type_filter(&mut self, mut line: TypedLine, key: KeyEvent) -> Effect {
        match line.press(key) {
            InputResult::Cancelled => self.set_filter(""),
            InputResult::Done => {}
            InputResult::Open => {
                self.set_filter(line.text());
                self.overlay = Some(Overlay::Filter(line));
            }
        }
        Effect::Nothing
    }

    fn in_list(&mut self, code: KeyCode) -> Effect {
        let (at, length) = (self.at(), self.bottles().len());
        match code {
            KeyCode::Char('/') => {
                let mut line = TypedLine::default();
                line.paste(self.filter.text());
                self.overlay = Some(Overlay::Filter(line));
            }
            KeyCode::Esc => self.set_filter(""),
            KeyCode::Char('e') => {
                self.unfolded = !self.unfolded;
                self.leave_hidden();
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(at.checked_sub(1).unwrap_or(length)),
            KeyCode::Down | KeyCode::Char('j') => self.select(if at + 1 < length { at + 1 } else { 0 }),
            KeyCode::PageUp => self.select(at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(at + PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(length),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') if length > 0 => self.show(View::Bottle),
            code => return self.act(code),
        }
        Effect::Nothing
    }

    fn in_bottle(&mut self, code: KeyCode) -> Effect {
        let (at, length) = (self.at(), self.bottles().len());
        match code {
            KeyCode::Left | KeyCode::Char('h') | KeyCode::Esc | KeyCode::Backspace => {
                self.show(View::Bottles);
            }
            KeyCode::Char('n') => {
                self.select(if at + 1 < length { at + 1 } else { 0 });
                self.scroll = 0;
            }
            KeyCode::Char('N') => {
                self.select(at.checked_sub(1).unwrap_or(length));
                self.scroll = 0;
            }
            code if self.move_text(code) => {}
            code => return self.act(code),
        }
        Effect::Nothing
    }

    fn in_usage(&mut self, code: KeyCode) -> Effect {
        let at = GROUPINGS.iter().position(|(by, _)| *by == self.by).unwrap_or(0);
        let to = match code {
            KeyCode::Char(letter @ ('d' | 'p' | 'a' | 'b' | 'm')) => {
                GROUPINGS.iter().position(|(_, name)| name.starts_with(letter))
            }
            KeyCode::Right | KeyCode::Char('l') => Some((at + 1) % GROUPINGS.len()),
            KeyCode::Left | KeyCode::Char('h') => Some((at + GROUPINGS.len() - 1) % GROUPINGS.len()),
            KeyCode::Char('t') => {
                self.period = self.period.next();
                Some(at)
            }
            KeyCode::Esc => {
                self.show(View::Bottles);
                None
            }
            code => {
                self.move_text(code);
                None
            }
        };
        if let Some(to) = to {
            self.by = GROUPINGS[to].0;
            self.scroll = 0;
        }
        Effect::Nothing
    }

    /// Scrolls a text. Returns false if the key does not scroll.
    fn move_text(&mut self, code: KeyCode) -> bool {
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::PageUp => self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll + PAGE,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll_max,
            _ => return false,
        };
        self.scroll = to.min(self.scroll_max);
        true
    }

    /// Handles the keys that act on the bottle under the cursor.
    fn act(&mut self, code: KeyCode) -> Effect {
        let Some(bottle) = self.current() else { return Effect::Nothing };
        let slug = bottle.slug.clone();
        match code {
            KeyCode::Char('s') if bottle.can_stop() => self.confirm(Action::Stop { slug }),
            KeyCode::Char('s') => self.say(Tone::Plain, format!("{slug} does not run"), None),
            KeyCode::Char(letter @ ('z' | 'c' | 'f' | 'x')) if bottle.can_stop() => {
                let order = match letter {
                    'z' if bottle.paused.is_some() => BudgetChange::Continue,
                    'z' => BudgetChange::Stop(OnSpent::Pause),
                    'c' if bottle.cut_off => BudgetChange::Continue,
                    'c' => BudgetChange::Stop(OnSpent::Cutoff),
                    'f' => BudgetChange::Stop(OnSpent::Freeze),
                    _ => BudgetChange::Stop(OnSpent::Kill),
                };
                self.confirm(Action::Order { slug, order })
            }
            KeyCode::Char('z' | 'c' | 'f' | 'x') => {
                self.say(Tone::Plain, format!("{slug} does not run"), None)
            }
            KeyCode::Char('d') if bottle.can_discard() => self.confirm(Action::Discard { slug }),
            KeyCode::Char('d') => {
                let words = format!("{slug} has no kept files; only those can be discarded");
                self.say(Tone::Plain, words, None)
            }
            KeyCode::Char('b') if bottle.meters.is_empty() => {
                let words =
                    format!("no budget governs {slug}; `bottle help manifests` shows how to write one");
                self.say(Tone::Plain, words, None)
            }
            KeyCode::Char('b') => {
                let meters = bottle.meters.clone();
                self.overlay = Some(Overlay::Amount { meters, at: 0, line: TypedLine::default() });
                Effect::Nothing
            }
            KeyCode::Char('p') => {
                self.show(View::Proposals);
                Effect::Select(slug)
            }
            _ => Effect::Nothing,
        }
    }

    fn confirm(&mut self, action: Action) -> Effect {
        if self.is_busy() {
            return self.say(Tone::Plain, "another action is in progress", None);
        }
        self.overlay = Some(Overlay::Confirm(action));
        Effect::Nothing
    }

    fn type_amount(&mut self, meters: Vec<Meter>, at: usize, mut line: TypedLine, key: KeyEvent) -> Effect {
        match key.code {
            KeyCode::Up | KeyCode::BackTab => {
                let at = (at + meters.len() - 1) % meters.len().max(1);
                self.overlay = Some(Overlay::Amount { meters, at, line });
                return Effect::Nothing;
            }
            KeyCode::Down | KeyCode::Tab => {
                let at = (at + 1) % meters.len().max(1);
                self.overlay = Some(Overlay::Amount { meters, at, line });
                return Effect::Nothing;
            }
            _ => {}
        }
        match line.press(key) {
            InputResult::Cancelled => self.say(Tone::Plain, "nothing was done", None),
            InputResult::Open => {
                self.overlay = Some(Overlay::Amount { meters, at, line });
                Effect::Nothing
            }
            InputResult::Done => match (parse_tokens(line.text().trim()), meters.get(at)) {
                (Ok(tokens), Some(Meter { declared, run, standing, .. })) => self.confirm(Action::Raise {
                    declared: declared.clone(),
                    run: run.clone(),
                    tokens,
                    limit: standing.limit,
                }),
                (Err(why), _) => {
                    self.overlay = Some(Overlay::Amount { meters, at, line });
                    self.say(Tone::Bad, format!("the number of tokens {why}"), None)
                }
                (Ok(_), None) => Effect::Nothing,
            },
        }
    }

    /// Whether the question at the bottom of the screen is about an action that deletes work.
    pub(super) fn asks_to_delete(&self) -> bool {
        matches!(&self.overlay, Some(Overlay::Confirm(action)) if action.is_destructive())
    }

    /// Returns the question at the bottom of the screen, and the typed text.
    pub(super) fn prompt(&self) -> Option<(Vec<String>, String)> {
        match self.overlay.as_ref()? {
            Overlay::Help => None,
            Overlay::Filter(line) => {
                let about =
                    "Type words of a name, an agent or a state. Enter keeps the filter, Esc drops it.";
                Some((vec![about.to_owned()], format!("Filter: {}", line.text())))
            }
            Overlay::Confirm(action) => {
                Some((vec![action.effect()], format!("{} [y/N] ", action.question())))
            }
            Overlay::Amount { meters, at, line } => {
                let meter = meters.get(*at)?;
                let standing = meter.standing;
                let about = format!(
                    "{} of {} tokens are spent, {} reserved. Type how many tokens to add{}; Esc cancels.",
                    words::grouped(standing.spent),
                    words::grouped(standing.limit),
                    words::grouped(standing.reserved),
                    if meters.len() > 1 { ", or press Tab for the next budget" } else { "" }
                );
                let question = format!("Raise {} by: {}", words::budget(&meter.declared), line.text());
                Some((vec![about], question))
            }
        }
    }
}
