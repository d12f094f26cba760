//! Computes what an approval changes in a bottle's routes.

use bottle_contract::names::Slug;
use bottle_contract::proposal::{self, ProposalError};
use bottle_contract::queue::Proposal;
use bottle_contract::route::render_routes;
use bottle_contract::session::bundle::Routes;
use similar::{ChangeTag, TextDiff};

use crate::causes;
use crate::host::Host;
use crate::instance::audit::{Entry, Trail};
use crate::instance::{Store, routes};
use crate::keeper::decisions;

/// Context lines around a change.
const AROUND: usize = 2;

/// The effect of a proposal on a bottle's routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RouteChange {
    /// What becomes newly allowed, in words; empty when everything is already allowed.
    pub(super) gains: Vec<String>,
    /// Hosts whose names can be mistaken for others.
    pub(super) disguised: Vec<String>,
    /// The change of the routes' text.
    pub(super) diff: Vec<Changed>,
    /// The revision of the current routes.
    pub(super) revision: u64,
}

/// A line of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    /// A new line.
    Added(String),
    /// A replaced line.
    Removed(String),
    /// A context line.
    Same(String),
    /// Omitted unchanged lines.
    Gap,
}

/// Computes the effect of a proposal on the current routes, or why it cannot be applied; none when it changes no
/// routes or the routes are unknown. `text` is the proposed or the replacement text.
pub(super) fn route_change(
    host: &Host,
    proposal: &Proposal,
    text: &str,
) -> Option<Result<RouteChange, ProposalError>> {
    if proposal.tool.reports() {
        return None;
    }
    let now = routes::read(&Store::of(host).folder(&proposal.bottle_slug)).ok().flatten()?;
    Some(RouteChange::new(&now, text))
}

impl RouteChange {
    /// Computes the effect on the given routes.
    pub(super) fn new(now: &Routes, text: &str) -> Result<Self, ProposalError> {
        let table = &now.table;
        let asked = proposal::parse(text)?;
        let merged = proposal::merge(table, &asked)?;
        let same = merged == *table;
        Ok(Self {
            disguised: asked.international_hosts(),
            gains: decisions::gains(table, &merged),
            diff: if same { Vec::new() } else { changed(&render_routes(table), &render_routes(&merged)) },
            revision: now.revision,
        })
    }
}

/// Diffs two texts by line.
pub(super) fn changed(now: &str, then: &str) -> Vec<Changed> {
    let diff = TextDiff::from_lines(now, then);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(AROUND) {
        if group.first().is_some_and(|first| first.old_range().start > 0) {
            lines.push(Changed::Gap);
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = change.value().trim_end_matches('\n').to_owned();
            lines.push(match change.tag() {
                ChangeTag::Insert => Changed::Added(line),
                ChangeTag::Delete => Changed::Removed(line),
                ChangeTag::Equal => Changed::Same(line),
            });
        }
    }
    lines
}

/// Lists what became live after the revision `from`, up to `to`, in words; the error says why that is unknown.
pub(super) fn live_between(host: &Host, slug: &Slug, from: u64, to: u64) -> Result<Vec<String>, String> {
    let (records, _) = Trail::of(&host.home, slug).read().map_err(|error| causes::one_line(&error))?;
    let is_live = |of: &bottle_contract::queue::Id, number: u64| {
        records.iter().any(
            |record| matches!(&record.entry, Entry::Live { proposal, revision } if proposal == of && *revision == number),
        )
    };
    let gained = records.iter().filter_map(|record| match &record.entry {
        Entry::Intent { proposal, revision, gains, .. }
            if (from + 1..=to).contains(revision) && is_live(proposal, *revision) =>
        {
            Some(gains.clone())
        }
        _ => None,
    });
    Ok(gained.flatten().collect())
}

/// Returns the proposed routes in the canonical form if they parse, because an agent's own text can mislead.
pub(super) fn proposed_text(proposal: &Proposal) -> String {
    let own = if proposal.tool.reports() { None } else { proposal::parse(&proposal.proposed_file).ok() };
    own.map_or_else(|| proposal.proposed_file.clone(), |own| own.render())
}

/// The warning for a host name that can be mistaken for another.
pub(super) fn lookalike_warning(host: &str) -> String {
    format!("{host} has letters outside ASCII and can be mistaken for another name")
}
