//! What the routes refuse and a user allowed for one request.

use bottle_contract::decide::{Findings, Verdict, decide};
use bottle_contract::route::RouteTable;
use http::request::Parts;

use super::facts;
use crate::egress::Egress;
use crate::listener::ConnectionContext;
use crate::live::{Current, Turn};

/// The right of this request to pass where the routes refuse it; none when they allow it, or nothing was allowed
/// that it fits. Of those it fits the oldest.
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
