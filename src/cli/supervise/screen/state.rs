//! The state of the screen, and the effect of keys, queue polls and results on it. Pure: it neither draws, reads
//! files nor waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bottle_contract::names::Name;
use bottle_contract::proposal;
use bottle_contract::queue::{Id, Proposal};
use bottle_queue::{Listing, Pending, State as Stands};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::Timestamp;

use super::laid::Laid;
use super::line::{self, TypedLine};
use super::rows::Rows;
use crate::cli::style::Styles;
use crate::cli::supervise::answer::{Came, Decision, Unsaved, checked};
use crate::cli::supervise::opens::Opens;
use crate::cli::supervise::scope::{Holds, Wanted};
use crate::cli::supervise::waiting::{passed_over, span, stands};

/// Lines that a page key moves by in the list.
const PAGE: usize = 10;

/// The state of the screen.
#[derive(Debug)]
pub(super) struct State {
    rows: Rows,
    view: View,
    over: Option<Over>,
    said: Option<Said>,
    known: Option<Known>,
    /// Replacement routes that the user wrote.
    drafts: BTreeMap<Id, Draft>,
    /// Scopes that the user chose.
    scopes: BTreeMap<Id, Wanted>,
    /// Answers in progress.
    under_way: BTreeMap<Id, UnderWay>,
    damaged: Vec<String>,
    /// Routes that could not be saved, by file.
    unsaved: Vec<(PathBuf, Unsaved)>,
    /// The user pressed `q` while an answer is in progress.
    leaving: bool,
    laid: Laid,
}

/// The current view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The list, with a preview of the selected proposal.
    List,
    /// The selected proposal in full.
    Detail {
        /// Lines above the visible part.
        scroll: usize,
    },
}

/// An overlay.
#[derive(Debug)]
pub(super) enum Over {
    /// The key help.
    Help,
    /// The input of a reason.
    Reason {
        /// The proposal.
        id: Id,
        /// Whether it approves or rejects.
        yes: bool,
        line: TypedLine,
    },
}

/// A message to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) words: String,
    pub(super) tone: Tone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    /// Success.
    Good,
    Plain,
    /// Failure.
    Bad,
}

/// The computed effect of the selected proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) id: Id,
    /// The routes that would apply.
    pub(super) text: String,
    /// The requested scope, and why it cannot be used.
    pub(super) wanted: Wanted,
    pub(super) holds: Result<Holds, String>,
    /// Bottle files of the user that it can be saved to.
    pub(super) files: Vec<Name>,
    /// None when the routes are unknown.
    pub(super) opens: Option<Result<Opens, String>>,
    /// What became live after the proposal was made, or why that is unknown; none if nothing did.
    pub(super) since: Option<Result<Vec<String>, String>>,
}

/// The input for computing [`Known`].
pub(super) struct Wants<'a> {
    pub(super) pending: &'a Pending,
    /// The routes that would apply.
    pub(super) text: &'a str,
    pub(super) scope: Wanted,
}

/// Replacement routes of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    /// The text as the user left it.
    pub(super) text: String,
    /// The canonical form, or the error in it.
    pub(super) checked: Result<String, String>,
}

#[derive(Debug)]
struct UnderWay {
    since: Timestamp,
    what: &'static str,
}

/// An action outside the state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Leave,
    /// Carry out the answer, and report it to [`State::answered`].
    Answer {
        pending: Box<Pending>,
        decision: Decision,
    },
    /// Let the user edit this, and report it to [`State::edited`].
    Edit {
        id: Id,
        text: String,
    },
}

/// The result of an editor run.
#[derive(Debug, Default)]
pub(super) struct Edited {
    /// The text of the file.
    pub(super) text: Option<String>,
    /// Why the text may be unintended.
    pub(super) failed: Option<String>,
}

impl State {
    /// Creates the state from a first poll.
    pub(super) fn new(listing: Listing, now: Timestamp) -> Self {
        let mut state = Self {
            rows: Rows::default(),
            view: View::List,
            over: None,
            said: None,
            known: None,
            drafts: BTreeMap::new(),
            scopes: BTreeMap::new(),
            under_way: BTreeMap::new(),
            damaged: Vec::new(),
            unsaved: Vec::new(),
            leaving: false,
            laid: Laid::default(),
        };
        state.found(listing, now);
        state.rows.jump(0);
        state
    }

    pub(super) fn rows(&self) -> &Rows {
        &self.rows
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    pub(super) fn over(&self) -> Option<&Over> {
        self.over.as_ref()
    }

    pub(super) fn laid(&self) -> &Laid {
        &self.laid
    }

    /// Returns the effect of the selected proposal, if it is current.
    pub(super) fn known(&self) -> Option<&Known> {
        let Wants { pending, text, scope } = self.wants()?;
        let same =
            |known: &&Known| known.id == pending.proposal.id && known.text == text && known.wanted == scope;
        self.known.as_ref().filter(same)
    }

    pub(super) fn draft(&self, id: &Id) -> Option<&Draft> {
        self.drafts.get(id)
    }

    /// Names the answer in progress for a proposal.
    pub(super) fn under_way(&self, id: &Id) -> Option<&'static str> {
        self.under_way.get(id).map(|under_way| under_way.what)
    }

    /// Returns the routes that the user has to save by hand.
    pub(super) fn into_unsaved(self) -> Vec<(PathBuf, Unsaved)> {
        self.unsaved
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Returns what [`State::learn`] needs about the selected proposal.
    pub(super) fn wants(&self) -> Option<Wants<'_>> {
        let row = self.rows.current().filter(|row| !row.pending.proposal.tool.reports())?;
        let edited = self.drafts.get(row.id()).and_then(|draft| draft.checked.as_deref().ok());
        let text = edited.unwrap_or(&row.pending.proposal.proposed_file);
        let scope = self.scopes.get(row.id()).cloned().unwrap_or_default();
        Some(Wants { pending: &row.pending, text, scope })
    }

    pub(super) fn learn(&mut self, known: Known) {
        if self.known.as_ref() != Some(&known) {
            self.known = Some(known);
            self.laid.forget();
        }
    }

    /// Prepares the drawing for a terminal of this size.
    pub(super) fn lay_out(&mut self, size: (u16, u16), styles: Styles, now: Timestamp) {
        let mut laid = std::mem::take(&mut self.laid);
        laid.fit(self, size, styles, now);
        if let View::Detail { scroll } = &mut self.view {
            *scroll = laid.clamp(*scroll);
        }
        self.laid = laid;
    }

    /// Returns the message: the latest one, else the answer in progress, else a problem of the queue.
    pub(super) fn word(&self, now: Timestamp) -> Option<Said> {
        let plain = |words| Said { words, tone: Tone::Plain };
        let doing = || {
            let (id, under_way) = self.under_way.iter().next()?;
            let slug = self.rows.get(id).map(|row| row.pending.proposal.bottle_slug.to_string());
            let took = span(now.duration_since(under_way.since));
            Some(plain(format!("{} for {} … {took}", under_way.what, slug.unwrap_or_default())))
        };
        let damaged = || {
            let more = self.damaged.len().saturating_sub(1);
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            Some(Said { words: format!("{}{more}", self.damaged.first()?), tone: Tone::Bad })
        };
        self.said.clone().or_else(doing).or_else(damaged)
    }

    fn say(&mut self, tone: Tone, words: impl Into<String>) -> Effect {
        self.said = Some(Said { words: words.into(), tone });
        Effect::Nothing
    }

    // Events.

    /// Handles a poll of the queue.
    pub(super) fn found(&mut self, listing: Listing, now: Timestamp) {
        let Listing { mut pending, damaged } = listing;
        // A proposal that another process is answering may come back, and its draft with it.
        let there: BTreeSet<Id> = pending.iter().map(|pending| pending.proposal.id.clone()).collect();
        // Another process's answer will be consumed soon; an answer of this screen stays until it is done.
        pending.retain(|pending| {
            pending.state != Stands::Answered && !self.under_way.contains_key(&pending.proposal.id)
        });
        pending.extend(self.under_way.keys().filter_map(|id| Some(self.rows.get(id)?.pending.clone())));
        pending.sort_by_key(|pending| (pending.proposal.arrival_timestamp, pending.proposal.id.clone()));
        self.damaged = damaged.iter().map(passed_over).collect();
        let before = self.rows.current().map(|row| (row.id().clone(), name(&row.pending.proposal)));
        self.rows.replace(pending, now);
        if let Some((id, name)) = before
            && self.rows.get(&id).is_none()
        {
            self.lost(&id, &name);
        }
        self.drafts.retain(|id, _| there.contains(id) || self.under_way.contains_key(id));
        self.scopes.retain(|id, _| there.contains(id) || self.under_way.contains_key(id));
        self.laid.forget();
    }

    /// Handles a failed poll.
    pub(super) fn unfound(&mut self, why: String) {
        self.say(Tone::Bad, why);
    }

    /// Handles the loss of a proposal that the user was looking at.
    fn lost(&mut self, id: &Id, name: &str) {
        let asked = matches!(&self.over, Some(Over::Reason { id: of, .. }) if of == id);
        if asked {
            self.over = None;
        }
        if asked || self.view != View::List {
            self.view = View::List;
            let words = format!("{name} no longer waits: another process answered it, or the agent withdrew it");
            self.say(Tone::Bad, words);
        }
    }

    /// Handles the result of an answer.
    pub(super) fn answered(&mut self, id: &Id, came: Result<Came, String>, now: Timestamp) {
        self.under_way.remove(id);
        self.leaving = false;
        let name = self.rows.get(id).map_or_else(|| "it".to_owned(), |row| name(&row.pending.proposal));
        match came {
            Ok(Came { words, brought, saved, .. }) => {
                let brought =
                    if brought.is_empty() { String::new() } else { format!(": {}", brought.join("; ")) };
                let unsaved = saved.and_then(|saved| saved.unsaved.map(|unsaved| (saved.path, unsaved)));
                let (tone, printed) = match &unsaved {
                    Some(_) => (Tone::Bad, "; the routes are printed when you quit"),
                    None => (Tone::Good, ""),
                };
                self.say(tone, format!("{name} {words}{printed}{brought}"));
                self.unsaved.extend(unsaved);
                if self.rows.current().is_some_and(|row| row.id() == id) {
                    self.view = View::List;
                }
                self.rows.remove(id, now);
                self.drafts.remove(id);
            }
            Err(why) => drop(self.say(Tone::Bad, format!("{name}: {why}"))),
        }
        self.laid.forget();
    }

    /// Handles the end of an editor run; `given` is the text before it.
    pub(super) fn edited(&mut self, id: &Id, given: &str, edited: Edited) {
        self.laid.forget();
        let Edited { text, failed } = edited;
        let changed = text.filter(|text| text != given);
        let Some(text) = changed else {
            let tone = if failed.is_some() { Tone::Bad } else { Tone::Plain };
            self.say(tone, failed.unwrap_or_else(|| "nothing was changed".to_owned()));
            return;
        };
        if says_nothing(&text) && failed.is_none() {
            self.drafts.remove(id);
            self.say(Tone::Plain, "the file was empty: the proposal is unchanged");
            return;
        }
        let draft = Draft { checked: checked(&text), text };
        let (tone, words) = match (&failed, &draft.checked) {
            (Some(why), _) => (Tone::Bad, format!("{why}; your edit is kept: `m` continues it")),
            (None, Err(why)) => (
                Tone::Bad,
                format!("this edit cannot be applied: {why}; `m` continues it, `u` drops it"),
            ),
            (None, Ok(_)) => (
                Tone::Plain,
                "this is your edit: `a` approves it, `m` continues it, `u` drops it".to_owned(),
            ),
        };
        self.drafts.insert(id.clone(), draft);
        self.view = View::Detail { scroll: 0 };
        self.say(tone, words);
    }

    // Keys.

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent, now: Timestamp) -> Effect {
        self.said = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match self.over.take() {
            Some(Over::Help) => return Effect::Nothing,
            Some(Over::Reason { id, yes, line }) => return self.type_reason(id, yes, line, key, now),
            None => {}
        }
        let leaves =
            matches!(key.code, KeyCode::Char('q')) || control && matches!(key.code, KeyCode::Char('c'));
        if leaves {
            return self.leave();
        }
        self.leaving = false;
        match key.code {
            _ if control => Effect::Nothing,
            KeyCode::Char('?') => {
                self.over = Some(Over::Help);
                Effect::Nothing
            }
            KeyCode::Char('a') => self.approve(now),
            KeyCode::Char('m') => self.modify(now),
            KeyCode::Char('r') => self.reject(now),
            KeyCode::Char('o') => self.choose_scope(),
            KeyCode::Char('u') => self.drop_draft(),
            code => {
                match self.view {
                    View::List => self.move_in_list(code),
                    View::Detail { scroll } => self.move_in_detail(code, scroll),
                }
                Effect::Nothing
            }
        }
    }

    /// Inserts pasted text into a reason; pasted text never acts as keys.
    pub(super) fn paste(&mut self, text: &str) {
        match &mut self.over {
            Some(Over::Reason { line, .. }) => line.paste(text),
            _ => drop(self.say(Tone::Plain, "pasted text decides nothing")),
        }
    }

    fn leave(&mut self) -> Effect {
        if self.is_busy() && !self.leaving {
            self.leaving = true;
            return self.say(
                Tone::Plain,
                "an answer is in progress; press `q` again to quit, and `bottle audit show` shows the result",
            );
        }
        Effect::Leave
    }

    fn move_in_list(&mut self, code: KeyCode) {
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.rows.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.rows.step(1),
            KeyCode::PageUp => self.rows.jump(self.rows.at().saturating_sub(PAGE)),
            KeyCode::PageDown => self.rows.jump(self.rows.at() + PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.rows.jump(0),
            KeyCode::End | KeyCode::Char('G') => self.rows.jump(usize::MAX),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') if self.rows.current().is_some() => {
                self.view = View::Detail { scroll: 0 };
            }
            _ => return,
        }
        self.laid.forget();
    }

    fn move_in_detail(&mut self, code: KeyCode, scroll: usize) {
        let page = self.laid.page_rows().saturating_sub(1).max(1);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => scroll + 1,
            KeyCode::PageUp | KeyCode::Char('b') => scroll.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => scroll + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            KeyCode::Char(way @ ('n' | 'p')) => {
                self.rows.step(if way == 'n' { 1 } else { -1 });
                self.laid.forget();
                0
            }
            KeyCode::Left | KeyCode::Char('h') | KeyCode::Esc | KeyCode::Backspace => {
                self.view = View::List;
                self.laid.forget();
                return;
            }
            _ => return,
        };
        self.view = View::Detail { scroll: self.laid.clamp(to) };
    }

    /// Returns the proposal that a key decides on, or sets a message why it decides nothing.
    fn decided(&mut self, now: Timestamp) -> Option<Pending> {
        let slid = self.rows.has_slid(now);
        let (id, pending) = self.rows.current().map(|row| (row.id().clone(), row.pending.clone()))?;
        if slid {
            let words =
                format!("{} has just moved here; press the key again to decide it", name(&pending.proposal));
            self.say(Tone::Plain, words);
            return None;
        }
        if self.under_way.contains_key(&id) {
            self.say(Tone::Plain, "it is already being answered");
            return None;
        }
        Some(pending)
    }

    /// The same for an approval, which a process must be waiting for.
    fn allowed(&mut self, now: Timestamp) -> Option<Pending> {
        let pending = self.decided(now)?;
        if pending.state == Stands::Waiting && pending.proposal.expires_at > now {
            return Some(pending);
        }
        let words = format!("no process waits for this answer ({}); `r` dismisses it", stands(&pending, now));
        self.say(Tone::Bad, words);
        None
    }

    fn approve(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.allowed(now) else { return Effect::Nothing };
        let id = pending.proposal.id.clone();
        if pending.proposal.tool.reports() {
            self.over = Some(Over::Reason { id, yes: true, line: TypedLine::default() });
            return Effect::Nothing;
        }
        let draft = self.drafts.get(&id).map(|draft| draft.checked.clone());
        // A draft or a saved scope is shown in full first.
        let more = draft.is_some() || matches!(self.scopes.get(&id), Some(Wanted::Saved(_)));
        if self.view == View::List && (more || !self.laid.shows_all_of(&id)) {
            self.view = View::Detail { scroll: 0 };
            self.laid.forget();
            return self.say(Tone::Plain, "this is all of it: press `a` again to approve it");
        }
        let Some(Known { opens, holds, .. }) = self.known().filter(|_| self.laid.is_of(&id)).cloned() else {
            // A key typed ahead: the text was not visible yet.
            return self.say(Tone::Plain, "it was not on the screen yet: press `a` again to approve it");
        };
        if let Some(Err(why)) = opens {
            return self.say(Tone::Bad, format!("it cannot be applied: {why}"));
        }
        let holds = match holds {
            Ok(holds) => holds,
            Err(why) => return self.say(Tone::Bad, format!("{why}; `o` changes the scope")),
        };
        match draft.transpose() {
            Ok(routes) => {
                self.answer(pending, Decision::Approve { reason: None, routes, holds }, "approving", now)
            }
            Err(why) => self.say(
                Tone::Bad,
                format!("your edit cannot be applied: {why}; `m` continues it, `u` drops it"),
            ),
        }
    }

    fn reject(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.decided(now) else { return Effect::Nothing };
        if pending.state != Stands::Waiting {
            let decision = Decision::Reject { reason: String::new() };
            return self.answer(pending, decision, "dismissing", now);
        }
        let id = pending.proposal.id;
        self.over = Some(Over::Reason { id, yes: false, line: TypedLine::default() });
        Effect::Nothing
    }

    fn modify(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.allowed(now) else { return Effect::Nothing };
        let Proposal { id, tool, proposed_file, .. } = &pending.proposal;
        if tool.reports() {
            let words = format!("a proposal of {} has no routes to edit", tool.name());
            return self.say(Tone::Bad, words);
        }
        if let Some(draft) = self.drafts.get(id) {
            return Effect::Edit { id: id.clone(), text: draft.text.clone() };
        }
        match proposal::parse(proposed_file) {
            // Shows the canonical form, never the agent's text.
            Ok(routes) => Effect::Edit {
                id: id.clone(),
                text: format!("{}{}", above(&pending.proposal), routes.render()),
            },
            Err(why) => self.say(Tone::Bad, format!("it cannot be edited: {why}")),
        }
    }

    /// Cycles the scope: this run, one request, each of the user's files.
    fn choose_scope(&mut self) -> Effect {
        let Some(Wants { pending, scope, .. }) = self.wants() else {
            return match self.rows.current() {
                Some(_) => self.say(Tone::Plain, "an approval of this holds for one request only"),
                None => Effect::Nothing,
            };
        };
        let id = pending.proposal.id.clone();
        // Works before the effect of the last choice is computed.
        let Some(known) = self.known.as_ref().filter(|known| known.id == id) else {
            return Effect::Nothing;
        };
        let file = |at: usize| known.files.get(at).cloned().map(|name| Wanted::Saved(Some(name)));
        let next = match &scope {
            Wanted::Run => Some(Wanted::Once),
            Wanted::Once => file(0),
            Wanted::Saved(name) => {
                let at = known.files.iter().position(|file| Some(file) == name.as_ref());
                file(at.map_or(usize::MAX, |at| at + 1))
            }
        };
        let none = known.files.is_empty() && scope == Wanted::Once;
        self.scopes.insert(id.clone(), next.unwrap_or_default());
        self.laid.forget();
        if none {
            let words = format!(
                "scope: this run; you have no bottle file to save to: `bottle supervise approve {} --scope \
                 save:NAME` creates one",
                id.short()
            );
            return self.say(Tone::Plain, words);
        }
        Effect::Nothing
    }

    fn drop_draft(&mut self) -> Effect {
        let Some(id) = self.rows.current().map(|row| row.id().clone()) else { return Effect::Nothing };
        if self.drafts.remove(&id).is_none() {
            return Effect::Nothing;
        }
        self.laid.forget();
        self.say(Tone::Plain, "your edit is dropped: this is the proposal")
    }

    fn type_reason(
        &mut self,
        id: Id,
        yes: bool,
        mut line: TypedLine,
        key: KeyEvent,
        now: Timestamp,
    ) -> Effect {
        match line.press(key) {
            line::Came::Left => Effect::Nothing,
            line::Came::Done if !line.text().trim().is_empty() => {
                let reason = line.text().trim().to_owned();
                let Some(pending) = self.rows.get(&id).map(|row| row.pending.clone()) else {
                    return Effect::Nothing;
                };
                if yes {
                    let decision =
                        Decision::Approve { reason: Some(reason), routes: None, holds: Holds::Run };
                    self.answer(pending, decision, "approving", now)
                } else {
                    self.answer(pending, Decision::Reject { reason }, "rejecting", now)
                }
            }
            came => {
                self.over = Some(Over::Reason { id, yes, line });
                if came == line::Came::Done {
                    self.say(Tone::Plain, "give a reason; Esc cancels");
                }
                Effect::Nothing
            }
        }
    }

    fn answer(&mut self, pending: Pending, decision: Decision, what: &'static str, now: Timestamp) -> Effect {
        self.under_way.insert(pending.proposal.id.clone(), UnderWay { since: now, what });
        Effect::Answer { pending: Box::new(pending), decision }
    }
}

/// Names a proposal in a sentence.
pub(super) fn name(proposal: &Proposal) -> String {
    format!("{} of {}", proposal.tool.name(), proposal.bottle_slug)
}

/// Whether a text has only blank lines and comments.
fn says_nothing(text: &str) -> bool {
    text.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with('#'))
}

/// The comment above the routes in the editor.
fn above(proposal: &Proposal) -> String {
    format!(
        "# Routes that {} requests ({}).\n# Edit them; nothing applies before you see the effect and press `a`.\n",
        proposal.bottle_slug,
        proposal.tool.name(),
    )
}
