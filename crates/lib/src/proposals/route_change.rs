//! Computes how an approval changes a bottle's routes.

use bottle_host::Host;
use bottle_host::causes;
use bottle_instance::audit::{Entry, Trail};
use bottle_instance::{Store, routes};
use bottle_keeper::decisions;
use bottle_policy::names::Slug;
use bottle_policy::proposal::{self, ProposalError};
use bottle_policy::route::render_routes;
use bottle_protocol::queue::Proposal;
use bottle_protocol::session::bundle::Routes;

use crate::line_diff::{Changed, changed};

/// The effect of a proposal on a bottle's routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteChange {
    /// Descriptions of the requests that become allowed. Empty if all requested routes are already allowed.
    pub gains: Vec<String>,
    /// Hosts whose names can be mistaken for other names.
    pub disguised: Vec<String>,
    /// The change of the routes' text, line by line.
    pub diff: Vec<Changed>,
    /// The revision number of the current routes.
    pub revision: u64,
}

/// Computes the effect of a proposal on the current routes. Returns an error if the proposal cannot be applied. Returns
/// `None` if the proposal is not about routes, or if the current routes are unknown. `text` contains the proposed
/// routes, or the routes that replace them.
pub fn route_change(
    host: &Host,
    proposal: &Proposal,
    text: &str,
) -> Option<Result<RouteChange, ProposalError>> {
    if proposal.tool.reports() {
        return None;
    }
    let now = routes::read(&Store::of(host).directory(&proposal.bottle_slug)).ok().flatten()?;
    Some(RouteChange::new(&now, text))
}

impl RouteChange {
    /// Computes how the routes in `text` change the current routes `now`.
    pub fn new(now: &Routes, text: &str) -> Result<Self, ProposalError> {
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

/// Returns descriptions of the requests that became allowed after the revision `from`, up to and including the revision
/// `to`. An error says why these requests are unknown.
pub fn live_between(host: &Host, slug: &Slug, from: u64, to: u64) -> Result<Vec<String>, String> {
    let (records, _) = Trail::of(&host.home, slug).read().map_err(|error| causes::one_line(&error))?;
    let is_live = |of: &bottle_protocol::queue::Id, number: u64| {
        records.iter().any(
            |record| matches!(&record.entry, Entry::Live { proposal, revision } if proposal == of && *revision == number),
        )
    };
    let gained = records.iter().filter_map(|record| match &record.entry {
        Entry::Intent { proposal, revision, gains, .. }
        | Entry::Change { change: proposal, revision, gains, .. }
            if (from + 1..=to).contains(revision) && is_live(proposal, *revision) =>
        {
            Some(gains.clone())
        }
        _ => None,
    });
    Ok(gained.flatten().collect())
}

/// Returns the proposed routes in their canonical form, because the agent's own text can mislead the user. If the
/// routes do not parse, returns the agent's text.
pub fn proposed_text(proposal: &Proposal) -> String {
    let own = if proposal.tool.reports() { None } else { proposal::parse(&proposal.proposed_file).ok() };
    own.map_or_else(|| proposal.proposed_file.clone(), |own| own.render())
}

/// The warning about a host name that can be mistaken for another name.
pub fn lookalike_warning(host: &str) -> String {
    format!("{host} has letters outside ASCII and can be mistaken for another name")
}
