//! The state of the screen, and how keys, polls of the queue and results change it. This module does not
//! draw, read files or wait.

mod marks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bottle_instance::proxy_log::Warning;
use bottle_keeper::protocol::{Consent, RouteReport};
use bottle_lib::proposals::answer::{AnswerOutcome, Decision, canonical_routes};
use bottle_lib::proposals::pending::{skipped_file, span, state_text};
use bottle_lib::proposals::review::content;
use bottle_lib::proposals::scope::{GrantScope, RequestedScope};
use bottle_lib::report::UnsavedManifest;
use bottle_policy::names::Slug;
use bottle_policy::proposal;
use bottle_policy::route::edit::Action;
use bottle_protocol::queue::{Id, Proposal};
use bottle_queue::{Listing, Pending, State as ProposalState};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::Timestamp;

use super::layout::ScreenLayout;
use super::line::{self, TypedLine};
use super::rows::Rows;
use super::typed_change::{ParseChange, TypedChange};
use super::view::{Draft, EffectInput, KnownEffect, Message, Overlay, Tone, View};
use crate::console::output::{counted, one_line};
use crate::console::style::Styles;
use bottle_lib::routes::undo_command;

/// The number of lines that a page key moves in the list.
const PAGE: usize = 10;

/// The state of the screen.
#[derive(Debug)]
pub(super) struct State {
    rows: Rows,
    view: View,
    overlay: Option<Overlay>,
    message: Option<Message>,
    known: Option<KnownEffect>,
    /// The scanner's last warnings about a bottle, and the proposal that was shown in full when they were read.
    warnings: Option<(Id, Vec<Warning>)>,
    /// The replacement routes that the user wrote, for each proposal.
    drafts: BTreeMap<Id, Draft>,
    /// The scopes that the user chose, for each proposal.
    scopes: BTreeMap<Id, RequestedScope>,
    /// The marked proposals, which the next answer decides together.
    marked: BTreeSet<Id>,
    /// The version of each proposal that was completely on the screen when the user began to approve it. Only this
    /// version is approved.
    agreed: BTreeMap<Id, Proposal>,
    /// The answers that are in progress, for each proposal.
    in_progress: BTreeMap<Id, InProgress>,
    /// Whether a change of routes is in progress.
    changing: bool,
    damaged: Vec<String>,
    /// The routes that could not be saved, with the path of the manifest to which they belong.
    unsaved: Vec<(PathBuf, UnsavedManifest)>,
    /// Whether the user has pressed `q` while an answer is in progress.
    leaving: bool,
    layout: ScreenLayout,
    /// The function that parses a change of routes that the user typed.
    parse: ParseChange,
}

#[derive(Debug)]
struct InProgress {
    since: Timestamp,
    what: &'static str,
}

/// An action that the caller must carry out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Leave,
    /// Carry out these answers, and pass each result to [`State::answered`].
    Answer(Vec<(Pending, Decision)>),
    /// Change routes, and pass the result to [`State::routes_changed`].
    Change {
        change: TypedChange,
        weaken: Consent,
    },
    /// Open this text in the user's editor, and pass the result to [`State::edited`].
    Edit {
        id: Id,
        text: String,
    },
}

/// The result of running the editor.
#[derive(Debug, Default)]
pub(super) struct Edited {
    /// The edited text. `None` if the file cannot be read.
    pub(super) text: Option<String>,
    /// The reason why the text may not be what the user wants, for example an editor that failed.
    pub(super) failed: Option<String>,
}

impl State {
    /// Creates the state from the first poll of the queue.
    pub(super) fn new(listing: Listing, now: Timestamp, parse: ParseChange) -> Self {
        let mut state = Self {
            rows: Default::default(),
            view: Default::default(),
            overlay: Default::default(),
            message: Default::default(),
            known: Default::default(),
            warnings: Default::default(),
            drafts: Default::default(),
            scopes: Default::default(),
            marked: Default::default(),
            agreed: Default::default(),
            in_progress: Default::default(),
            changing: Default::default(),
            damaged: Default::default(),
            unsaved: Default::default(),
            leaving: Default::default(),
            layout: Default::default(),
            parse,
        };
        state.poll_succeeded(listing, now);
        state.rows.jump(0);
        state
    }

    pub(super) fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Selects the first proposal of this bottle, if it has one.
    pub(super) fn select_bottle(&mut self, slug: &str) {
        let of_bottle = |row: &super::rows::Row| row.pending.proposal.bottle_slug.as_str() == slug;
        if let Some(at) = self.rows.all().iter().position(of_bottle) {
            self.rows.jump(at);
            self.layout.forget();
        }
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    pub(super) fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    pub(super) fn layout(&self) -> &ScreenLayout {
        &self.layout
    }

    /// Returns the effect of the selected proposal, if it was computed for the current text and scope.
    pub(super) fn known(&self) -> Option<&KnownEffect> {
        let EffectInput { pending, text, scope } = self.effect_input()?;
        let same = |known: &&KnownEffect| {
            known.id == pending.proposal.id && known.text == text && known.wanted == scope
        };
        self.known.as_ref().filter(same)
    }

    pub(super) fn draft(&self, id: &Id) -> Option<&Draft> {
        self.drafts.get(id)
    }

    /// Returns the name of the answer that is in progress for a proposal.
    pub(super) fn in_progress(&self, id: &Id) -> Option<&'static str> {
        self.in_progress.get(id).map(|in_progress| in_progress.what)
    }

    /// Returns the routes that could not be saved and that the user must save by hand.
    pub(super) fn into_unsaved(self) -> Vec<(PathBuf, UnsavedManifest)> {
        self.unsaved
    }

    pub(super) fn is_busy(&self) -> bool {
        self.changing || !self.in_progress.is_empty()
    }

    /// Returns the input for computing the effect of the selected proposal.
    pub(super) fn effect_input(&self) -> Option<EffectInput<'_>> {
        let row = self.rows.current().filter(|row| !row.pending.proposal.tool.reports())?;
        let edited = self.drafts.get(row.id()).and_then(|draft| draft.checked.as_deref().ok());
        let text = edited.unwrap_or(&row.pending.proposal.proposed_file);
        let scope = self.scopes.get(row.id()).cloned().unwrap_or_default();
        Some(EffectInput { pending: &row.pending, text, scope })
    }

    /// Returns the proposal that is shown in full.
    pub(super) fn shown_in_full(&self) -> Option<&Proposal> {
        let row = self.rows.current().filter(|_| self.view != View::List)?;
        Some(&row.pending.proposal)
    }

    /// Returns the scanner's last warnings about the bottle of the proposal that is shown in full, if they were read.
    pub(super) fn warnings(&self) -> Option<&[Warning]> {
        let shown = self.shown_in_full()?;
        self.warnings.as_ref().filter(|(id, _)| *id == shown.id).map(|(_, warnings)| warnings.as_slice())
    }

    pub(super) fn set_warnings(&mut self, id: Id, warnings: Vec<Warning>) {
        if self.warnings.as_ref().is_none_or(|(before, old)| *before != id || *old != warnings) {
            self.warnings = Some((id, warnings));
            self.layout.forget();
        }
    }

    pub(super) fn set_known(&mut self, known: KnownEffect) {
        if self.known.as_ref() != Some(&known) {
            self.known = Some(known);
            self.layout.forget();
        }
    }

    /// Prepares the text and heights for drawing on a terminal of this size.
    pub(super) fn lay_out(&mut self, size: (u16, u16), styles: Styles, now: Timestamp) {
        let mut layout = std::mem::take(&mut self.layout);
        layout.fit(self, size, styles, now);
        if let View::Detail { scroll } = &mut self.view {
            *scroll = layout.clamp(*scroll);
            // While the help covers the text, the text is not recorded as shown.
            if !matches!(self.overlay, Some(Overlay::Help)) {
                layout.note_shown(*scroll);
            }
        }
        self.layout = layout;
    }

    /// Returns the message to show: the latest message, otherwise the answer in progress, otherwise a problem
    /// of the queue.
    pub(super) fn current_message(&self, now: Timestamp) -> Option<Message> {
        let plain = |words| Message { words, tone: Tone::Plain };
        let doing = || {
            let (id, in_progress) = self.in_progress.iter().next()?;
            let slug = self.rows.get(id).map(|row| row.pending.proposal.bottle_slug.to_string());
            let took = span(now.duration_since(in_progress.since));
            Some(plain(format!("{} for {} … {took}", in_progress.what, slug.unwrap_or_default())))
        };
        let damaged = || {
            let more = self.damaged.len().saturating_sub(1);
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            Some(Message { words: format!("{}{more}", self.damaged.first()?), tone: Tone::Bad })
        };
        self.message.clone().or_else(doing).or_else(damaged)
    }

    fn set_message(&mut self, tone: Tone, words: impl Into<String>) -> Effect {
        self.message = Some(Message { words: words.into(), tone });
        Effect::Nothing
    }

    // Methods that handle events.

    /// Handles a successful poll of the queue.
    pub(super) fn poll_succeeded(&mut self, listing: Listing, now: Timestamp) {
        let Listing { mut pending, damaged } = listing;
        // Drafts are kept for all proposals in the queue, including answered ones. If the answer of another process
        // fails, the proposal is shown again with its draft.
        let there: BTreeSet<Id> = pending.iter().map(|pending| pending.proposal.id.clone()).collect();
        // Hides proposals that another process has answered. A proposal that this screen is answering remains in the
        // list until the answer is complete.
        pending.retain(|pending| {
            pending.state != ProposalState::Answered && !self.in_progress.contains_key(&pending.proposal.id)
        });
        pending.extend(self.in_progress.keys().filter_map(|id| Some(self.rows.get(id)?.pending.clone())));
        pending.sort_by_key(|pending| (pending.proposal.arrival_timestamp, pending.proposal.id.clone()));
        self.damaged = damaged.iter().map(skipped_file).collect();
        let before = self.rows.current().map(|row| (row.id().clone(), name(&row.pending.proposal)));
        self.rows.replace(pending, now);
        if let Some((id, name)) = before
            && self.rows.get(&id).is_none()
        {
            self.selected_removed(&id, &name);
        }
        self.drafts.retain(|id, _| there.contains(id) || self.in_progress.contains_key(id));
        self.scopes.retain(|id, _| there.contains(id) || self.in_progress.contains_key(id));
        self.keep_marks(&there);
        self.agreed.retain(|id, _| there.contains(id) || self.in_progress.contains_key(id));
        self.layout.forget();
    }

    /// Handles a failed poll of the queue.
    pub(super) fn poll_failed(&mut self, why: String) {
        self.set_message(Tone::Bad, why);
    }

    /// Handles the disappearance of the proposal that the user was looking at.
    fn selected_removed(&mut self, id: &Id, name: &str) {
        let asked = matches!(&self.overlay, Some(Overlay::Reason { ids, .. }) if ids[..] == [id.clone()]);
        if asked {
            self.overlay = None;
        }
        if asked || self.view != View::List {
            self.view = View::List;
            let words =
                format!("{name} no longer waits: another process answered it, or the agent withdrew it");
            self.set_message(Tone::Bad, words);
        }
    }

    /// Handles the result of an answer to a proposal.
    pub(super) fn answered(&mut self, id: &Id, outcome: Result<AnswerOutcome, String>, now: Timestamp) {
        self.in_progress.remove(id);
        self.leaving = false;
        let name = self.rows.get(id).map_or_else(|| "it".to_owned(), |row| name(&row.pending.proposal));
        match outcome {
            Ok(AnswerOutcome { words, effects, saved, .. }) => {
                let separator = if effects.is_empty() { "" } else { ": " };
                let unsaved = saved.and_then(|saved| saved.unsaved.map(|unsaved| (saved.path, unsaved)));
                let (tone, printed) = match &unsaved {
                    Some(_) => (Tone::Bad, "; the routes are printed when you quit"),
                    None => (Tone::Good, ""),
                };
                let words = format!("{name} {words}{printed}{separator}{}", effects.join("; "));
                // With several answers, a success does not hide the failure of another answer.
                if self.message.as_ref().is_none_or(|shown| shown.tone != Tone::Bad) || tone == Tone::Bad {
                    self.set_message(tone, words);
                }
                self.unsaved.extend(unsaved);
                if self.rows.current().is_some_and(|row| row.id() == id) {
                    self.view = View::List;
                }
                self.rows.remove(id, now);
                self.drafts.remove(id);
            }
            Err(why) => drop(self.set_message(Tone::Bad, format!("{name}: {why}"))),
        }
        self.layout.forget();
    }

    /// Handles the result of a change of routes.
    pub(super) fn routes_changed(&mut self, change: TypedChange, outcome: Result<RouteReport, String>) {
        self.changing = false;
        self.leaving = false;
        let slug = &change.slug;
        match outcome {
            Err(why) => drop(self.set_message(Tone::Bad, format!("{slug}: {why}"))),
            Ok(report) if !report.live => {
                let words = format!("{slug}: this weakens the protection: {}", report.weakenings.join("; "));
                self.set_message(Tone::Bad, words);
                // An open window is not replaced, because the user's next key answers the question of that window.
                if self.overlay.is_none() {
                    self.overlay = Some(Overlay::Weaken { change, revision: report.revision });
                }
            }
            Ok(report) => {
                let undo = undo_command(slug, &report).map(|undo| format!("; `{undo}` undoes it"));
                let signed =
                    |sign, words: Vec<String>| words.into_iter().map(move |words| format!("{sign} {words}"));
                let effects = signed('+', report.gains).chain(signed('-', report.losses)).collect::<Vec<_>>();
                let words = match undo {
                    Some(undo) => format!("{slug} is live with {}{undo}", effects.join("; ")),
                    None => format!("{slug}: no change, its routes decide so already"),
                };
                self.set_message(Tone::Good, words);
            }
        }
        self.layout.forget();
    }

    /// Handles the end of the editor. `given` is the text that was opened in the editor.
    pub(super) fn edited(&mut self, id: &Id, given: &str, edited: Edited) {
        self.layout.forget();
        let Edited { text, failed } = edited;
        let changed = text.filter(|text| text != given);
        let Some(text) = changed else {
            match failed {
                Some(why) => self.set_message(Tone::Bad, why),
                None => self.set_message(Tone::Plain, "nothing was changed"),
            };
            return;
        };
        if is_blank(&text) && failed.is_none() {
            self.drafts.remove(id);
            self.set_message(Tone::Plain, "the file was empty: the proposal is unchanged");
            return;
        }
        let draft = Draft { checked: canonical_routes(&text), text };
        let (tone, words) = match (&failed, &draft.checked) {
            (Some(why), _) => (Tone::Bad, format!("{why}; your edit is kept: `m` continues it")),
            (None, Err(why)) => {
                (Tone::Bad, format!("this edit cannot be applied: {why}; `m` continues it, `u` drops it"))
            }
            (None, Ok(_)) => {
                (Tone::Plain, "this is your edit: `a` approves it, `m` continues it, `u` drops it".to_owned())
            }
        };
        self.drafts.insert(id.clone(), draft);
        self.view = View::Detail { scroll: 0 };
        self.set_message(tone, words);
    }

    // Methods that handle keys.

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent, now: Timestamp) -> Effect {
        self.message = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match self.overlay.take() {
            Some(Overlay::Help) => return Effect::Nothing,
            Some(Overlay::Reason { ids, yes, line }) => return self.type_reason(ids, yes, line, key, now),
            Some(Overlay::Routes { action, line }) => return self.type_routes(action, line, key),
            Some(Overlay::Weaken { change, revision }) => {
                if matches!(key.code, KeyCode::Char('y')) && !control {
                    return self.change(change, Consent::At(revision));
                }
                return self.set_message(Tone::Plain, "nothing was changed");
            }
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
                self.overlay = Some(Overlay::Help);
                Effect::Nothing
            }
            KeyCode::Char('a') => self.approve_marked(now).unwrap_or_else(|| self.approve(now)),
            KeyCode::Char('m') => self.modify(now),
            KeyCode::Char('r') => self.reject_marked().unwrap_or_else(|| self.reject(now)),
            KeyCode::Char('x') => self.mark(now),
            KeyCode::Char('o') => self.choose_scope(),
            KeyCode::Char('u') => self.drop_draft(),
            KeyCode::Char('+') => self.ask_for_routes(Action::Allow),
            KeyCode::Char('-') => self.ask_for_routes(Action::Deny),
            code => {
                match self.view {
                    View::List => self.move_in_list(code),
                    View::Detail { scroll } => self.move_in_detail(code, scroll),
                }
                Effect::Nothing
            }
        }
    }

    /// Inserts pasted text into the input line. Pasted text is never handled as keys.
    pub(super) fn paste(&mut self, text: &str) {
        match &mut self.overlay {
            Some(Overlay::Reason { line, .. } | Overlay::Routes { line, .. }) => line.paste(text),
            _ => drop(self.set_message(Tone::Plain, "pasted text decides nothing")),
        }
    }

    fn leave(&mut self) -> Effect {
        if self.is_busy() && !self.leaving {
            self.leaving = true;
            return self.set_message(
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
        self.layout.forget();
    }

    fn move_in_detail(&mut self, code: KeyCode, scroll: usize) {
        let page = self.layout.page_rows().saturating_sub(1).max(1);
        let to = match code {
            KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => scroll + 1,
            KeyCode::PageUp | KeyCode::Char('b') => scroll.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => scroll + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            KeyCode::Char(way @ ('n' | 'p')) => {
                self.rows.step(if way == 'n' { 1 } else { -1 });
                self.layout.forget();
                0
            }
            KeyCode::Left | KeyCode::Char('h') | KeyCode::Esc | KeyCode::Backspace => {
                self.view = View::List;
                self.layout.forget();
                return;
            }
            _ => return,
        };
        self.view = View::Detail { scroll: self.layout.clamp(to) };
    }

    /// Returns the proposal that a key decides on. If the key must not decide, sets a message that says why.
    fn selected_to_decide(&mut self, now: Timestamp) -> Option<Pending> {
        let moved = self.rows.take_recent_move(now);
        let (id, pending) = self.rows.current().map(|row| (row.id().clone(), row.pending.clone()))?;
        if moved {
            let words =
                format!("{} has just moved here; press the key again to decide it", name(&pending.proposal));
            self.set_message(Tone::Plain, words);
            return None;
        }
        if self.in_progress.contains_key(&id) {
            self.set_message(Tone::Plain, "it is already being answered");
            return None;
        }
        Some(pending)
    }

    /// Returns the proposal that a key approves. Unlike [`State::selected_to_decide`], requires that a process waits
    /// for the answer.
    fn selected_to_approve(&mut self, now: Timestamp) -> Option<Pending> {
        let pending = self.selected_to_decide(now)?;
        if pending.state == ProposalState::Waiting && pending.proposal.expires_at > now {
            return Some(pending);
        }
        let words =
            format!("no process waits for this answer ({}); `r` dismisses it", state_text(&pending, now));
        self.set_message(Tone::Bad, words);
        None
    }

    fn approve(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.selected_to_approve(now) else { return Effect::Nothing };
        let id = pending.proposal.id.clone();
        // The preview does not show a draft, or a scope that saves routes, so the user must have read the full text.
        let is_changed =
            self.drafts.contains_key(&id) || matches!(self.scopes.get(&id), Some(RequestedScope::Saved(_)));
        if !self.was_shown(&pending.proposal, is_changed, "`a` again to approve it") {
            return Effect::Nothing;
        }
        if pending.proposal.tool.reports() && !pending.proposal.tool.needs_reason() {
            let grant = match self.scopes.get(&id) {
                Some(RequestedScope::Once) => GrantScope::Once,
                _ => GrantScope::Run,
            };
            let decision = Decision::Approve { reason: None, routes: None, grant };
            return self.answer(pending, decision, "approving", now);
        }
        if pending.proposal.tool.reports() {
            self.overlay = Some(Overlay::Reason { ids: vec![id], yes: true, line: TypedLine::default() });
            return Effect::Nothing;
        }
        let draft = self.drafts.get(&id).map(|draft| draft.checked.clone());
        let Some(KnownEffect { route_change, grant, .. }) =
            self.known().filter(|_| self.layout.is_of(&id)).cloned()
        else {
            // The user typed the key before the text was visible.
            return self
                .set_message(Tone::Plain, "it was not on the screen yet: press `a` again to approve it");
        };
        if let Some(Err(why)) = route_change {
            return self.set_message(Tone::Bad, format!("it cannot be applied: {why}"));
        }
        let grant = match grant {
            Ok(grant) => grant,
            Err(why) => return self.set_message(Tone::Bad, format!("{why}; `o` changes the scope")),
        };
        match draft.transpose() {
            Ok(routes) => {
                self.answer(pending, Decision::Approve { reason: None, routes, grant }, "approving", now)
            }
            Err(why) => self.set_message(
                Tone::Bad,
                format!("your edit cannot be applied: {why}; `m` continues it, `u` drops it"),
            ),
        }
    }

    /// Whether all of a proposal was on the screen. If not, shows it, and sets a message that tells the user to press
    /// `next`. With `in_full`, the preview is not enough.
    fn was_shown(&mut self, proposal: &Proposal, in_full: bool, next: &str) -> bool {
        let id = &proposal.id;
        let unread = match self.view {
            View::List if !in_full && self.layout.shows_all_of(id) => Some(0),
            View::List => {
                self.view = View::Detail { scroll: 0 };
                self.layout.forget();
                self.set_message(Tone::Plain, format!("read all of it, and press {next}"));
                return false;
            }
            View::Detail { .. } => self.layout.unread(id),
        };
        let words = match unread {
            Some(0) => {
                self.agreed.insert(id.clone(), proposal.clone());
                return true;
            }
            Some(lines) => {
                // After a jump to the end, or a change of the text above, the key Space alone does not show the unread
                // lines.
                let is_above =
                    matches!(self.view, View::Detail { scroll } if self.layout.is_unread_above(scroll));
                let back = if is_above { "`g` goes to the start, " } else { "" };
                format!(
                    "{} of it not shown yet: {back}Space shows the next page; at the end press {next}",
                    counted(lines, "line")
                )
            }
            // The user typed the key before the text was visible.
            None => format!("it was not on the screen yet: press {next}"),
        };
        self.set_message(Tone::Plain, words);
        false
    }

    /// Whether the proposal is unchanged since the user began to approve it.
    fn is_agreed(&self, proposal: &Proposal) -> bool {
        self.agreed.get(&proposal.id).is_some_and(|shown| content(shown) == content(proposal))
    }

    fn reject(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.selected_to_decide(now) else { return Effect::Nothing };
        if pending.state != ProposalState::Waiting {
            let decision = Decision::Reject { reason: String::new() };
            return self.answer(pending, decision, "dismissing", now);
        }
        let id = pending.proposal.id;
        self.overlay = Some(Overlay::Reason { ids: vec![id], yes: false, line: TypedLine::default() });
        Effect::Nothing
    }

    fn modify(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.selected_to_approve(now) else { return Effect::Nothing };
        let Proposal { id, tool, proposed_file, .. } = &pending.proposal;
        if tool.reports() {
            let words = format!("a proposal of {} has no routes to edit", tool.name());
            return self.set_message(Tone::Bad, words);
        }
        if let Some(draft) = self.drafts.get(id) {
            return Effect::Edit { id: id.clone(), text: draft.text.clone() };
        }
        match proposal::parse(proposed_file) {
            // Opens the canonical form in the editor, never the text as the agent wrote it.
            Ok(routes) => Effect::Edit {
                id: id.clone(),
                text: format!("{}{}", editor_header(&pending.proposal), routes.render()),
            },
            Err(why) => self.set_message(Tone::Bad, format!("it cannot be edited: {why}")),
        }
    }

    /// Selects the next scope: `run`, then `once`, then `save` for each of the user's manifests.
    fn choose_scope(&mut self) -> Effect {
        let Some(EffectInput { pending, scope, .. }) = self.effect_input() else {
            return self.choose_scope_of_report();
        };
        let id = pending.proposal.id.clone();
        // Also uses an effect that was computed for another scope, so that the key works before the effect is computed
        // again.
        let Some(known) = self.known.as_ref().filter(|known| known.id == id) else {
            return Effect::Nothing;
        };
        let file = |at: usize| known.files.get(at).cloned().map(|name| RequestedScope::Saved(Some(name)));
        let next = match &scope {
            RequestedScope::Run => Some(RequestedScope::Once),
            RequestedScope::Once => file(0),
            RequestedScope::Saved(name) => {
                let at = known.files.iter().position(|file| Some(file) == name.as_ref());
                file(at.map_or(usize::MAX, |at| at + 1))
            }
        };
        let none = known.files.is_empty() && scope == RequestedScope::Once;
        self.scopes.insert(id.clone(), next.unwrap_or_default());
        self.layout.forget();
        if none {
            let words = format!(
                "scope: this run; you have no bottle file to save to: `bottle supervise approve {} --scope \
                 save:NAME` creates one",
                id.short()
            );
            return self.set_message(Tone::Plain, words);
        }
        Effect::Nothing
    }

    /// Selects the next scope of a command: `run`, then `once`. All other reports have only one scope.
    fn choose_scope_of_report(&mut self) -> Effect {
        let Some(row) = self.rows.current() else { return Effect::Nothing };
        if !row.pending.proposal.tool.has_scope() {
            return self.set_message(Tone::Plain, "an approval of this always holds until the bottle ends");
        }
        let id = row.id().clone();
        let once = self.scopes.remove(&id) != Some(RequestedScope::Once);
        if !once {
            return self.set_message(Tone::Plain, "scope: until the bottle ends");
        }
        self.scopes.insert(id, RequestedScope::Once);
        self.set_message(Tone::Plain, "scope: this command, once")
    }

    fn drop_draft(&mut self) -> Effect {
        let Some(id) = self.rows.current().map(|row| row.id().clone()) else { return Effect::Nothing };
        if self.drafts.remove(&id).is_none() {
            return Effect::Nothing;
        }
        self.layout.forget();
        self.set_message(Tone::Plain, "your edit is dropped: this is the proposal")
    }

    /// Opens the input line for a change of routes. The line begins with the name of the bottle of the selected
    /// proposal.
    fn ask_for_routes(&mut self, action: Action) -> Effect {
        if self.changing {
            return self.set_message(Tone::Plain, "another change of routes is in progress");
        }
        let mut line = TypedLine::default();
        if let Some(row) = self.rows.current() {
            line.paste(&format!("{} ", row.pending.proposal.bottle_slug));
        }
        self.overlay = Some(Overlay::Routes { action, line });
        self.set_message(
            Tone::Plain,
            "type BOTTLE HOST[/PATH], and flags such as `--method GET`; Esc cancels",
        )
    }

    /// Opens the input line with an `allow` of this host, unless the bottle has a proposal. The user confirms this
    /// change with Enter.
    pub(super) fn offer_to_allow(&mut self, slug: &Slug, host: &str) {
        if self.rows.all().iter().any(|row| row.pending.proposal.bottle_slug == *slug) {
            return;
        }
        let mut line = TypedLine::default();
        line.paste(&format!("{slug} {host}"));
        self.overlay = Some(Overlay::Routes { action: Action::Allow, line });
        let words = format!("the proxy denied a request to {}; Enter allows it, Esc cancels", one_line(host));
        self.set_message(Tone::Plain, words);
    }

    fn type_routes(&mut self, action: Action, mut line: TypedLine, key: KeyEvent) -> Effect {
        match line.press(key) {
            line::InputResult::Cancelled => Effect::Nothing,
            line::InputResult::Open => {
                self.overlay = Some(Overlay::Routes { action, line });
                Effect::Nothing
            }
            line::InputResult::Done => match (self.parse)(action, line.text()) {
                Ok(change) => self.change(change, Consent::Unasked),
                Err(why) => {
                    self.overlay = Some(Overlay::Routes { action, line });
                    self.set_message(Tone::Bad, why)
                }
            },
        }
    }

    fn change(&mut self, change: TypedChange, weaken: Consent) -> Effect {
        self.changing = true;
        Effect::Change { change, weaken }
    }

    fn answer(&mut self, pending: Pending, decision: Decision, what: &'static str, now: Timestamp) -> Effect {
        self.in_progress.insert(pending.proposal.id.clone(), InProgress { since: now, what });
        Effect::Answer(vec![(pending, decision)])
    }
}

/// Names a proposal as part of a sentence.
pub(super) fn name(proposal: &Proposal) -> String {
    format!("{} of {}", proposal.tool.name(), proposal.bottle_slug)
}

/// Whether a text consists only of blank lines and comments.
fn is_blank(text: &str) -> bool {
    text.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with('#'))
}

/// Returns the comment that precedes the routes in the editor.
fn editor_header(proposal: &Proposal) -> String {
    format!(
        "# Routes that {} requests ({}).\n# Edit them; nothing applies before you see the effect and press `a`.\n",
        proposal.bottle_slug,
        proposal.tool.name(),
    )
}
