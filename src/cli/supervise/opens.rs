//! What a yes would do to a bottle's routes.

use bottle_contract::proposal;
use bottle_contract::queue::Proposal;
use bottle_contract::route::{Form, parse_routes};

use crate::host::Host;
use crate::instance::{Store, routes};
use crate::keeper::decisions;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Opens {
    /// What becomes allowed that is not now, in words; nothing when all of it is allowed already.
    pub(super) gains: Vec<String>,
}

/// What a proposal of routes would open, laid over those of now, or why it cannot be; none where it changes no
/// routes, or nobody knows them. `text` is what was proposed, or what is to apply instead.
pub(super) fn opens(host: &Host, proposal: &Proposal, text: &str) -> Option<Result<Opens, String>> {
    if proposal.tool.reports() {
        return None;
    }
    let now = routes::read(&Store::of(host).folder(&proposal.bottle_slug)).ok().flatten()?;
    let table = parse_routes(&now.yaml, Form::Runtime).ok()?;
    let merged = proposal::parse(text).and_then(|asked| proposal::merge(&table, &asked));
    let opens = merged.map(|merged| Opens { gains: decisions::gains(&table, &merged) });
    Some(opens.map_err(|error| error.to_string()))
}
