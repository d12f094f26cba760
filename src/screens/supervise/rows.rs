//! The pending proposals and the cursor. When other proposals arrive or disappear, the cursor remains on its
//! proposal.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use bottle_lib::proposals::pending::first_line;
use bottle_policy::proposal;
use bottle_protocol::queue::{Id, Tool};
use bottle_queue::Pending;
use jiff::{SignedDuration, Timestamp};

/// How long keys that answer a proposal are ignored after the cursor moved to another proposal without a key. A key
/// that is pressed in this time was meant for the previous proposal.
const MOVE_GUARD: SignedDuration = SignedDuration::from_millis(700);

/// A proposal in the list.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) pending: Pending,
    /// The summary of the request. It is computed when it is first needed.
    summary: OnceCell<String>,
}

impl Row {
    fn new(pending: Pending) -> Self {
        Self { pending, summary: OnceCell::new() }
    }

    pub(super) fn id(&self) -> &Id {
        &self.pending.proposal.id
    }

    /// Summarizes the request in a few words. The summary may contain text from the agent.
    pub(super) fn summary(&self) -> &str {
        self.summary.get_or_init(|| {
            let proposal = &self.pending.proposal;
            let hosts = || {
                let asked = proposal::parse(&proposal.proposed_file).ok()?;
                let hosts: Vec<String> = asked.routes().iter().map(|route| route.host.to_string()).collect();
                Some(hosts.join(", "))
            };
            let hosts = if proposal.tool.reports() { None } else { hosts() };
            // A bar marks text from the agent, as in the other views.
            hosts.unwrap_or_else(|| {
                let why = first_line(&proposal.justification);
                if proposal.tool.reports() { why } else { format!("| {why}") }
            })
        })
    }

    /// Returns the kind of the request, in one word.
    pub(super) fn kind(&self) -> &'static str {
        match self.pending.proposal.tool {
            Tool::EgressAllow | Tool::EgressBlock => "hosts",
            Tool::EgressTokenAllow => "secret",
            Tool::GitleaksAllow => "push",
            Tool::BudgetAdd => "budget",
            Tool::CommandAllow => "command",
        }
    }
}

/// The rows and the cursor.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    at: usize,
    /// When the cursor last moved to another proposal without a key from the user.
    moved: Option<Timestamp>,
}

impl Rows {
    pub(super) fn all(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the index of the cursor.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the proposal under the cursor.
    pub(super) fn current(&self) -> Option<&Row> {
        self.rows.get(self.at)
    }

    pub(super) fn get(&self, id: &Id) -> Option<&Row> {
        self.rows.iter().find(|row| row.id() == id)
    }

    /// Replaces the rows with these proposals, oldest first.
    pub(super) fn replace(&mut self, pending: Vec<Pending>, now: Timestamp) {
        let current = self.current().map(|row| row.id().clone());
        let mut known: BTreeMap<Id, Row> =
            std::mem::take(&mut self.rows).into_iter().map(|row| (row.id().clone(), row)).collect();
        let row = |pending: Pending| match known.remove(&pending.proposal.id) {
            Some(row) if row.pending.proposal == pending.proposal => Row { pending, ..row },
            _ => Row::new(pending),
        };
        self.rows = pending.into_iter().map(row).collect();
        let found = self.rows.iter().position(|row| Some(row.id()) == current.as_ref());
        match found {
            Some(at) => self.at = at,
            None => self.land(now),
        }
    }

    /// Removes the row of this proposal.
    pub(super) fn remove(&mut self, id: &Id, now: Timestamp) {
        let Some(gone) = self.rows.iter().position(|row| row.id() == id) else { return };
        self.rows.remove(gone);
        if gone < self.at {
            self.at -= 1;
        } else if gone == self.at {
            self.land(now);
        }
    }

    /// Records that the cursor has moved to another proposal without a key.
    fn land(&mut self, now: Timestamp) {
        self.at = self.at.min(self.rows.len().saturating_sub(1));
        self.moved = (!self.rows.is_empty()).then_some(now);
    }

    /// Moves the cursor by one row. After the last row, the cursor moves to the first one, and before the first row to
    /// the last one.
    pub(super) fn step(&mut self, by: isize) {
        let length = self.rows.len();
        if length > 0 {
            self.at = (self.at + length).wrapping_add_signed(by) % length;
        }
        self.moved = None;
    }

    pub(super) fn jump(&mut self, to: usize) {
        self.at = to.min(self.rows.len().saturating_sub(1));
        self.moved = None;
    }

    /// Whether the cursor moved so recently that a key was meant for another proposal. Resets this state: a second call
    /// returns false.
    pub(super) fn take_recent_move(&mut self, now: Timestamp) -> bool {
        self.moved.take().is_some_and(|moved| now.duration_since(moved) < MOVE_GUARD)
    }
}
