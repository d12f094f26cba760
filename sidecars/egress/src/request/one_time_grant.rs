//! Claims one-time grants for requests that the routes deny.

use bottle_contract::decide::{Findings, Verdict, decide};
use bottle_contract::route::RouteTable;
use http::request::Parts;

use super::facts;
use crate::egress::Egress;
use crate::listener::ConnectionContext;
use crate::live::{Current, Turn};

/// Claims the oldest grant that allows this request. `None` when the routes allow the request, or no grant does.
pub(super) fn turn(
    egress: &Egress,
    current: &Current,
    way: &ConnectionContext,
    parts: &Parts,
) -> Option<Turn> {
    if current.once.is_empty() {
        return None;
    }
    let facts = facts::of(way, parts);
    let refuses = |table: &RouteTable| {
        let loaded = |slot: &str| egress.vault.holds(slot);
        matches!(decide(table, &facts, &loaded, &Findings::none()), Verdict::Deny(_))
    };
    if !refuses(&current.table) {
        return None;
    }
    current.once.iter().filter(|once| !refuses(once.table())).find_map(|once| once.take())
}
