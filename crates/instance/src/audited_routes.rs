//! The routes before and after an approval or a change, as the audit log records them.
//!
//! The record contains the effective routes, in the form in which the proxy gets them. A route with a credential names
//! the credential and never contains its value. The size of the record is limited, because the audit log is read and
//! verified as a whole.

use std::collections::HashSet;

use bottle_policy::route::render_route;
use bottle_protocol::queue::Id;
use bottle_protocol::session::bundle::Routes;
use serde::{Deserialize, Serialize};

/// The maximum size of the routes and one-time grants of one revision in a record, in bytes of YAML. About a thousand
/// short routes fit. The line with two revisions stays far below [`bottle_protocol::audit::MAX_LINE`].
const MAX_BYTES: usize = 32 << 10;

/// The effective routes before and after an approval or a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedChange {
    /// Whether the routes before and after are equal, because they already allowed everything that was approved.
    pub unchanged: bool,
    /// The routes before.
    pub before: AuditedRoutes,
    /// The routes after.
    pub after: AuditedRoutes,
}

/// One revision of a bottle's routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedRoutes {
    /// The revision of the routes.
    pub revision: u64,
    /// The routes in their order, each as an entry of `egress.routes`, in YAML.
    pub routes: Vec<String>,
    /// The one-time grants that no request has used yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub once: Vec<AuditedGrant>,
    /// The number of routes and one-time grants that are not recorded, because the record would be too large.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

/// A one-time grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AuditedGrant {
    /// The id of the approved proposal.
    pub proposal: Id,
    /// The routes that apply to one request, in YAML.
    pub routes: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl AuditedChange {
    /// Creates the record of the change from `before` to `after`. `mask` replaces the secrets in a text. If not
    /// everything fits, the record contains the routes that differ rather than those that stay.
    #[must_use]
    pub fn new(before: &Routes, after: &Routes, mask: impl Fn(&str) -> String) -> Self {
        let unchanged = before.table == after.table && before.once == after.once;
        let (old, new) = (Item::all(before, &mask), Item::all(after, &mask));
        let recorded = recorded(&old, &new);
        Self {
            unchanged,
            before: AuditedRoutes::new(before.revision, &old, &recorded),
            after: AuditedRoutes::new(after.revision, &new, &recorded),
        }
    }
}

/// A route or a one-time grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Item {
    Route(String),
    Grant(AuditedGrant),
}

impl Item {
    /// Returns all routes, then all one-time grants.
    fn all(routes: &Routes, mask: impl Fn(&str) -> String) -> Vec<Self> {
        let table = routes.table.routes().iter().map(|route| Self::Route(mask(&render_route(route))));
        let once = routes.once.iter().map(|grant| {
            Self::Grant(AuditedGrant { proposal: grant.proposal.clone(), routes: mask(&grant.routes) })
        });
        table.chain(once).collect()
    }

    fn size(&self) -> usize {
        match self {
            Self::Route(text) => text.len(),
            Self::Grant(grant) => grant.proposal.as_str().len() + grant.routes.len(),
        }
    }
}

impl AuditedRoutes {
    /// Creates the record of those `items` that are in `recorded`.
    fn new(revision: u64, items: &[Item], recorded: &HashSet<&Item>) -> Self {
        let mut result = Self { revision, routes: Vec::new(), once: Vec::new(), omitted: 0 };
        for item in items {
            match item {
                _ if !recorded.contains(item) => result.omitted += 1,
                Item::Route(text) => result.routes.push(text.clone()),
                Item::Grant(grant) => result.once.push(grant.clone()),
            }
        }
        result
    }
}

/// Returns the items that fit into the record. An item of both revisions is recorded for both or for none, so that it
/// never looks like a part of the change.
fn recorded<'i>(old: &'i [Item], new: &'i [Item]) -> HashSet<&'i Item> {
    let (in_old, in_new): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
    let (mut room_before, mut room_after) = (MAX_BYTES, MAX_BYTES);
    let mut recorded = HashSet::new();
    recorded.extend(fitting(old.iter().filter(|item| !in_new.contains(item)), &mut room_before));
    recorded.extend(fitting(new.iter().filter(|item| !in_old.contains(item)), &mut room_after));
    let mut room = room_before.min(room_after);
    recorded.extend(fitting(old.iter().filter(|item| in_new.contains(item)), &mut room));
    recorded
}

/// Returns the items that fit into `room`, and subtracts their sizes.
fn fitting<'i>(items: impl Iterator<Item = &'i Item>, room: &mut usize) -> Vec<&'i Item> {
    items.filter(|item| room.checked_sub(item.size()).inspect(|left| *room = *left).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::bundle::OneTimeGrant;

    use super::*;

    fn routes(revision: u64, yaml: &str) -> Routes {
        let table = format!("routes:\n{yaml}").parse().expect(yaml);
        Routes { revision, ..Routes::first(table) }
    }

    fn change(before: &Routes, after: &Routes) -> AuditedChange {
        AuditedChange::new(before, after, str::to_owned)
    }

    const CREDENTIAL: &str = "- host: a.example\n  auth: {scheme: Bearer, slot: TOKEN}\n";

    #[test]
    fn records_both_revisions_with_the_names_of_credentials() {
        let before = routes(1, CREDENTIAL);
        let grant = OneTimeGrant { proposal: Id::from_random([1; 16]), routes: "routes: []\n".to_owned() };
        let after = Routes { once: vec![grant], ..routes(2, &format!("{CREDENTIAL}- host: b.example\n")) };
        let credential = "host: a.example\nauth:\n  scheme: Bearer\n  slot: TOKEN\n";
        let wanted = serde_json::json!({
            "unchanged": false,
            "before": {"revision": 1, "routes": [credential]},
            "after": {
                "revision": 2,
                "routes": [credential, "host: b.example\n"],
                "once": [{"proposal": "01010101-0101-4101-8101-010101010101", "routes": "routes: []\n"}],
            },
        });
        let recorded = change(&before, &after);
        assert_eq!(serde_json::to_value(&recorded).expect("JSON"), wanted);
        assert_eq!(serde_json::from_value::<AuditedChange>(wanted).expect("a record"), recorded);
    }

    #[test]
    fn says_whether_the_routes_changed() {
        let now = routes(1, CREDENTIAL);
        let grant = OneTimeGrant { proposal: Id::from_random([1; 16]), routes: String::new() };
        for (after, unchanged) in [
            (now.clone(), true),
            (Routes { once: vec![grant], ..now.clone() }, false),
            (routes(1, "- host: a.example\n"), false),
        ] {
            assert_eq!(change(&now, &after).unchanged, unchanged, "{after:?}");
        }
    }

    #[test]
    fn masks_secrets() {
        let path = "- host: a.example\n  matches: [{paths: [{value: /hook/S3CRET}]}]\n";
        let grant = OneTimeGrant { proposal: Id::from_random([1; 16]), routes: "S3CRET".to_owned() };
        let now = Routes { once: vec![grant], ..routes(1, path) };
        let masked = AuditedChange::new(&now, &now, |text| text.replace("S3CRET", "[redacted]"));
        let text = serde_json::to_string(&masked).expect("JSON");
        assert!(!text.contains("S3CRET"), "{text}");
        assert_eq!(text.matches("[redacted]").count(), 4, "{text}");
    }

    /// A record has a limited size. The routes that changed have precedence over those that stayed, also if they are
    /// the last ones.
    #[test]
    fn a_large_table_is_recorded_in_part() {
        let large = |number: usize| {
            let paths: Vec<String> =
                (0..50).map(|path| format!("{{value: /{path}{}}}", "x".repeat(40))).collect();
            format!("- host: h{number}.example\n  matches: [{{paths: [{}]}}]\n", paths.join(", "))
        };
        let many: String = (0..40).map(large).collect();
        let (before, after) = (routes(1, &many), routes(2, &format!("{many}- host: new.example\n")));
        let recorded = change(&before, &after);
        let AuditedRoutes { routes, omitted, .. } = &recorded.after;
        assert!(*omitted > 0 && routes.len() + omitted == 41, "{omitted}");
        assert!(routes[0].starts_with("host: h0.example"), "{}", routes[0]);
        assert_eq!(routes.last().map(String::as_str), Some("host: new.example\n"));
        assert_eq!(recorded.before.routes, routes[..routes.len() - 1], "what stayed looks the same");
        for side in [&recorded.before, &recorded.after] {
            assert!(side.routes.iter().map(String::len).sum::<usize>() <= MAX_BYTES);
        }
        let line = serde_json::to_string(&recorded).expect("JSON");
        assert!(line.len() < bottle_protocol::audit::MAX_LINE / 8, "{}", line.len());
    }
}
