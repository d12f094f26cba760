//! Shows how manifests changed, as a unified diff.

use bottle_host::Host;
use bottle_instance::Store;
use bottle_plan::Plan;
use bottle_policy::names::Slug;
use similar::TextDiff;

/// Returns a unified diff from the manifest of the bottle's last start to the plan's manifest. `None` if both manifests
/// are equal.
pub fn changes(host: &Host, slug: &Slug, plan: &Plan) -> Option<String> {
    let store = Store::of(host);
    let Some(before) = store.manifest(slug) else {
        return Some("(the manifest of its last start is unknown)\n".to_owned());
    };
    if before == plan.manifest {
        return None;
    }
    Some(diff(&before, &plan.manifest))
}

/// Returns a unified diff between two texts.
pub fn diff(before: &str, now: &str) -> String {
    let diff = TextDiff::from_lines(before, now);
    diff.unified_diff().context_radius(2).missing_newline_hint(false).to_string()
}
