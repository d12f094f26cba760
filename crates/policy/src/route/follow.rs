//! Removes from a child's routes the permissions that its parent lost.
//!
//! A child is a bottle that the agent of another bottle, its parent, started. A child starts without any permission
//! that its parent lacks, and must not keep permissions that the user removes from the parent.

use super::edit::{Action, RouteEdit, excluded};
use super::{HostPattern, Route, RouteError, RouteTable};
use crate::added_permissions::{Gain, What, gains};

/// Returns the routes of a child after the routes of its parent changed from `before` to `after`. `edit` is the edit
/// that changed the parent's routes, if known. The child loses the permissions that the parent lost, and gains none. If
/// the child's own route cannot express the loss, the child loses all permissions for the hosts. Permissions that the
/// user gave only to the child remain.
///
/// # Errors
/// [`RouteError`] if the routes would violate a rule.
pub fn follow(
    child: &RouteTable,
    before: &RouteTable,
    after: &RouteTable,
    edit: Option<&RouteEdit>,
) -> Result<RouteTable, RouteError> {
    let mut table = child.clone();
    if let Some(edit) = edit.filter(|edit| edit.action == Action::Deny)
        && let Ok(denied) = edit.apply(&table)
    {
        table = denied;
    }
    let mut followed: Vec<HostPattern> = Vec::new();
    loop {
        let beyond = beyond(&table, before, after);
        if beyond.is_empty() {
            return Ok(table);
        }
        let mut routes = table.routes().to_vec();
        for host in hosts(&beyond) {
            // If an earlier pass already applied the parent's route without effect, the child's hosts are excluded.
            let tried = followed.contains(&host);
            let route = table.effective(&host).filter(|_| !tried).and_then(|own| {
                let only_scanning =
                    beyond.iter().all(|gain| gain.host != host || gain.what == What::Scanning);
                as_parent(own, &host, before, after, only_scanning)
            });
            let route = route.unwrap_or_else(|| excluded(Route::to(host.clone())));
            match routes.iter_mut().find(|known| known.host == host) {
                Some(known) => *known = route,
                None => routes.push(route),
            }
            followed.push(host);
        }
        table = table.with_routes(routes)?;
    }
}

/// Returns the child's permissions that the parent's new routes do not grant, except those that the parent's old routes
/// did not grant either.
fn beyond(child: &RouteTable, before: &RouteTable, after: &RouteTable) -> Vec<Gain> {
    let known = gains(before, child);
    gains(after, child).into_iter().filter(|gain| !known.contains(gain)).collect()
}

fn hosts(gains: &[Gain]) -> Vec<HostPattern> {
    let mut hosts: Vec<HostPattern> = gains.iter().map(|gain| gain.host.clone()).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Returns the parent's new route for `host` if the child had the parent's old route. Otherwise, if only the scanning
/// settings differ, returns the child's own route with the parent's scanning settings.
fn as_parent(
    own: &Route,
    host: &HostPattern,
    before: &RouteTable,
    after: &RouteTable,
    only_scanning: bool,
) -> Option<Route> {
    let now = after.effective(host)?;
    let of_host = |route: &Route| Route { host: host.clone(), ..route.clone() };
    if before.effective(host).is_some_and(|was| of_host(was) == of_host(own)) {
        return Some(of_host(now));
    }
    only_scanning.then(|| Route { dlp: now.dlp.clone(), ..of_host(own) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::route::Form;
    use crate::route::arbitrary::table;

    fn routes(text: &str) -> RouteTable {
        format!("routes:\n{text}").parse().expect("routes")
    }

    fn denied(table: &RouteTable, host: &str, path: Option<&str>) -> (RouteTable, RouteEdit) {
        let edit = RouteEdit { path: path.map(str::to_owned), ..RouteEdit::new(Action::Deny, host) };
        (edit.apply(table).expect("denied"), edit)
    }

    #[test]
    fn a_child_loses_what_its_parent_loses_and_keeps_its_own() {
        let before = routes("- host: '*.example.com'\n- host: api.test\n");
        let child =
            routes("- host: a.example.com\n- host: b.example.com\n- host: api.test\n- host: own.test\n");
        let (after, edit) = denied(&before, "a.example.com", None);
        for edit in [Some(&edit), None] {
            let followed = follow(&child, &before, &after, edit).expect("routes");
            let allows = |host: &str| followed.route_for(host).is_some_and(|route| !route.denies_all());
            assert_eq!(
                ["a.example.com", "b.example.com", "api.test", "own.test"].map(allows),
                [false, true, true, true]
            );
            assert_eq!(follow(&followed, &before, &after, edit).expect("routes"), followed);
        }
        // The parent loses a part of a host. If the edit is known, the child loses exactly that part. Otherwise, the
        // child gets the parent's route.
        let (after, edit) = denied(&before, "api.test", Some("/admin"));
        for edit in [Some(&edit), None] {
            let followed = follow(&child, &before, &after, edit).expect("routes");
            let route = followed.route_for("api.test").expect("a route");
            assert!(!route.denies_all() && !route.except.is_empty(), "{route:?}");
        }
    }

    #[test]
    fn a_child_is_scanned_as_its_parent_is() {
        let before = routes("- host: api.test\n  dlp: {outbound_on_match: redact}\n");
        let after = routes("- host: api.test\n  dlp: {outbound_on_match: block}\n");
        let child =
            routes("- host: api.test\n  matches: [{methods: [GET]}]\n  dlp: {outbound_on_match: redact}\n");
        let followed = follow(&child, &before, &after, None).expect("routes");
        let route = followed.route_for("api.test").expect("a route");
        assert_eq!(route.dlp, after.routes()[0].dlp);
        assert_eq!(route.matches, child.routes()[0].matches);
    }

    proptest! {
        #[test]
        fn nothing_that_the_parent_lost_is_left_and_nothing_is_gained(
            child in table(Form::Manifest), before in table(Form::Manifest), after in table(Form::Manifest),
        ) {
            if let Ok(followed) = follow(&child, &before, &after, None) {
                prop_assert_eq!(beyond(&followed, &before, &after), vec![]);
                let had = gains(&before, &child);
                for gain in gains(&child, &followed) {
                    // If the child gains a permission that it did not have, the parent has this permission now.
                    prop_assert!(gain.what == What::Scanning || !gains(&after, &followed).contains(&gain) || had.contains(&gain));
                }
            }
        }
    }
}
