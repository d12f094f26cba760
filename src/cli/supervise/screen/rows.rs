//! The questions on the screen, and the cursor, which stays with its question whatever comes and goes.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use bottle_contract::proposal;
use bottle_contract::queue::{Id, Tool};
use bottle_queue::Pending;
use jiff::{SignedDuration, Timestamp};

use crate::cli::supervise::waiting::first_line;

/// How long a key that decides does nothing after another question came under the cursor by itself: it was meant
/// for the one before.
const SLID_FOR: SignedDuration = SignedDuration::from_millis(700);

/// A question.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) pending: Pending,
    /// Read when it is shown first.
    summary: OnceCell<String>,
}

impl Row {
    fn of(pending: Pending) -> Self {
        Self { pending, summary: OnceCell::new() }
    }

    pub(super) fn id(&self) -> &Id {
        &self.pending.proposal.id
    }

    /// What it asks for, in a few words: may be an agent's.
    pub(super) fn summary(&self) -> &str {
        self.summary.get_or_init(|| {
            let proposal = &self.pending.proposal;
            let hosts = || {
                let asked = proposal::parse(&proposal.proposed_file).ok()?;
                let hosts: Vec<String> = asked.routes().iter().map(|route| route.host.to_string()).collect();
                Some(hosts.join(", "))
            };
            let hosts = if proposal.tool.reports() { None } else { hosts() };
            // An agent's own words stand behind a bar here, too.
            hosts.unwrap_or_else(|| {
                let why = first_line(&proposal.justification);
                if proposal.tool.reports() { why } else { format!("| {why}") }
            })
        })
    }

    /// What kind of thing is asked for.
    pub(super) fn kind(&self) -> &'static str {
        match self.pending.proposal.tool {
            Tool::EgressAllow | Tool::EgressBlock => "hosts",
            Tool::EgressTokenAllow => "secret",
            Tool::GitleaksAllow => "push",
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    at: usize,
    /// When another question came under the cursor without a key.
    slid: Option<Timestamp>,
}

impl Rows {
    pub(super) fn all(&self) -> &[Row] {
        &self.rows
    }

    /// Where the cursor is, from 0.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The one under the cursor.
    pub(super) fn current(&self) -> Option<&Row> {
        self.rows.get(self.at)
    }

    pub(super) fn get(&self, id: &Id) -> Option<&Row> {
        self.rows.iter().find(|row| row.id() == id)
    }

    /// These wait now, oldest first.
    pub(super) fn replace(&mut self, pending: Vec<Pending>, now: Timestamp) {
        let current = self.current().map(|row| row.id().clone());
        let mut known: BTreeMap<Id, Row> =
            std::mem::take(&mut self.rows).into_iter().map(|row| (row.id().clone(), row)).collect();
        let row = |pending: Pending| match known.remove(&pending.proposal.id) {
            Some(row) if row.pending.proposal == pending.proposal => Row { pending, ..row },
            _ => Row::of(pending),
        };
        self.rows = pending.into_iter().map(row).collect();
        let found = self.rows.iter().position(|row| Some(row.id()) == current.as_ref());
        match found {
            Some(at) => self.at = at,
            None => {
                self.at = self.at.min(self.rows.len().saturating_sub(1));
                self.slid = (!self.rows.is_empty()).then_some(now);
            }
        }
    }

    /// This one waits no more.
    pub(super) fn remove(&mut self, id: &Id, now: Timestamp) {
        let Some(gone) = self.rows.iter().position(|row| row.id() == id) else { return };
        self.rows.remove(gone);
        if gone < self.at {
            self.at -= 1;
        } else if gone == self.at {
            self.at = self.at.min(self.rows.len().saturating_sub(1));
            self.slid = (!self.rows.is_empty()).then_some(now);
        }
    }

    /// One up or down, around the ends.
    pub(super) fn step(&mut self, by: isize) {
        let length = self.rows.len();
        if length > 0 {
            self.at = (self.at + length).wrapping_add_signed(by) % length;
        }
        self.slid = None;
    }

    pub(super) fn jump(&mut self, to: usize) {
        self.at = to.min(self.rows.len().saturating_sub(1));
        self.slid = None;
    }

    /// Whether the user cannot have meant the one under the cursor yet. Asked again, they do.
    pub(super) fn has_slid(&mut self, now: Timestamp) -> bool {
        self.slid.take().is_some_and(|slid| now.duration_since(slid) < SLID_FOR)
    }
}
