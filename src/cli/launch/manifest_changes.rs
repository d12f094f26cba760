//! How manifests changed, as a unified diff.

use std::fmt::Write as _;

use bottle_contract::names::Slug;
use similar::TextDiff;

use crate::cli::output::Styles;
use crate::host::Host;
use crate::instance::Store;
use crate::plan::Plan;

/// Returns a unified diff from the manifest of the bottle's last start to the plan's; none if they are equal.
pub(crate) fn changes(host: &Host, slug: &Slug, plan: &Plan) -> Option<String> {
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
pub(crate) fn diff(before: &str, now: &str) -> String {
    let diff = TextDiff::from_lines(before, now);
    diff.unified_diff().context_radius(2).missing_newline_hint(false).to_string()
}

pub(crate) fn changed(changes: &str, styles: Styles) -> String {
    differences("its manifests changed since its last start:", changes, styles)
}

/// The lines of a unified diff under a heading.
pub(crate) fn differences(heading: &str, changes: &str, styles: Styles) -> String {
    let mut text = styles.yellow(heading);
    for line in changes.lines() {
        let shown = match line.as_bytes().first() {
            Some(b'+') => styles.green(line),
            Some(b'-') => styles.red(line),
            Some(b'@') => styles.dim(line),
            _ => line.to_owned(),
        };
        let _ = write!(text, "\n  {shown}");
    }
    text
}
