//! Shows how manifests changed.

use std::fmt::Write as _;

use crate::cli::output::Styles;

/// The changes of manifests since the last start of a bottle.
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
