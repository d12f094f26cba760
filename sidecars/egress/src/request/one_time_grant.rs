//! Claims one-time grants for requests that the routes deny.

use bottle_policy::decide::{Findings, Verdict};
use bottle_policy::route::RouteTable;

use super::head::RequestHead;
use crate::egress::Egress;
use crate::live::{CurrentRoutes, GrantClaim};

/// Claims the oldest unclaimed grant that allows this request. Returns `None` if the routes allow the request without a
/// grant, or no grant allows it.
pub(super) fn claim(egress: &Egress, current: &CurrentRoutes, head: &RequestHead) -> Option<GrantClaim> {
    if current.grants.is_empty() {
        return None;
    }
    let refuses = |table: &RouteTable| {
        matches!(head.decide(table, &egress.secrets.credential_store, &Findings::none()), Verdict::Deny(_))
    };
    if !refuses(&current.table) {
        return None;
    }
    current.grants.iter().filter(|grant| !refuses(grant.table())).find_map(|grant| grant.claim())
}
