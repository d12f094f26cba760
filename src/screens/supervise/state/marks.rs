//! Marked proposals, which one key decides together.
//!
//! A proposal can be marked only after all of it was on the screen, as for an approval. A single key therefore never
//! approves text that the user has not seen.

use std::collections::BTreeSet;

use bottle_lib::proposals::answer::Decision;
use bottle_lib::proposals::scope::{GrantScope, RequestedScope};
use bottle_protocol::queue::Id;
use bottle_queue::{Pending, State as ProposalState};
use crossterm::event::KeyEvent;
use jiff::Timestamp;

use super::super::line;
use super::super::view::{Overlay, Tone, View};
use super::{Effect, InProgress, State, name};
use crate::console::output::counted;

impl State {
    /// Whether the proposal is marked.
    pub(in super::super) fn is_marked(&self, id: &Id) -> bool {
        self.marked.contains(id)
    }

    /// Marks the selected proposal, or removes its mark.
    pub(super) fn mark(&mut self, now: Timestamp) -> Effect {
        let Some(pending) = self.selected_to_decide(now) else { return Effect::Nothing };
        let id = pending.proposal.id.clone();
        if self.marked.remove(&id) {
            self.layout.forget();
            return self.set_message(Tone::Plain, self.marked_words());
        }
        if !self.was_shown(&pending.proposal, false, "`x` again to mark it") {
            return Effect::Nothing;
        }
        self.marked.insert(id);
        self.view = View::List;
        self.rows.step(1);
        self.layout.forget();
        self.set_message(Tone::Plain, self.marked_words())
    }

    fn marked_words(&self) -> String {
        match self.marked.len() {
            0 => "nothing is marked".to_owned(),
            several => format!("{} marked: `a` approves, `r` rejects them", counted(several, "proposal")),
        }
    }

    /// Removes the marks of proposals that are no longer in the queue.
    pub(super) fn keep_marks(&mut self, there: &BTreeSet<Id>) {
        self.marked.retain(|id| there.contains(id));
    }

    fn marked_ids(&self) -> Vec<Id> {
        self.rows.all().iter().map(|row| row.id().clone()).filter(|id| self.marked.contains(id)).collect()
    }

    /// Approves all marked proposals, or asks for the reason that some of them need. Returns `None` if nothing is
    /// marked.
    pub(super) fn approve_marked(&mut self, now: Timestamp) -> Option<Effect> {
        let ids = self.marked_ids();
        if ids.is_empty() {
            return None;
        }
        if let Some(why) = ids.iter().find_map(|id| self.not_together(id)) {
            return Some(self.set_message(Tone::Bad, why));
        }
        let needs_reason =
            |id: &Id| self.rows.get(id).is_some_and(|row| row.pending.proposal.tool.needs_reason());
        if ids.iter().any(needs_reason) {
            self.overlay = Some(Overlay::Reason { ids, yes: true, line: Default::default() });
            return Some(Effect::Nothing);
        }
        Some(self.answer_all(ids, true, None, now))
    }

    /// Returns why a marked proposal cannot be approved together with others. Returns `None` if it can.
    fn not_together(&self, id: &Id) -> Option<String> {
        let name = name(&self.rows.get(id)?.pending.proposal);
        if self.drafts.contains_key(id) {
            return Some(format!("{name} has an edit of yours: approve it alone, or `u` drops the edit"));
        }
        let saves = matches!(self.scopes.get(id), Some(RequestedScope::Saved(_)));
        saves.then(|| format!("{name} is to be saved to a file: approve it alone, or `o` changes the scope"))
    }

    /// Asks for the reason with which all marked proposals are rejected. Returns `None` if nothing is marked.
    pub(super) fn reject_marked(&mut self) -> Option<Effect> {
        let ids = self.marked_ids();
        if ids.is_empty() {
            return None;
        }
        self.overlay = Some(Overlay::Reason { ids, yes: false, line: Default::default() });
        Some(Effect::Nothing)
    }

    /// Handles a key in the input line for a reason.
    pub(super) fn type_reason(
        &mut self,
        ids: Vec<Id>,
        yes: bool,
        mut line: line::TypedLine,
        key: KeyEvent,
        now: Timestamp,
    ) -> Effect {
        match line.press(key) {
            line::InputResult::Cancelled => Effect::Nothing,
            line::InputResult::Done if !line.text().trim().is_empty() => {
                let reason = line.text().trim().to_owned();
                self.answer_all(ids, yes, Some(reason), now)
            }
            outcome => {
                self.overlay = Some(Overlay::Reason { ids, yes, line });
                if outcome == line::InputResult::Done {
                    self.set_message(Tone::Plain, "give a reason; Esc cancels");
                }
                Effect::Nothing
            }
        }
    }

    /// Answers proposals. Skips proposals that were answered, have expired, or have changed since the user saw them.
    fn answer_all(&mut self, ids: Vec<Id>, yes: bool, reason: Option<String>, now: Timestamp) -> Effect {
        let mut answers: Vec<(Pending, Decision)> = Vec::new();
        for id in ids {
            self.marked.remove(&id);
            let Some(pending) = self.rows.get(&id).map(|row| row.pending.clone()) else { continue };
            let waits = pending.state == ProposalState::Waiting && pending.proposal.expires_at > now;
            if self.in_progress.contains_key(&id) || yes && !(waits && self.is_agreed(&pending.proposal)) {
                continue;
            }
            let what = if yes { "approving" } else { "rejecting" };
            let decision = if yes { self.approval(&pending, reason.clone()) } else { rejection(&reason) };
            self.in_progress.insert(id, InProgress { since: now, what });
            answers.push((pending, decision));
        }
        self.layout.forget();
        match answers.len() {
            0 => self.set_message(Tone::Bad, "no process waits for these answers any more, or they changed"),
            _ => Effect::Answer(answers),
        }
    }

    fn approval(&self, pending: &Pending, reason: Option<String>) -> Decision {
        let grant = match self.scopes.get(&pending.proposal.id) {
            Some(RequestedScope::Once) => GrantScope::Once,
            _ => GrantScope::Run,
        };
        Decision::Approve {
            reason: reason.filter(|_| pending.proposal.tool.needs_reason()),
            routes: None,
            grant,
        }
    }
}

fn rejection(reason: &Option<String>) -> Decision {
    Decision::Reject { reason: reason.clone().unwrap_or_default() }
}
