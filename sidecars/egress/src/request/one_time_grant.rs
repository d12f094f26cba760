//! Claims one-time grants for requests that the routes deny.

use bottle_contract::decide::{Findings, Verdict, decide};
use bottle_contract::route::RouteTable;
use http::request::Parts;

use super::facts;
use crate::egress::Egress;
use crate::listener::ConnectionContext;
use crate::live::{CurrentRoutes, GrantClaim};

/// Claims the oldest grant that allows this request. `None` when the routes allow the request, or no grant does.
pub(super) fn claim(
    egress: &Egress,
    current: &CurrentRoutes,
    connection: &ConnectionContext,
    parts: &Parts,
) -> Option<GrantClaim> {
    if current.grants.is_empty() {
        return None;
    }
    let facts = facts::collect(connection, parts);
    let refuses = |table: &RouteTable| {
        let loaded = |slot: &str| egress.vault.holds(slot);
        matches!(decide(table, &facts, &loaded, &Findings::none()), Verdict::Deny(_))
    };
    if !refuses(&current.table) {
        return None;
    }
    current.grants.iter().filter(|grant| !refuses(grant.table())).find_map(|grant| grant.claim())
}
