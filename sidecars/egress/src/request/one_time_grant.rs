//! Claims one-time grants for requests that the routes deny.

use bottle_contract::decide::{Findings, Verdict};
use bottle_contract::route::RouteTable;

use super::head::RequestHead;
use crate::egress::Egress;
use crate::live::{CurrentRoutes, GrantClaim};

/// Claims the oldest grant that allows this request. `None` when the routes allow the request, or no grant does.
pub(super) fn claim(egress: &Egress, current: &CurrentRoutes, head: &RequestHead) -> Option<GrantClaim> {
    if current.grants.is_empty() {
        return None;
    }
    let refuses =
        |table: &RouteTable| matches!(head.decide(table, &egress.vault, &Findings::none()), Verdict::Deny(_));
    if !refuses(&current.table) {
        return None;
    }
    current.grants.iter().filter(|grant| !refuses(grant.table())).find_map(|grant| grant.claim())
}
