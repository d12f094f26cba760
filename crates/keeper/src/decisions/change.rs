//! Computes the routes that result from the answer to a proposal, or from a change that the user requests. This module
//! is pure: it reads no clock, sends no messages and uses no files.

use anyhow::{Context as _, ensure};
use bottle_instance::audit::Entry;
use bottle_instance::audited_routes::AuditedChange;
use bottle_instance::routes::Replaced;
use bottle_policy::added_permissions::{self, What};
use bottle_policy::proposal;
use bottle_policy::route::edit::{Action, RouteEdit, weakenings};
use bottle_policy::route::{HostPattern, Route, RouteTable, render_route, render_routes};
use bottle_protocol::queue::{Id, Proposal, Response, Scope, Status, Tool};
use bottle_protocol::session::bundle::{OneTimeGrant, Routes};
use similar::TextDiff;

use crate::mask::Mask;
use crate::protocol::{Consent, RouteChange, RouteReport, RouteRequest};

/// The maximum number of unused one-time grants. At this number, the approval of another one-time grant fails. The
/// number is limited because each change of the routes sends all grants to the proxy in one message.
const MAX_ONE_TIME_GRANTS: usize = 8;

/// New, validated routes and the difference from the current routes.
pub(super) struct Change {
    pub(super) next: Routes,
    pub(super) gains: Vec<String>,
    pub(super) diff: String,
    /// Whether the new routes allow anything that the current routes do not.
    pub(super) changes: bool,
}

impl Change {
    /// Merges `text` into the current routes. `text` is the content of the routes file of the proposal `id`. `sent` is
    /// the last revision that was sent to the proxy.
    ///
    /// # Errors
    /// When the file is not valid or cannot be merged, or when the proposal cannot be approved with this scope.
    pub(super) fn new(now: &Routes, sent: u64, text: &str, id: &Id, scope: Scope) -> anyhow::Result<Self> {
        let proposed = proposal::parse(text)?;
        let merged = proposal::merge(&now.table, &proposed)?;
        let is_granted = |once: &OneTimeGrant| once.proposal == *id;
        let changes = merged != now.table && !(scope == Scope::Once && now.once.iter().any(is_granted));
        let diff = diff(&now.table, &merged);
        let gains = gains(&now.table, &merged);
        let mut next = now.clone();
        match scope {
            _ if !changes => {}
            Scope::Once => next.once.push(one_time_grant(now, &proposed, id)?),
            Scope::Run | Scope::Saved => {
                // An earlier answer may have created a one-time grant for the same proposal, for example if the keeper
                // was killed. The merged routes replace this grant.
                next.once.retain(|once| !is_granted(once));
                next.table = merged;
            }
        }
        if changes {
            next.revision = next_revision(now, sent);
        }
        Ok(Self { next, gains, diff, changes })
    }

    /// Returns the audit entry for this change of the routes `now`. `response` is the user's approval of `proposal`.
    pub(super) fn intent(
        &self,
        now: &Routes,
        proposal: &Proposal,
        response: &Response,
        mask: &Mask,
    ) -> Entry {
        Entry::Intent {
            proposal: proposal.id.clone(),
            tool: proposal.tool,
            status: response.status,
            scope: response.scope,
            reason: response.notes.clone(),
            revision: self.next.revision,
            gains: mask.texts(&self.gains),
            diff: mask.text(&self.diff),
            effective: Some(Box::new(AuditedChange::new(now, &self.next, |text| mask.text(text)))),
        }
    }
}

/// Whether the answer to a proposal changes the routes. Answers that do not change the routes are only recorded.
pub(super) fn is_applied(tool: Tool, status: Status) -> bool {
    !tool.reports() && status != Status::Rejected
}

/// Returns the revision for changed routes. `sent` is the last revision that was sent to the proxy.
fn next_revision(now: &Routes, sent: u64) -> u64 {
    now.revision.max(sent) + 1
}

/// Returns the routes with `table` as the new table. Drops the one-time grants that cannot be merged into the new
/// table.
pub(super) fn replaced(now: &Routes, sent: u64, table: RouteTable) -> Routes {
    let mut next = Routes { revision: next_revision(now, sent), table, ..now.clone() };
    next.once.retain(|grant| {
        proposal::parse(&grant.routes).is_ok_and(|routes| proposal::merge(&next.table, &routes).is_ok())
    });
    next
}

/// A change of the routes that the user requests.
#[derive(Debug)]
pub(super) struct UserChange {
    pub(super) report: RouteReport,
    pub(super) table: RouteTable,
    /// The edit of the routes. `None` for an undo.
    pub(super) edit: Option<RouteEdit>,
    /// Whether to apply the change. False if the change has no effect, or if the user has not agreed to its effect.
    pub(super) applies: bool,
}

impl UserChange {
    /// Applies a request of the user to the current routes, and updates the list of changes that can be undone.
    ///
    /// # Errors
    /// When the change is not valid.
    pub(super) fn new(now: &Routes, request: RouteRequest, undo: &mut Vec<Replaced>) -> anyhow::Result<Self> {
        let (host, table, edit) = changed_table(request.change, &now.table, undo)?;
        let weakenings = match &edit {
            Some(_) => weakenings(&now.table, &table),
            // An undo needs no agreement, because the user already agreed to the routes that it restores.
            None => Vec::new(),
        };
        let agreed = match request.weaken {
            Consent::Always => true,
            Consent::At(revision) => revision == now.revision,
            Consent::Unasked => false,
        };
        let changed = table != now.table;
        let report = RouteReport {
            live: !changed,
            revision: now.revision,
            changed,
            routes: of_host(&table, &host).iter().map(render_route).collect(),
            gains: gains(&now.table, &table),
            losses: losses(&now.table, &table),
            weakenings,
            not_followed: Vec::new(),
            host: host.to_string(),
        };
        let applies = changed && (report.weakenings.is_empty() || agreed);
        Ok(Self { report, table, edit, applies })
    }
}

/// Whether `new` denies requests that `old` allows, or has better protection.
pub(super) fn is_narrower(old: &RouteTable, new: &RouteTable) -> bool {
    !losses(old, new).is_empty() || !weakenings(new, old).is_empty()
}

/// Creates the grant that allows one matching request.
fn one_time_grant(now: &Routes, proposed: &proposal::Proposal, id: &Id) -> anyhow::Result<OneTimeGrant> {
    let clones = proposed.routes().iter().any(|route| route.git_fetch);
    ensure!(!clones, "a clone makes several requests: allow it with the scope `run`");
    ensure!(
        now.once.len() < MAX_ONE_TIME_GRANTS,
        "{MAX_ONE_TIME_GRANTS} one-time grants are unused already: allow it with the scope `run`"
    );
    Ok(OneTimeGrant { proposal: id.clone(), routes: proposed.render() })
}

/// Returns the difference between two route tables as a unified diff.
pub(super) fn diff(old: &RouteTable, new: &RouteTable) -> String {
    let (old, new) = (render_routes(old), render_routes(new));
    TextDiff::from_lines(&old, &new).unified_diff().context_radius(2).to_string()
}

/// Returns the hosts of a change, the route table after the change, and the edit. An undo has no edit. Updates the list
/// of changes that can be undone.
fn changed_table(
    change: RouteChange,
    now: &RouteTable,
    undo: &mut Vec<Replaced>,
) -> anyhow::Result<(HostPattern, RouteTable, Option<RouteEdit>)> {
    match change {
        RouteChange::Edit(edit) => {
            let (host, table) = (edit.host()?, edit.apply(now)?);
            let before = of_host(now, &host).into_iter().filter(|route| host.covers_pattern(&route.host));
            undo.push(Replaced { host: host.to_string(), before: RouteTable::new(before.collect())? });
            Ok((host, table, Some(edit)))
        }
        RouteChange::Undo { host } => {
            let host = RouteEdit::new(Action::Deny, host).host()?;
            let of_these = |replaced: &Replaced| replaced.host == host.to_string();
            let at = undo.iter().rposition(of_these);
            let at = at.with_context(|| format!("there is no change of {host} to undo"))?;
            let other = now.routes().iter().filter(|route| !host.covers_pattern(&route.host));
            let restored = other.chain(undo.remove(at).before.routes()).cloned().collect();
            Ok((host, now.with_routes(restored)?, None))
        }
    }
}

/// Returns the routes that apply to these hosts. If the hosts have no routes of their own, returns the route of a wider
/// wildcard.
fn of_host(table: &RouteTable, host: &HostPattern) -> Vec<Route> {
    let own = table.routes().iter().filter(|route| host.covers_pattern(&route.host));
    let own: Vec<Route> = own.cloned().collect();
    if own.is_empty() { table.effective(host).into_iter().cloned().collect() } else { own }
}

/// Describes the requests that `old` allows and `new` does not.
pub(super) fn losses(old: &RouteTable, new: &RouteTable) -> Vec<String> {
    let lost = added_permissions::gains(new, old).into_iter();
    // A lost host is not listed, because its lost requests are listed. Changes of the scanning are listed as gains.
    let lost = lost.filter(|lost| !matches!(lost.what, What::Host | What::Scanning));
    lost.map(|lost| lost.to_string()).collect()
}

/// Describes everything that `new` allows and `old` does not.
pub fn gains(old: &RouteTable, new: &RouteTable) -> Vec<String> {
    added_permissions::gains(old, new).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use bottle_policy::route::edit::Setting;
    use bottle_policy::route::{Form, parse_routes};
    use bottle_policy::secret::Secret;

    use super::*;

    fn routes(revision: u64, yaml: &str) -> Routes {
        let table = parse_routes(&format!("routes:\n{yaml}"), Form::Runtime).expect(yaml);
        Routes { revision, table, once: Vec::new() }
    }

    fn id(n: u8) -> Id {
        Id::from_random([n; 16])
    }

    const A: &str = "- host: a.example\n";
    const B: &str = "- host: b.example\n";
    const CLONE: &str = "- host: b.example\n  git: {fetch: true}\n";

    #[test]
    fn an_answer_is_merged_for_its_scope() {
        let granted = |n| OneTimeGrant { proposal: id(n), routes: B.to_owned() };
        let pending = Routes { once: vec![granted(1)], ..routes(4, A) };
        let both = format!("{A}{B}");
        // Each entry: the current routes, the proposal's file, the scope, whether the routes change, the resulting
        // table, and the number of one-time grants.
        for (now, text, scope, changes, table, once) in [
            (routes(4, A), B, Scope::Run, true, &*both, 0),
            (routes(4, A), B, Scope::Saved, true, &both, 0),
            (routes(4, A), B, Scope::Once, true, A, 1),
            (routes(4, A), A, Scope::Run, false, A, 0),
            (routes(4, A), A, Scope::Once, false, A, 0),
            (pending.clone(), B, Scope::Once, false, A, 1),
            (pending.clone(), B, Scope::Run, true, &both, 0),
        ] {
            for sent in [0, 9] {
                let change = Change::new(&now, sent, text, &id(1), scope).expect("a change");
                let found = (change.changes, &change.next.table, change.next.once.len());
                assert_eq!(found, (changes, &routes(0, table).table, once), "{text} {scope:?}");
                let revision = if changes { sent.max(4) + 1 } else { 4 };
                assert_eq!(change.next.revision, revision, "{text} {scope:?}");
                assert_eq!(change.gains.is_empty(), text == A, "{text} {scope:?}");
            }
        }
        let full = Routes { once: (2..10).map(granted).collect(), ..routes(4, A) };
        assert_eq!(full.once.len(), MAX_ONE_TIME_GRANTS);
        for (now, text, scope, wanted) in [
            (&full, B, Scope::Once, "8 one-time grants are unused already"),
            (&pending, CLONE, Scope::Once, "a clone makes several requests"),
            (&pending, "no: routes", Scope::Run, ""),
        ] {
            let error = Change::new(now, 0, text, &id(99), scope).err().expect("refused").to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!(Change::new(&full, 0, CLONE, &id(99), Scope::Run).expect("a change").changes);
    }

    const CREDENTIAL: &str = "- host: a.example\n  auth: {scheme: Bearer, slot: TOKEN}\n";
    const HOOK: &str = "- host: b.example\n  matches: [{paths: [{value: /hook/held-8f3Kq2Lm9Zx4Vb7N}]}]\n";

    /// Returns the audit entry for the approval of the routes `text`, and its JSON form.
    fn approved(now: &Routes, text: &str, scope: Scope) -> (AuditedChange, String) {
        let time = "2026-01-01T00:00:00Z".parse().expect("time");
        let proposal = Proposal {
            id: id(1),
            bottle_slug: "one".parse().expect("slug"),
            tool: Tool::EgressAllow,
            proposed_file: text.to_owned(),
            justification: String::new(),
            excerpt: Vec::new(),
            arrival_timestamp: time,
            revision: None,
            expires_at: time,
            asked_before: 0,
        };
        let response = Response {
            proposal_id: id(1),
            status: Status::Approved,
            notes: Some("it may".to_owned()),
            final_file: None,
            scope,
            decided_at: time,
            decided_by: "me".to_owned(),
        };
        let mask = Mask::new(&[Secret::new("held-8f3Kq2Lm9Zx4Vb7N".to_owned())]);
        let change = Change::new(now, now.revision, text, &id(1), scope).expect("a change");
        let entry = change.intent(now, &proposal, &response, &mask);
        let text = serde_json::to_string(&entry).expect("JSON");
        let Entry::Intent { effective: Some(effective), .. } = entry else { panic!("{text}") };
        (*effective, text)
    }

    #[test]
    fn an_approval_is_recorded_with_the_routes_before_and_after() {
        let now = routes(4, CREDENTIAL);
        let credential = "host: a.example\nauth:\n  scheme: Bearer\n  slot: TOKEN\n";
        // Each entry: the approved routes, the scope, whether the routes stay as they are, the revision, the routes
        // after, and the number of one-time grants.
        for (text, scope, unchanged, revision, after, once) in [
            (B, Scope::Run, false, 5, &[credential, "host: b.example\n"][..], 0),
            (B, Scope::Once, false, 5, &[credential], 1),
            ("- host: a.example\n", Scope::Run, true, 4, &[credential], 0),
        ] {
            let (effective, entry) = approved(&now, text, scope);
            assert_eq!(effective.unchanged, unchanged, "{text} {scope:?}");
            assert_eq!(effective.before.revision, 4);
            assert_eq!(effective.before.routes, [credential]);
            assert_eq!((effective.after.revision, effective.after.once.len()), (revision, once), "{entry}");
            assert_eq!(effective.after.routes, after, "{text} {scope:?}");
        }
    }

    /// Neither the routes nor their description in the record contain a secret that the keeper knows.
    #[test]
    fn an_approval_is_recorded_without_secrets() {
        for scope in [Scope::Run, Scope::Once] {
            let (effective, entry) = approved(&routes(1, A), HOOK, scope);
            assert!(!entry.contains("8f3Kq2Lm9Zx4Vb7N"), "{entry}");
            let recorded = serde_json::to_string(&effective.after).expect("JSON");
            assert!(recorded.contains("/hook/[redacted]"), "{recorded}");
        }
        let (_, entry) = approved(&routes(1, HOOK), A, Scope::Run);
        assert!(!entry.contains("8f3Kq2Lm9Zx4Vb7N"), "{entry}");
    }

    #[test]
    fn only_approved_routes_are_applied() {
        for (tool, status, wanted) in [
            (Tool::EgressAllow, Status::Approved, true),
            (Tool::EgressAllow, Status::Modified, true),
            (Tool::EgressAllow, Status::Rejected, false),
            (Tool::BudgetAdd, Status::Approved, false),
            (Tool::BudgetAdd, Status::Rejected, false),
        ] {
            assert_eq!(is_applied(tool, status), wanted, "{tool:?} {status:?}");
        }
    }

    #[test]
    fn a_user_changes_routes_and_undoes_it() {
        let now = routes(3, A);
        let request = |change, weaken| RouteRequest { change, by: "me".to_owned(), weaken };
        let edit = |action, host: &str| RouteChange::Edit(RouteEdit::new(action, host));
        let undo_of = |host: &str| RouteChange::Undo { host: host.to_owned() };
        let mut undo = Vec::new();
        let allowed =
            UserChange::new(&now, request(edit(Action::Allow, "b.example"), Consent::Unasked), &mut undo)
                .expect("a change");
        assert!(allowed.applies && allowed.report.changed && !allowed.report.live);
        assert_eq!(undo.len(), 1);
        let next = replaced(&now, 7, allowed.table);
        assert_eq!((next.revision, next.table.routes().len()), (8, 2));
        let again = UserChange::new(
            &next,
            request(edit(Action::Allow, "b.example"), Consent::Unasked),
            &mut undo.clone(),
        )
        .expect("no change");
        assert!(!again.applies && !again.report.changed && again.report.live);
        let denied =
            UserChange::new(&next, request(edit(Action::Deny, "a.example"), Consent::Unasked), &mut undo)
                .expect("a change");
        assert!(denied.applies && is_narrower(&next.table, &denied.table));
        let unknown =
            UserChange::new(&next, request(undo_of("c.example"), Consent::Unasked), &mut undo.clone());
        assert_eq!(unknown.expect_err("refused").to_string(), "there is no change of c.example to undo");
        let undone = UserChange::new(&next, request(undo_of("b.example"), Consent::Unasked), &mut undo)
            .expect("a change");
        assert_eq!((undone.table, undone.applies, undo.len()), (now.table, true, 1));
    }

    #[test]
    fn weaker_protection_needs_consent_to_these_routes() {
        let now = routes(3, A);
        let change = |weaken| {
            let edit = RouteEdit {
                outbound_detectors: Some(Setting::To(Vec::new())),
                ..RouteEdit::new(Action::Allow, "a.example")
            };
            let request = RouteRequest { change: RouteChange::Edit(edit), by: "me".to_owned(), weaken };
            UserChange::new(&now, request, &mut Vec::new()).expect("a change")
        };
        for (weaken, applies) in [
            (Consent::Unasked, false),
            (Consent::At(2), false),
            (Consent::At(3), true),
            (Consent::At(4), false),
            (Consent::Always, true),
        ] {
            let change = change(weaken);
            assert!(!change.report.weakenings.is_empty() && change.report.changed, "{weaken:?}");
            assert_eq!((change.applies, change.report.live), (applies, false), "{weaken:?}");
        }
    }

    #[test]
    fn a_denial_ends_one_time_grants_for_what_it_denies() {
        let grant = |n, routes: &str| OneTimeGrant { proposal: id(n), routes: routes.to_owned() };
        let once = vec![grant(1, B), grant(2, "not: valid")];
        let kept = replaced(&Routes { once, ..routes(1, A) }, 0, routes(0, B).table);
        assert_eq!(kept.once, [grant(1, B)], "what cannot be read ends");
    }
}
