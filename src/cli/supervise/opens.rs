//! What a yes would do to a bottle's routes.

use bottle_contract::names::Slug;
use bottle_contract::proposal;
use bottle_contract::queue::Proposal;
use bottle_contract::route::{Form, parse_routes, render_routes};
use bottle_contract::session::bundle::Routes;
use similar::{ChangeTag, TextDiff};

use crate::host::Host;
use crate::instance::audit::{Entry, Trail};
use crate::instance::{Store, routes};
use crate::keeper::decisions;

/// Unchanged lines that are shown around a change, to tell where it is.
const AROUND: usize = 2;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Opens {
    /// What becomes allowed that is not now, in words; nothing when all of it is allowed already.
    pub(super) gains: Vec<String>,
    /// Hosts whose names may look like those of others.
    pub(super) disguised: Vec<String>,
    /// The same as a change of the routes' text.
    pub(super) diff: Vec<Changed>,
    /// The number of the routes that it would be laid over.
    pub(super) revision: u64,
}

/// A line of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    /// It is new.
    Added(String),
    /// It would go, because another stands in its place.
    Removed(String),
    /// It stays.
    Same(String),
    /// More lines that stay are not shown.
    Gap,
}

/// What a proposal of routes would open, laid over those of now, or why it cannot be; none where it changes no
/// routes, or nobody knows them. `text` is what was proposed, or what is to apply instead.
pub(super) fn opens(host: &Host, proposal: &Proposal, text: &str) -> Option<Result<Opens, String>> {
    if proposal.tool.reports() {
        return None;
    }
    let now = routes::read(&Store::of(host).folder(&proposal.bottle_slug)).ok().flatten()?;
    Opens::of(&now, text)
}

impl Opens {
    /// The same laid over these routes.
    pub(super) fn of(now: &Routes, text: &str) -> Option<Result<Self, String>> {
        let table = parse_routes(&now.yaml, Form::Runtime).ok()?;
        let merged = proposal::parse(text).and_then(|asked| {
            proposal::merge(&table, &asked).map(|merged| (asked.international_hosts(), merged))
        });
        let opens = merged.map(|(disguised, merged)| Self {
            disguised,
            gains: decisions::gains(&table, &merged),
            diff: if merged == table { Vec::new() } else { changed(&now.yaml, &render_routes(&merged)) },
            revision: now.revision,
        });
        Some(opens.map_err(|error| error.to_string()))
    }
}

/// What differs between two texts, line by line.
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

/// What became live of a bottle after the routes of one number, up to those of another, in words; or why nobody
/// knows.
pub(super) fn between(host: &Host, slug: &Slug, from: u64, to: u64) -> Result<Vec<String>, String> {
    let (records, _) = Trail::of(&host.home, slug).read().map_err(|error| error.to_string())?;
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

/// What a proposal asks for, in our own words where they can be read: an agent's may look like others.
pub(super) fn asked(proposal: &Proposal) -> String {
    let own = if proposal.tool.reports() { None } else { proposal::parse(&proposal.proposed_file).ok() };
    own.map_or_else(|| proposal.proposed_file.clone(), |own| own.render())
}

/// A word on a host whose name may look like another's.
pub(super) fn disguise(host: &str) -> String {
    format!(
        "{host} is a name with letters outside ASCII: it may look like another name where it is shown otherwise"
    )
}
